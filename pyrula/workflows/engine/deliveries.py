"""What the operations of a run with a crew get, and when: one delivery at a time, each when the run is settled.

Live and on replay alike. While entries are left nothing executes: operations only wait. When the last entry is
delivered and the run has settled again it goes live, and what still waits is started in order of request.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.engine.mail import Mail
from pyrula.workflows.engine.operations import AnsweredOperation, CrewOperation, Promise
from pyrula.workflows.engine.parking import idle_waits
from pyrula.workflows.engine.parts import DeskLike
from pyrula.workflows.engine.patience import Patience
from pyrula.workflows.engine.places import Place
from pyrula.workflows.engine.run import Run, under_alarm
from pyrula.workflows.engine.settler import settler_of
from pyrula.workflows.engine.waits import Waits
from pyrula.workflows.errors import NonDeterminismError
from pyrula.workflows.replay.journal import Entry, Fields
from pyrula.workflows.replay.mismatch import PYTHON
from pyrula.workflows.store.messages import Wait

__all__ = ["Deliveries"]


class Deliveries(ABC):
    """The operations of `run`; who its tasks are, its `Crew` knows.

    It is `live` once its journal has been replayed, and `quiet` while it is settled and there was nothing to deliver.
    """

    def __init__(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        self.run = run
        self.loop = loop
        self.machine = run.machine or run.begin()
        self.machine.begin_waiting()
        if run.desk is None and run.talking is not None:
            run.desk = Desk()
        self.live = not self.machine.left and not (run.desk is not None and run.desk.read_only)
        self.quiet = False
        self.root = Place("", 0)
        self.root.asked = self.machine.asked
        self.executing: set[asyncio.Task[Any]] = set()
        self._completed: deque[tuple[CrewOperation, str, bytes, Any]] = deque()
        self._settler = settler_of(loop)
        self._patience = Patience(run, self._look_again)
        # Tasks that don't wait at an operation, by serial.
        self._elsewhere: dict[int, Place] = {}
        self._waits = Waits(run, self._elsewhere)
        self.mail = Mail(self)
        if self.live:
            self.mail.heed_pause()

    @abstractmethod
    def place(self) -> Place:
        """The place of the task that asks for an operation."""

    @abstractmethod
    def make_root(self, coro: Coroutine[Any, Any, None], path: str, variables: Context) -> "asyncio.Task[Any]":
        """A task that is nobody's child: an update's handler."""

    @property
    @abstractmethod
    def rooted(self) -> bool:
        """Whether the body's first task can be cancelled just now."""

    @abstractmethod
    def cancel_root(self) -> None:
        """Cancels the body's first task."""

    @abstractmethod
    def call_handler_gone(self) -> None:
        """An update handler has ended."""

    @abstractmethod
    def on_executing(self, task: "asyncio.Task[Any]") -> None:
        """A task of the engine executes an operation."""

    @abstractmethod
    def _several(self) -> bool:
        """Whether the body has other tasks than its first."""

    @property
    def cancelled(self) -> bool:
        """Whether a cancel of the run was delivered."""
        return self.mail.cancelled

    def count(self) -> tuple[Place, str]:
        """Counts an operation: the place of its task and its id."""
        place = self.place()
        if place.alarms and place.armed():
            raise under_alarm(self.run)
        if not self.mail.told(place):
            raise self.mail.cancellation()
        self.machine.asked += 1
        if not self.live:
            self._settler.want(self)
        else:
            if self.quiet and self._several():
                self._loosen()
            if self.run.desk is not None:
                self._settler.want(self)
        return place, place.next_id()

    async def ask(self, operation: CrewOperation) -> Any:
        """Asks for an operation and waits for its delivery."""
        operation.place, operation.id = place, _ = self.count()
        return await self._wait(operation, place)

    async def take_over(self, operation: CrewOperation, op: str) -> Any:
        """An operation that was counted on the straight path, and not executed to its end there."""
        place = self.place()
        operation.place, operation.id = place, op
        return await self._wait(operation, place)

    async def hand_in(self, kind: str, name: str, op: str, answer: tuple[str, bytes, Any]) -> Any:
        """An operation that was executed on the straight path, and counted there: wait for its delivery."""
        return await self.take_over(AnsweredOperation(kind, name, op, answer), op)

    async def _wait(self, operation: CrewOperation, place: Place) -> Any:
        operation.promise = promise = Promise(loop=self.loop)
        serial = place.serial
        self.begin(operation)
        self._elsewhere.pop(serial, None)
        try:
            return await promise
        finally:
            self._elsewhere[serial] = place
            if promise.cancelled():
                self.withdraw(operation)

    def begin(self, operation: CrewOperation) -> None:
        """An operation waits from now on; nobody needs to await it."""
        self.machine.on_asked(operation)
        if self.live and (not self.pausing or isinstance(operation, AnsweredOperation)):
            operation.start(self)

    def withdraw(self, operation: CrewOperation) -> None:
        """The body no longer waits for it."""
        if self.machine.waiting.get(operation.id) is operation:
            self.machine.on_gone(operation)
            operation.give_up()

    def on_completed(self, operation: CrewOperation, kind: str, data: bytes, answer: Any) -> None:
        """It was executed; it is delivered when the run is settled."""
        if self.run.stopped is None:
            self._completed.append((operation, kind, data, answer))
            self._settler.want(self)

    def on_broken(self, error: BaseException) -> None:
        """An operation couldn't be executed for a reason of ours: the run can't go on."""
        self.run.stop("failed", error)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer in the engine's context."""
        return self.loop.call_later(seconds, callback, context=self._settler.context)

    def on_rest(self) -> None:
        """A step waits for its next attempt."""
        self._settler.want(self)

    def look(self) -> None:
        """There may be something to be delivered, or to be answered."""
        self._settler.want(self)

    @property
    def pausing(self) -> bool:
        """Whether nothing new is started, since the run is to be paused."""
        return self.run.desk is not None and self.run.desk.pausing is not None

    def on_busy(self, busy: asyncio.Handle) -> None:
        """Not settled, because of this handle among others."""
        desk = self.run.desk
        if self._completed or self.machine.left or (desk is not None and desk.orders):
            self._patience.on_busy(busy)

    def on_settled(self) -> bool:
        """Deliver one thing, or go live, or find out that nothing is to be delivered. True to be asked again."""
        if self.run.stopped is not None:
            return False
        self._patience.on_settled()
        desk = self.run.desk
        if desk is not None and desk.held:
            return False
        if self.live:
            return self._deliver()
        if self.machine.left:
            return self._replay()
        if desk is not None and desk.read_only:
            self.quiet = True
            desk.settle_questions()
            return False
        self.live = True
        self.mail.heed_pause()
        for operation in list(self.machine.waiting.values()):
            if not self.pausing or isinstance(operation, AnsweredOperation):
                operation.start(self)  # type: ignore[attr-defined]
        return self._deliver()

    def _deliver(self) -> bool:
        machine = self.machine
        if self.run.desk is not None and self.mail.deliver():
            self.quiet = False
            return True
        while self._completed:
            operation, kind, data, answer = self._completed.popleft()
            if machine.waiting.get(operation.id) is not operation:
                continue  # given up; it is as if it had never completed
            machine.on_delivered(operation)
            self.deliver_entry((kind, operation.id, operation.kind, operation.name, machine.asked, None, data))
            self.quiet = False
            operation.deliver(kind, answer)
            return True
        if self.mail.may_abort():
            self.quiet = False
            self.mail.abort()
            return True
        self.quiet = True
        if self.run.desk is not None:
            self._rest(self.run.desk)
        return False

    def deliver_entry(self, entry: Fields, raced: bool = True) -> None:
        """Writes the entry of something that is delivered now, which may have `raced` with a plain await."""
        if raced:
            self.mark_race()
        self._write(entry)

    def mark_race(self) -> None:
        """Notes it if a plain await races with what is delivered now."""
        if self.machine.journal.loose_from is None and self._several() and self._waits.outside():
            self._loosen()

    def _rest(self, desk: DeskLike) -> None:
        """There is nothing to be delivered: the time for questions, for a pause, and for leaving the memory."""
        desk.settle_questions()
        if desk.pausing is not None:
            busy = self.run.in_place is not None or any(op.under_way for op in self.waiting())
            if not busy and not self._waits.outside():
                self.run.stop("paused", desk.pausing)
            return
        host = self.run.talking
        if host is not None and self.idle_waits(host.park_after) is not None:
            host.idle(self.run)

    def waiting(self) -> list[CrewOperation]:
        """What was asked for and not delivered, in order of request."""
        return list(self.machine.waiting.values())  # type: ignore[arg-type]

    def idle_waits(self, park_after: float) -> tuple[Wait, ...] | None:
        """What the run waits for, if it stands still until one of these brings it on."""
        if not self.live or not self.quiet or self._completed or self.mail.pending:
            return None
        return idle_waits(self, self._waits, park_after)

    def _replay(self) -> bool:
        machine = self.machine
        try:
            due = machine.due()
            if due is None:
                self.quiet = True
                if not self._patience.may_wait(machine.cursor, self._waits):
                    raise machine.stuck()
                return False
            entry, operation = due
            machine.take_due(operation)
            if operation is None:
                self.quiet = False
                self.mail.replay(entry)
                return True
            kind, answer = self._answer(entry, operation)
        except NonDeterminismError as error:
            self.run.stop("paused", error)
            return False
        self.quiet = False
        operation.deliver(kind, answer)  # type: ignore[attr-defined]
        return True

    def _answer(self, entry: Entry, operation: Any) -> tuple[str, Any]:
        try:
            return "value", operation.replayed(entry)
        except Exception as error:
            if entry.kind == "value":
                raise self.machine.unreadable(entry, error) from error
            return entry.kind, error

    def _loosen(self) -> None:
        """Plain awaits race with operations: from the next entry on, replay can't have the clock exact."""
        journal = self.machine.journal
        if journal.loose_from is None:
            journal.loose_from = len(journal.recorded)
            self._write(Entry("loose", "", "", "", None, None, None))

    def _write(self, entry: Fields) -> None:
        if self.machine.journal.note("head", "") is None:
            self.run.write(Entry("head", "", "", PYTHON, None, None, None))
        self.run.write(entry)

    def _look_again(self) -> None:
        self._settler.want(self)
