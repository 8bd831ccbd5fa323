"""Operations that a message answers, or that make one due: signals, interrupts, children.

`key` is the kind and name of the message that answers one; the crew's mail matches them when the run is settled.
"""

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from typing import Any, Literal

from pyrula.workflows.codec import Fragment, dumps, loads
from pyrula.workflows.engine.host import ChildRequest, RunHost
from pyrula.workflows.engine.operations import CrewOperation, Deliverer
from pyrula.workflows.engine.remains import Torn
from pyrula.workflows.errors import DurableInvocationCancelled, DurableInvocationError, PyrulaError
from pyrula.workflows.replay.journal import Entry
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.messages import Child, Interrupt, Unread, Wait
from pyrula.workflows.store.payloads import read_failure, read_resume
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = [
    "ChildResultOperation",
    "InterruptOperation",
    "LetterOperation",
    "SignalOperation",
    "StartChildOperation",
    "no_signal",
]


class LetterOperation(CrewOperation):
    """One that waits for a message."""

    __slots__ = ("key",)

    key: tuple[str, str]

    def accept(self, crew: Deliverer, unread: Unread) -> tuple[str, bytes, Any]:
        """The message answers it: the entry's kind and JSON, and the value or exception for the body."""
        payload = unread.message.payload
        try:
            return "value", payload, self.replayed(Entry("value", self.id, self.kind, self.name, 0, None, payload))
        except Exception as error:  # noqa: BLE001 - a child's, or that of a payload that isn't as it should be
            return "error", payload, error

    def start(self, crew: Deliverer) -> None:
        """The mail has looked for a message already, and looks again with each that comes."""

    def stop(self) -> None:
        """It was answered."""


class SignalOperation(LetterOperation):
    """Waits for a signal, for some seconds at most."""

    __slots__ = ("_deadline", "_seconds", "_timer")

    def __init__(self, name: str, seconds: float | None) -> None:
        super().__init__("signal", name)
        self.key = "signal", name
        self._seconds = seconds
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, crew: Deliverer) -> None:
        if self._seconds is None:
            return
        left = crew.run.time_left(self.id, self.kind, self._seconds, None)
        self._deadline = crew.run.clock.now().timestamp() + left
        if left <= 0:
            self._expire(crew)
        else:
            self._timer = crew.call_later(left, lambda: self._expire(crew))

    def _expire(self, crew: Deliverer) -> None:
        crew.on_completed(self, "error", dumps({"timeout": self._seconds}), self._late(self._seconds))

    def _late(self, seconds: Any) -> TimeoutError:
        return TimeoutError(no_signal(self.name, seconds))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    give_up = stop

    def replayed(self, entry: Entry) -> Any:
        if entry.kind == "error":
            raise self._late(loads(entry.value or b"{}").get("timeout", math.nan))
        return loads(entry.value or b"null")

    def wait(self, crew: Deliverer) -> Wait | None:
        return Wait("signal", self.name, self._deadline)


def no_signal(name: str, seconds: Any) -> str:
    """What the TimeoutError says."""
    return f"no signal {name!r} came within {seconds} s"


class InterruptOperation(LetterOperation):
    """Waits for the answer to an interrupt, which is opened in the same stretch as its note is written."""

    __slots__ = ("_crew", "_payload")

    def __init__(self, payload: bytes) -> None:
        super().__init__("interrupt", "")
        self.key = "resume", ""
        self._payload = payload
        self._crew: Deliverer | None = None

    def start(self, crew: Deliverer) -> None:
        run = crew.run
        note = run.journal.note("interrupt", self.id) if run.journal is not None else None
        if note is None:
            note = _interrupt_note(run, self.id, self._payload)
            run.write(note)
            host = run.talking
            if host is not None:
                host.open(run, Interrupt(note.name, self._payload))
                host.event(run, "interrupt_raised", wait_id=note.name, payload=Fragment(self._payload))
        elif _is_open_again(run, self.id, note.name):
            reopen = getattr(run.talking, "reopen", None)
            if reopen is not None:
                reopen(run, Interrupt(note.name, self._payload))
        self.key = "resume", note.name
        self._crew = crew

    def accept(self, crew: Deliverer, unread: Unread) -> tuple[str, bytes, Any]:
        kind, payload, answer = super().accept(crew, unread)
        if crew.run.talking is not None and kind == "value":
            crew.run.talking.event(crew.run, "interrupt_resumed", wait_id=self.key[1], action=answer.action)
        return kind, payload, answer

    def give_up(self) -> None:
        if self._crew is not None and self._crew.run.talking is not None and self._crew.run.stopped is None:
            self._crew.run.talking.close(self._crew.run, self.key[1])

    def replayed(self, entry: Entry) -> Any:
        return read_resume(entry.value or b"{}")

    def wait(self, crew: Deliverer) -> Wait | None:
        return Wait("interrupt", self.key[1])


