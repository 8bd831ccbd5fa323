"""One run in a worker's hands: its lease, what is to be written about it, and the messages it gets.

Rules: changes of a lease are numbered, and one is on its way at a time; what is queued meanwhile goes whole into the
next. Everything here happens outside of the run's own context, so that the engine can tell when the run is settled.
Once the lease is lost nothing is written, and the body is cut.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.client.trigger import feed
from pyrula.workflows.clock import Clock
from pyrula.workflows.codec import loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.execution import ChildRequest, Execution, Output
from pyrula.workflows.replay.journal import Fields, encode_row
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.messages import Applied, Change, Child, End, Interrupt, Parent, Reply, Unread, Wait, wakes
from pyrula.workflows.store.runs import ClaimedRun, Finished, RunStore, Submission
from pyrula.workflows.worker.patience import ask_until_answered
from pyrula.workflows.worker.queued import Queued

__all__ = ["HeldRun", "Surroundings"]

log = logging.getLogger("pyrula.worker")

T = TypeVar("T")

# Events alone wait so long for something to travel with.
_EVENTS_SECONDS: Final = 0.5


class Surroundings(Protocol):
    """What a held run needs of who hosts it."""

    store: RunStore
    clock: Clock
    park_after: float
    sends: bool

    def on_event(self, run_id: str, workflow: str, type: str, at: float, data: dict[str, Any]) -> None:  # noqa: A002
        """Something happened to the run."""

    def on_parked(self, run_id: str, waits: Sequence[Wait]) -> None:
        """A run was parked."""

    def on_outputs(self, run_id: str, outputs: Sequence[Output]) -> None:
        """What a run has sent that is about to end, where runs can send."""


class HeldRun:
    """The engine's host of one run. `leaving_since`: when its last change first left, in monotonic seconds."""

    def __init__(self, claimed: ClaimedRun, around: Surroundings) -> None:
        self.claimed = claimed
        self.lease = claimed.lease
        self.execution: Execution | None = None
        self.deadline: float | None = None
        self.parked = False
        self.way_out: str | None = None
        self.since = around.clock.monotonic()
        self.leaving_since = self.since
        self.lost: Exception | None = None
        self._around = around
        self._store = around.store
        self._number = 0
        self._queued = Queued()
        self._leaving: Queued | None = None
        self._starting: asyncio.Handle | None = None
        self._lazy: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._parking: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self._still = False
        self._unread: dict[int, Unread] = {unread.number: unread for unread in claimed.messages}
        self._given = 0
        self._open = {interrupt.wait_id for interrupt in claimed.interrupts}

    # what the engine calls

    @property
    def park_after(self) -> float:
        return self._around.park_after

    @property
    def sends(self) -> bool:
        return self._around.sends

    def append(self, run: Any, index: int, entry: Fields | None) -> None:
        self._queued.rows.append((index, b"" if entry is None else encode_row(entry, None)))
        self._touch()

    def consume(self, run: Any, number: int) -> None:
        self._unread.pop(number, None)
        if number > 0:
            self._queued.consumed.append(number)
            self._touch()

    def apply(self, run: Any, applied: Applied) -> None:
        self._queued.applied.append(applied)
        self._touch()

    def open(self, run: Any, interrupt: Interrupt) -> None:
        self._open.add(interrupt.wait_id)
        self._queued.opened.append(interrupt)
        self._touch()

    def reopen(self, run: Any, interrupt: Interrupt) -> None:
        unread = (unread.message for unread in self._unread.values())
        answered = any(message.kind == "resume" and message.name == interrupt.wait_id for message in unread)
        if interrupt.wait_id not in self._open and not answered:
            self.open(run, interrupt)

    def close(self, run: Any, wait_id: str) -> None:
        if wait_id in self._open:
            self._open.discard(wait_id)
            self._queued.closed.append(wait_id)
            self._touch()

    def adopt(self, run: Any, child: Child) -> None:
        self._queued.children.append(child)
        self._touch()

    def event(self, run: Any, type: str, **data: Any) -> None:  # noqa: A002 - the public name
        at = self._store.now()
        self._queued.events.append(encode_event(type, at, **data))
        self._around.on_event(self.lease.run_id, self.claimed.name, type, at, data)
        if self._lazy is None:
            loop = asyncio.get_running_loop()
            self._lazy = loop.call_later(_EVENTS_SECONDS, self._start, context=Context())

    def durable(self, run: Any) -> Awaitable[None] | None:
        if self.lost is not None:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.set_exception(self.lost)
            gone.exception()
            return gone
        queued = self._queued if self._queued.urgent else self._leaving
        if queued is None or not queued.urgent:
            return None
        if queued.written is None:
            queued.written = asyncio.get_running_loop().create_future()
        return queued.written

    def record(self, run: Any) -> object | None:
        return None

    def tenant(self, run: Any) -> tuple[str, Any]:
        return self.claimed.owner, loads(self.claimed.metadata)

    def new_child_id(self, run: Any, name: str, stamp: Stamp | None) -> str:
        return self._store.new_run_id(name=name, parent=self.lease.run_id, stamp=stamp)

    async def submit(self, run: Any, request: ChildRequest) -> None:
        submission = Submission(
            request.run_id,
            request.name,
            request.params,
            version=request.version,
            owner=self.claimed.owner,
            parent=Parent(self.lease.run_id, request.run_id),
            stamp=request.stamp,
        )
        await ask_until_answered(lambda: self._store.submit(submission))

    async def trigger(self, run: Any, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
        owned = self._owned(event)
        return await ask_until_answered(lambda: feed(self._store, definition, owned))

    def triggered(self, run: Any, event: TriggerEvent) -> None:
        self._queued.fed.append(self._owned(event))

    def _owned(self, event: TriggerEvent) -> TriggerEvent:
        return replace(event, owner=self.claimed.owner)

    def idle(self, run: Any) -> None:
        if self._parking is None and self.lost is None:
            asyncio.get_running_loop().call_soon(self._start_parking, context=Context())

    # messages

    @property
    def seen(self) -> int:
        """The highest number of a message that the run has been given."""
        return self._given

    @property
    def latest(self) -> int:
        """The highest number of a message that has come here."""
        return max(self._given, max(self._unread, default=0))

    async def make_sure(self, sent: float, patience: float) -> None:
        """Before it starts: if what claimed it left longer ago, this process was suspended or cut off: others may have
        taken the run for a dead worker's. Raises LeaseLost."""
        clock = self._around.clock
        while clock.monotonic() - sent > patience:
            sent = clock.monotonic()
            self.receive(await ask_until_answered(lambda: self._store.unread(self.lease, self.latest)))

    def hand_over(self, execution: Execution) -> None:
        """From now on this is what executes the run: a first or a further round."""
        self.execution = execution
        self._still = False
        if self._queued.urgent:
            self._touch()
        for unread in [self._unread[number] for number in sorted(self._unread)]:
            self._given = max(self._given, unread.number)
            execution.deliver(unread)

    def receive(self, messages: Iterable[Unread]) -> None:
        """Messages of the run, in order, perhaps for the second time."""
        for unread in messages:
            if unread.number > self._given and unread.number not in self._unread:
                self._unread[unread.number] = unread
        self._deliver()

    def _deliver(self) -> None:
        # while it stands still nothing is given to it: a park says which messages the body has had
        if self.execution is None or self._still:
            return
        for number in sorted(number for number in self._unread if number > self._given):
            self._given = number
            self.execution.deliver(self._unread[number])

    def take_cancel(self) -> bool:
        """Whether a cancel is unread; then it counts as read."""
        for number, unread in self._unread.items():
            if unread.message.kind == "cancel":
                self.consume(None, number)
                return True
        return False

    def look_for_messages(self) -> None:
        """There may be some in the store."""
        self._read_again = True
        if self._reading is None and self.lost is None and not self.parked:
            loop = asyncio.get_running_loop()
            self._reading = Context().run(loop.create_task, self._read(), name=f"messages of {self.lease.run_id}")

    async def _read(self) -> None:
        try:
            while self._read_again and self.lost is None and not self.parked:
                self._read_again = False
                latest = self.latest
                self.receive(await ask_until_answered(lambda: self._store.unread(self.lease, latest)))  # noqa: B023
        except LeaseLost as error:
            # that of a run which has just been parked or ended is no loss
            if not (self.parked or self._still):
                self.lose(error)
        finally:
            self._reading = None

    # writing

    def _touch(self) -> None:
        if self._starting is None and self._writing is None and not self._still:
            self._starting = asyncio.get_running_loop().call_soon(self._start, context=Context())

    def _start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None
        if self._writing is None and not self._still and self.lost is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.create_task(self._write(), name=f"journal of {self.lease.run_id}")

    async def _write(self) -> None:
        try:
            while not self._still and (self._queued.urgent or self._queued.events):
                reply = await self._travel(lambda change: self._store.append(self.lease, change))
                self.receive(reply.messages)
        except LeaseLost as error:
            self.lose(error)
        except Exception as error:
            log.exception("run %s (%s): its journal can't be written", self.lease.run_id, self.claimed.name)
            self.lose(error)
        finally:
            self._writing = None

    async def _travel(self, send: Callable[[Change], Awaitable[T]], **more: Any) -> T:
        """Send all that is queued, until the store has taken it."""
        self._number += 1
        leaving, self._queued = self._queued, Queued()
        change = leaving.change(self._number, self._given, **more)
        self._leaving = leaving
        try:
            answer = await ask_until_answered(lambda: send(change))
        except Exception as error:
            leaving.settle(error)
            raise
        finally:
            self._leaving = None
        leaving.settle(None)
        for event in leaving.fed:
            self._store.forget_event(event)
        return answer

    def lose(self, error: Exception) -> None:
        """Another worker has the run, or will: the body is cut, nothing is written any more."""
        if self.lost is None:
            self.lost = error
            self._queued.settle(error)
            if self.execution is not None:
                self.execution.cut()

    async def _quiet(self) -> None:
        """Until nothing is on its way."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    # letting go

    def _start_parking(self) -> None:
        if self._parking is None and self.lost is None and not self._still:
            loop = asyncio.get_running_loop()
            self._parking = loop.create_task(self._park(), name=f"parking {self.lease.run_id}")

    async def _park(self) -> None:
        execution = self.execution
        assert execution is not None
        try:
            await self._quiet()
            waits = None if self.lost is not None else execution.hold()
            if waits is None:
                return
            if self._has_news(waits):
                execution.go_on()
                return
            reply = await self.park(waits)
            if reply.parked:
                execution.parked()
                return
            self.receive(reply.messages)
            execution.go_on()
        except LeaseLost as error:
            self.lose(error)
        except Exception as error:
            log.exception("run %s (%s) can't be parked", self.lease.run_id, self.claimed.name)
            self.lose(error)
        finally:
            self._parking = None

    def _has_news(self, waits: Sequence[Wait]) -> bool:
        """Whether the run has been given what it waits for, and has not come to take it: the store would think that
        it was taken."""
        given = (unread.message for number, unread in self._unread.items() if number <= self._given)
        return any(wakes(waits, message.kind, message.name) for message in given)

    async def park(self, waits: Sequence[Wait]) -> Reply:
        """Park the run, which stands still. If it can't be, it may move again."""
        self._still = True
        self.event(None, "waiting", waits=[wait._asdict() for wait in waits])
        if self.deadline is not None:
            # the run's own time-out, behind its waits: the first of them names its status
            waits = (*waits, Wait("sleep", "", self.deadline))
        reply = await self._travel(lambda change: self._store.park(self.lease, change, waits))
        if reply.parked:
            self.parked, self.way_out = True, "parked"
            self._around.on_parked(self.lease.run_id, waits)
        else:
            self._still = False
            if self._queued.urgent:
                self._touch()
        return reply

    async def write(self, *, alone: bool) -> None:
        """Write what is queued before anything else happens."""
        await self._quiet()
        await self._travel(lambda change: self._store.append(self.lease, change), alone=alone)

    async def pause(self, reason: bytes, *, failed: bool = False) -> None:
        await self._last(lambda change: self._store.pause(self.lease, change, reason, failed=failed))
        self.way_out = "paused"

    async def release(self) -> None:
        await self._last(lambda change: self._store.release(self.lease, change))
        self.way_out = "released"

    async def finish(self, end: End) -> Finished:
        finished = await self._last(lambda change: self._store.finish(self.lease, change, end))
        self.way_out = finished.status
        return finished

    async def _last(self, send: Callable[[Change], Awaitable[T]]) -> T:
        await self.stand_still()
        if self.lost is not None:
            raise self.lost
        self.leaving_since = self._around.clock.monotonic()
        return await self._travel(send)

    async def stand_still(self) -> None:
        """The body has ended: nothing is begun any more, and what was begun is waited for."""
        while self._parking is not None or self._writing is not None:
            await asyncio.wait([task for task in (self._parking, self._writing) if task is not None])
        self._still = True

    def note_attempt(self, attempt: int) -> None:
        self._queued.attempt = attempt
        self._touch()

    def queue_rows(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Rows as they are stored."""
        self._queued.rows.extend(rows)
        self._touch()

    async def close_down(self) -> None:
        """End what is still under way for this run."""
        for handle in (self._starting, self._lazy):
            if handle is not None:
                handle.cancel()
        tasks = [task for task in (self._parking, self._writing, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
