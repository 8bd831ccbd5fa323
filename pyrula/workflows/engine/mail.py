"""Delivers messages to a run that is settled, one at a time: to the operations that wait for them, to update handlers,
to all tasks at once for a cancel.

The entry, the message's consumption and what else has to be atomic with it are queued in one stretch. On replay the
same is done again from the entry, without the host.
"""

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, Protocol

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.engine.exits import is_interrupt
from pyrula.workflows.engine.host import Continued
from pyrula.workflows.engine.letters import LetterOperation
from pyrula.workflows.engine.operations import CrewOperation
from pyrula.workflows.engine.places import Place, escaped
from pyrula.workflows.engine.retry import first
from pyrula.workflows.engine.run import Run
from pyrula.workflows.engine.update import Refused, UpdateHandler
from pyrula.workflows.errors import NonDeterminismError, PyrulaError, RunCancelled
from pyrula.workflows.replay.journal import Entry
from pyrula.workflows.replay.machine import Machine
from pyrula.workflows.store.messages import Applied, Unread
from pyrula.workflows.store.payloads import Failure, encode_failure, failure_of

__all__ = ["Mail", "is_cleanup"]


class Recipients(Protocol):
    """What the mail needs of a crew."""

    run: Run
    machine: Machine
    root: Place

    def mark_race(self) -> None:
        """Notes it if a plain await races with what is delivered now."""

    def deliver_entry(self, entry: Entry, raced: bool = True) -> None:
        """Writes the entry of something that is delivered now."""

    def make_root(self, coro: Coroutine[Any, Any, None], path: str, variables: Context) -> "asyncio.Task[Any]":
        """A task that is nobody's child."""

    @property
    def rooted(self) -> bool:
        """Whether the body's first task can be cancelled just now."""

    def cancel_root(self) -> None:
        """Cancels the body's first task."""

    def call_handler_gone(self) -> None:
        """An update handler has ended."""