def _is_open_again(run: Any, op: str, wait_id: str) -> bool:
    """Whether no answer is there: neither in the journal nor among the messages that a retry took back."""
    if run.desk is not None and ("resume", wait_id) in run.desk.letters:
        return False
    return not any(entry.op == op for entry in run.journal.recorded)


def _interrupt_note(run: Any, op: str, payload: bytes) -> Entry:
    """Its wait id is unique over the links of a chain and over retries: an index is never used again."""
    try:
        link = RunId.parse(run.run_id).link
    except RunNotFoundError:
        link = 1
    wait_id = f"i{run.journal.next_index}" if link == 1 else f"i{run.journal.next_index}~{link}"
    return Entry("interrupt", op, "interrupt", wait_id, None, None, payload)


class StartChildOperation(CrewOperation):
    """Submits a child: its intent is durable first, so that after a crash the same child is submitted again."""

    __slots__ = ("_on_parent_close", "_params", "_stamp", "_task", "_version")

    def __init__(
        self,
        name: str,
        params: bytes,
        version: str | None,
        on_parent_close: Literal["cancel", "abandon"],
        stamp: Stamp | None = None,
    ) -> None:
        super().__init__("start_child", name)
        self._params = params
        self._version = version
        self._on_parent_close = on_parent_close
        self._stamp = stamp
        self._task: asyncio.Task[None] | None = None

    def start(self, crew: Deliverer) -> None:
        run, host = crew.run, crew.run.talking
        if host is None:
            crew.on_broken(
                PyrulaError(
                    f"run {run.run_id}: this run can't have children; start it as a run of its own by a client, "
                    "in a step"
                )
            )
            return
        note = run.journal.note("child", self.id) if run.journal is not None else None
        if note is None:
            child_id = host.new_child_id(run, self.name, self._stamp)
            intent = dumps(child_id if self._stamp is None else [child_id, self._stamp.encode().decode()])
            note = Entry("child", self.id, "start_child", self.name, None, None, intent)
            run.write(note)
            host.adopt(run, Child(child_id, self._on_parent_close))
            host.event(run, "child_started", op=self.id, run_id=child_id, name=self.name)
        # the id was made for the stamp: the workflow may have other policies by now
        child_id, stamp = _read_intent(note)
        request = ChildRequest(child_id, self.name, self._params, self._version, self._on_parent_close, stamp)
        # in a context of its own: what the host starts to submit it is not the run's
        submitting = self._submit(crew, host, request)
        self._task = asyncio.Task(submitting, loop=crew.loop, context=Context(), name=f"child {self.name}")
        crew.on_executing(self._task)

    async def _submit(self, crew: Deliverer, host: RunHost, request: ChildRequest) -> None:
        run = crew.run
        try:
            waiter = host.durable(run)
            if waiter is not None:
                await run.acknowledged(waiter)
            await host.submit(run, request)
        except Torn:
            return
        except Exception as error:  # noqa: BLE001 - it can't be told to the body without being journaled
            crew.on_broken(error)
        else:
            crew.on_completed(self, "value", dumps(request.run_id), request.run_id)

    def give_up(self) -> None:
        """Its intent is journaled: it is submitted all the same, and its parent answers for it."""

    @property
    def under_way(self) -> bool:
        return self._task is not None


def _read_intent(note: Entry) -> tuple[str, Stamp | None]:
    intent = loads(note.value or b'""')
    if isinstance(intent, str):
        return intent, None
    child_id, stamp = intent
    return child_id, Stamp.decode(stamp.encode())


class ChildResultOperation(LetterOperation):
    """Waits for a child's end."""

    __slots__ = ("_decode", "_started")

    def __init__(self, run_id: str, started: str, decode: Callable[[bytes], Any]) -> None:
        super().__init__("child", run_id)
        self.key = "child", run_id
        self._started = started
        self._decode = decode

    def accept(self, crew: Deliverer, unread: Unread) -> tuple[str, bytes, Any]:
        if crew.run.talking is not None:
            fields = loads(unread.message.payload)
            crew.run.talking.event(
                crew.run, "child_finished", op=self._started, run_id=self.name, status=fields.get("status")
            )
        return super().accept(crew, unread)

    def replayed(self, entry: Entry) -> Any:
        fields = loads(entry.value or b"{}")
        status, run_id = fields.get("status"), str(fields.get("run_id") or self.name)
        if status == "cancelled":
            raise DurableInvocationCancelled(run_id)
        if status != "completed":
            error = fields.get("error")
            raise DurableInvocationError(run_id, *read_failure(None if error is None else dumps(error)))
        return self._decode(dumps(fields.get("value")))

    def wait(self, crew: Deliverer) -> Wait | None:
        return Wait("child", self.name)
