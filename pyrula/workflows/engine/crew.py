"""The full machinery: the tasks of one run, the operations they wait for, and what is delivered to them when.

Live and on replay alike, a delivery happens only when the run is settled, and one at a time. While entries are left
nothing executes: operations only wait. When the last entry is delivered and the run has settled again it goes live,
and what still waits is started in order of request.

A run gets a crew with its first task (the caller's task is then its root), or from the start if its workflow is known
to make tasks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any
from zlib import crc32

from pyrula.workflows.engine.operations import AnsweredOperation, CrewOperation, Promise
from pyrula.workflows.engine.patience import Patience
from pyrula.workflows.engine.places import Place, name_of
from pyrula.workflows.engine.run import Run, under_alarm
from pyrula.workflows.engine.settler import settler_of
from pyrula.workflows.engine.teardown import Teardown
from pyrula.workflows.engine.waits import Waits
from pyrula.workflows.errors import NonDeterminismError, PyrulaError
from pyrula.workflows.replay.journal import Entry, delivery
from pyrula.workflows.replay.mismatch import PYTHON

__all__ = ["Crew", "RunTask"]


class RunTask(asyncio.Task[Any]):
    """A task of a run. Its hash is the same in every process, and so is the order of sets of tasks."""

    def __init__(self, coro: Coroutine[Any, Any, Any], crew: "Crew", place: Place, **options: Any) -> None:
        self.crew = crew
        self.place = place
        self._hash = crew.salt + place.serial
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._hash


class Crew:
    """The tasks of `run`, and its operations."""

    def __init__(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        self.run = run
        self.loop = loop
        self.machine = run.machine or run.begin()
        self.machine.begin_waiting()
        self.salt = crc32(run.run_id.encode()) << 20
        self.live = not self.machine.left
        self.quiet = False
        self.root = Place("", 0)
        self.root.asked = self.machine.asked
        self.tasks: dict[int, RunTask] = {}
        self.executing: set[asyncio.Task[Any]] = set()
        self.teardown = Teardown(self)
        self._serial = 0
        self._outside = Place("outside", 0)
        self._completed: deque[tuple[CrewOperation, str, bytes, Any]] = deque()
        self._settler = settler_of(loop)
        self._patience = Patience(run, self._look_again)
        # Tasks that don't wait at an operation, by serial.
        self._elsewhere: dict[int, Place] = {}
        self._waits = Waits(run, self._elsewhere)
        run.crew = self
        run.straight = False
        self._settler.want(self)

    @classmethod
    def of(cls, run: Run) -> "Crew":
        """The run's crew; from now on the run has one."""
        if run.crew is not None:
            assert isinstance(run.crew, Crew)
            return run.crew
        crew = cls(run)
        drive = run.drive
        task = asyncio.current_task() if drive is None else drive.task
        assert task is not None
        crew.root.task = task
        crew.root.coro = run.body
        crew.root.alarms = run.alarms
        crew._elsewhere[0] = crew.root
        if drive is not None:
            drive.mark()
        if run.stopped is not None:
            crew.teardown.begin()
        return crew

    def start(self, root: Coroutine[Any, Any, None], variables: Context) -> None:
        """Start `root`, which awaits the body, as a task of its own."""
        self._enter(RunTask(root, self, self.root, loop=self.loop, context=variables, name=self.run.run_id))

    def make_task(self, coro: Any, **options: Any) -> RunTask:
        """A task that the body makes."""
        parent = self._place_of(asyncio.current_task()) or self._outside
        self._serial += 1
        place = Place(parent.next_child(name_of(coro)), self._serial)
        if parent.alarms:
            place.alarms = parent.armed()
        task = RunTask(coro, self, place, loop=self.loop, **options)
        self._enter(task)
        return task

    def _enter(self, task: RunTask) -> None:
        place = task.place
        place.task = task
        place.coro = task.get_coro()
        self.tasks[place.serial] = task
        self._elsewhere[place.serial] = place
        task.add_done_callback(self._on_task_end, context=self._settler.context)
        if self.run.stopped is not None:
            self.teardown.on_new(task)

    def _on_task_end(self, task: RunTask) -> None:
        serial = task.place.serial
        self.tasks.pop(serial, None)
        self._elsewhere.pop(serial, None)
        if self.run.stopped is not None:
            self.teardown.on_end()

    def _place_of(self, task: "asyncio.Task[Any] | None") -> Place | None:
        if type(task) is RunTask:
            return task.place if task.crew is self else None
        return self.root if task is not None and task is self.root.task else None

    def place(self) -> Place:
        """The place of the task that asks for an operation."""
        place = self._place_of(asyncio.current_task())
        if place is None:
            raise PyrulaError(
                f"run {self.run.run_id}: an operation on ctx was asked for by a task that is not its own; await it in "
                "the body or in tasks that the body starts"
            )
        return place

    def count(self) -> tuple[Place, str]:
        """Counts an operation: the place of its task and its id."""
        place = self.place()
        if place.alarms and place.armed():
            raise under_alarm(self.run)
        self.machine.asked += 1
        if not self.live:
            self._settler.want(self)
        elif self.quiet and self._several():
            self._loosen()
        return place, place.next_id()

    async def ask(self, operation: CrewOperation) -> Any:
        """Asks for an operation and waits for its delivery."""
        place, operation.id = self.count()
        return await self._wait(operation, place)

    async def hand_in(self, kind: str, name: str, op: str, answer: tuple[str, bytes, Any]) -> Any:
        """An operation that was executed on the straight path, and counted there: wait for its delivery."""
        return await self._wait(AnsweredOperation(kind, name, op, answer), self.place())

    async def _wait(self, operation: CrewOperation, place: Place) -> Any:
        operation.promise = promise = Promise(loop=self.loop)
        serial = place.serial
        self.begin(operation)
        waiting = self._elsewhere.pop(serial)
        try:
            return await promise
        finally:
            self._elsewhere[serial] = waiting
            if promise.cancelled():
                self.withdraw(operation)

    def on_alarm(self, alarm: asyncio.TimerHandle) -> None:
        """A timer was armed that would cancel the present task."""
        place = self._place_of(asyncio.current_task())
        if place is not None:
            place.alarms = [*(place.alarms or ()), alarm]

    def begin(self, operation: CrewOperation) -> None:
        """An operation waits from now on; nobody needs to await it."""
        self.machine.on_asked(operation)
        if self.live:
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

    def on_executing(self, task: "asyncio.Task[Any]") -> None:
        """A task of the engine executes an operation."""
        self.executing.add(task)
        task.add_done_callback(self._on_executed, context=self._settler.context)

    def _on_executed(self, task: "asyncio.Task[Any]") -> None:
        self.executing.discard(task)
        if not task.cancelled():
            task.exception()
        if self.run.stopped is not None:
            self.teardown.on_end()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer in the engine's context."""
        return self.loop.call_later(seconds, callback, context=self._settler.context)

    def on_busy(self, busy: asyncio.Handle) -> None:
        """Not settled, because of this handle among others."""
        if self._completed or self.machine.left:
            self._patience.on_busy(busy)

    def on_settled(self) -> bool:
        """Deliver one thing, or go live, or find out that nothing is to be delivered. True to be asked again."""
        if self.run.stopped is not None:
            return False
        self._patience.on_settled()
        if self.live:
            return self._deliver()
        if self.machine.left:
            return self._replay()
        self.live = True
        for operation in list(self.machine.waiting.values()):
            operation.start(self)  # type: ignore[attr-defined]
        return self._deliver()

    def _deliver(self) -> bool:
        machine = self.machine
        while self._completed:
            operation, kind, data, answer = self._completed.popleft()
            if machine.waiting.get(operation.id) is not operation:
                continue  # given up; it is as if it had never completed
            if machine.journal.loose_from is None and self._several() and self._waits.outside():
                self._loosen()
            machine.on_delivered(operation)
            self._write(delivery((kind, operation.id, operation.kind, operation.name, machine.asked, None, data)))
            self.quiet = False
            operation.deliver(kind, answer)
            return True
        self.quiet = True
        return False

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

    def _several(self) -> bool:
        """Whether the body has other tasks than its first."""
        return len(self.tasks) > (0 in self.tasks)

    def _loosen(self) -> None:
        """Plain awaits race with operations: from the next entry on, replay can't have the clock exact."""
        journal = self.machine.journal
        if journal.loose_from is None:
            journal.loose_from = len(journal.recorded)
            self._write(Entry("loose", "", "", "", None, None, None))

    def _write(self, entry: Entry) -> None:
        if self.machine.journal.note("head", "") is None:
            self.run.write(Entry("head", "", "", PYTHON, None, None, None))
        self.run.write(entry)

    def _look_again(self) -> None:
        self._settler.want(self)