class Mail:
    """The messages of one crew. `handlers` are the tasks of updates that were applied and haven't ended."""

    def __init__(self, crew: Recipients) -> None:
        self._crew = crew
        self._run = crew.run
        self._machine = crew.machine
        self.cancelled = False
        self.aborted = False
        self.ending = False
        self.handlers: dict[str, asyncio.Task[Any]] = {}

    def deliver(self) -> bool:
        """Delivers the first message that can be delivered now. The run is live and settled."""
        desk = self._run.desk
        if desk is None or not (desk.orders or desk.letters):
            return False
        order = next((one for one in desk.orders if not (self.ending and one.message.kind == "update")), None)
        operation = self._addressee() if desk.letters else None
        if operation is not None:
            letter = desk.letters[operation.key][0]
            if order is None or letter.number < order.number:
                self._answer(operation, desk.take(operation.key))
                return True
        if order is None:
            return False
        desk.orders.remove(order)
        if order.message.kind == "update":
            self._update(order)
        elif order.message.kind == "pause":
            self._pause(order)
        elif self.cancelled:
            self._consume(order)
        else:
            running = [op.id for op in self._waiting() if op.under_way]
            if self._run.in_place is not None and self._run.in_place not in self._machine.waiting:
                running.append(self._run.in_place)
            value = dumps(running)
            self._crew.deliver_entry(Entry("cancel", "", "cancel", "", self._machine.asked, order.message.id, value))
            self._consume(order)
            self._cancel(running)
        return True

    def heed_pause(self) -> None:
        """The run goes live: a pause that comes before other orders holds before anything is started."""
        desk = self._run.desk
        if desk is not None and desk.orders and desk.orders[0].message.kind == "pause":
            self._pause(desk.orders.popleft())

    def _pause(self, order: Unread) -> None:
        desk = self._run.desk
        assert desk is not None
        desk.pausing = order.message.payload
        self._consume(order)

    @property
    def pending(self) -> bool:
        """Whether there is a message that can be delivered once the run is settled."""
        desk = self._run.desk
        if desk is None:
            return False
        if any(not (self.ending and order.message.kind == "update") for order in desk.orders):
            return True
        return any(isinstance(op, LetterOperation) and op.key in desk.letters for op in self._waiting())

    def _addressee(self) -> LetterOperation | None:
        """The operation whose message came first. Drops the answers to interrupts that were given up."""
        desk = self._run.desk
        assert desk is not None
        best: LetterOperation | None = None
        for operation in self._waiting():
            if isinstance(operation, LetterOperation) and operation.key in desk.letters:
                first = desk.letters[operation.key][0].number
                if best is None or first < desk.letters[best.key][0].number:
                    best = operation
        if best is None and any(kind == "resume" for kind, _ in desk.letters):
            waiting = {op.key for op in self._waiting() if isinstance(op, LetterOperation)}
            for key in [key for key in desk.letters if key[0] == "resume" and key not in waiting]:
                for unread in desk.letters.pop(key):
                    self._consume(unread)
        return best

    def _waiting(self) -> list[CrewOperation]:
        return list(self._machine.waiting.values())  # type: ignore[arg-type]

    def _consume(self, unread: Unread) -> None:
        host = self._run.talking
        if host is not None and unread.number > 0:
            host.consume(self._run, unread.number)

    def _answer(self, operation: LetterOperation, unread: Unread) -> None:
        kind, payload, answer = operation.accept(self._crew, unread)  # type: ignore[arg-type]
        self._machine.on_delivered(operation)
        operation.stop()
        message = unread.message
        self._crew.deliver_entry(
            Entry(kind, operation.id, operation.kind, operation.name, self._machine.asked, message.id, payload)
        )
        self._consume(unread)
        if message.kind == "signal" and self._run.talking is not None:
            self._run.talking.event(self._run, "signal_received", signal=message.name, id=message.id)
        operation.deliver(kind, answer)

    def _update(self, unread: Unread) -> None:
        message = unread.message
        try:
            handler, args, kwargs = self._handler(message.name, message.payload)
            if self.cancelled:
                raise Refused(Failure("", "the run was cancelled and takes no more updates"))
            if self._run.full:
                raise Refused(Failure("", "the run's journal is full"))
            handler.variables.copy().run(handler.validate, args, kwargs)
        except Refused as refused:
            self._consume(unread)
            host, failure = self._run.talking, encode_failure(refused.failure)
            if host is not None:
                host.apply(self._run, Applied(message.id, "rejected", failure))
                host.event(
                    self._run, "update_rejected", update=message.name, id=message.id, error=refused.failure.message
                )
            return
        op = "u" + escaped(message.id)
        self._crew.mark_race()
        # Begun before anything is queued: what a handler that doesn't wait answers then travels with its entry.
        self._begin(handler, op, message.id, args, kwargs)
        self._crew.deliver_entry(
            Entry("update", op, "update", message.name, self._machine.asked, message.id, message.payload), raced=False
        )
        self._consume(unread)

    def _handler(self, name: str, payload: bytes) -> tuple[UpdateHandler, tuple[Any, ...], dict[str, Any]]:
        desk = self._run.desk
        updates = {} if desk is None else desk.updates
        handler = updates.get(name)
        if handler is None:
            known = ", ".join(sorted(updates)) or "none"
            raise Refused(Failure("", f"the run knows no update {name!r} (it has: {known})"))
        return handler, *handler.arguments(payload)

    def _begin(
        self, handler: UpdateHandler, op: str, update_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        work = self._work(handler, op, update_id, args, kwargs)
        self.handlers[op] = self._crew.make_root(work, op, handler.variables.copy())

    async def _work(
        self, handler: UpdateHandler, op: str, update_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        run = self._run
        error: BaseException | None = None
        data = b"null"
        try:
            value = handler.fn(*args, **kwargs)
            if hasattr(value, "__await__"):
                value = await value
            data, _ = handler.returns.encode(value, f"update {handler.name!r}")
        except BaseException as raised:
            if is_interrupt(raised):
                raise
            error = raised
            mismatch = first(raised, NonDeterminismError)
            if mismatch is not None:
                run.stop("paused", mismatch)
            if first(raised, Continued) is not None:
                error = PyrulaError("ctx.continue_as_new is asked for by the body, not by an update's handler")
        del self.handlers[op]
        if run.stopped is None:
            self._report(handler.name, op, update_id, data, error)
            self._crew.call_handler_gone()

    def _report(self, name: str, op: str, update_id: str, data: bytes, error: BaseException | None) -> None:
        """Once in the life of the run, also if the handler ends again on replay."""
        run, host = self._run, self._run.talking
        if host is None or self._machine.journal.note("applied", op) is not None:
            return
        run.write(Entry("applied", op, "update", name, None, None, None))
        if error is None:
            host.apply(run, Applied(update_id, "ok", data))
            host.event(run, "update_applied", update=name, id=update_id)
        else:
            failure = failure_of(error)
            host.apply(run, Applied(update_id, "error", encode_failure(failure)))
            host.event(run, "update_failed", update=name, id=update_id, error=failure.message)

    def replay(self, entry: Entry) -> None:
        """Delivers what the body doesn't ask for again. Raises NonDeterminismError."""
        if entry.kind == "update":
            try:
                handler, args, kwargs = self._handler(entry.name, entry.value or b"null")
            except Refused as refused:
                raise self._machine.unheard(entry, str(refused)) from refused
            self._begin(handler, entry.op, entry.message or "", args, kwargs)
        elif entry.kind == "cancel":
            self._cancel(loads(entry.value or b"[]"))
        else:
            self._abort()

    def _cancel(self, running: list[str]) -> None:
        """All tasks that wait at an operation are told, but those whose operation is under way."""
        self.cancelled = True
        for operation in self._waiting():
            if operation.id in running or operation.place is None:
                continue
            self._machine.on_gone(operation)
            operation.give_up()
            operation.place.told = True
            operation.deliver("error", self.cancellation())

    def cancellation(self) -> RunCancelled:
        return RunCancelled(f"run {self._run.run_id} was cancelled")

    def told(self, place: Place) -> bool:
        """Called when a task asks for an operation: whether that may be had. Not once after the cancel, unless the task
        is cleaning up."""
        if not self.cancelled or place.told:
            return True
        if is_cleanup() and not isinstance(sys.exc_info()[1], asyncio.CancelledError):
            place.told = True
        elif not is_cleanup():
            place.told = True
            return False
        return True

    def may_abort(self) -> bool:
        """Whether the run was cancelled and no task waits at an operation: only a cancellation of its own helps."""
        if not self.cancelled or self.aborted or self._run.in_place is not None:
            return False
        if any(operation.place is not None for operation in self._waiting()):
            return False
        return bool(self.handlers) if self.ending else self._crew.rooted

    def abort(self) -> None:
        """The run is settled and `may_abort`."""
        self._crew.deliver_entry(Entry("abort", "", "abort", "", self._machine.asked, None, b"null"))
        self._abort()

    def _abort(self) -> None:
        self.aborted = True
        if not self.ending:
            self._crew.cancel_root()
            return
        for task in list(self.handlers.values()):
            task.cancel()


def is_cleanup() -> bool:
    """Whether a RunCancelled or a CancelledError is being handled."""
    error = sys.exc_info()[1]
    if isinstance(error, asyncio.CancelledError):
        return True
    while error is not None:
        if _has_cancelled(error):
            return True
        error = error.__context__
    return False


def _has_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_has_cancelled(one) or isinstance(one, asyncio.CancelledError) for one in error.exceptions)
    return isinstance(error, RunCancelled)
