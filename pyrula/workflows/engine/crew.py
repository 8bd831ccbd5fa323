"""The full machinery of a run: its tasks, beside the operations they wait for.

A run gets a crew with its first task (the caller's task is then its root), or from the start if its workflow is known
to make tasks.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any
from zlib import crc32

from pyrula.workflows.engine.deliveries import Deliveries
from pyrula.workflows.engine.exits import Contained
from pyrula.workflows.engine.mail import is_cleanup
from pyrula.workflows.engine.places import Place, name_of
from pyrula.workflows.engine.remains import wake
from pyrula.workflows.engine.run import Run
from pyrula.workflows.engine.teardown import Teardown
from pyrula.workflows.errors import PyrulaError

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


class Crew(Deliveries):
    """The tasks of `run`, and its operations."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.salt = crc32(run.run_id.encode()) << 20
        self.tasks: dict[int, RunTask] = {}
        self.teardown = Teardown(self)
        # Whether the body itself made it necessary: then its next runs have one from the start.
        self.own = False
        self._serial = 0
        self._outside = Place("outside", 0)
        self._handlers_gone: asyncio.Future[None] | None = None
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
        if run.in_place is None:
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
        self.own = True
        self._serial += 1
        place = Place(parent.next_child(name_of(coro)), self._serial)
        place.told = parent.told or (self.mail.cancelled and is_cleanup())
        if parent.alarms:
            place.alarms = parent.armed()
        task = RunTask(Contained(coro), self, place, loop=self.loop, **options)
        self._enter(task)
        return task

    def make_root(self, coro: Coroutine[Any, Any, None], path: str, variables: Context) -> RunTask:
        """A task that is nobody's child: an update's handler."""
        self._serial += 1
        task = RunTask(coro, self, Place(path, self._serial), loop=self.loop, context=variables)
        self._enter(task)
        return task

    @property
    def rooted(self) -> bool:
        """Whether the body's first task can be cancelled: not between `start` and `finish` of its execution."""
        return self.run.drive is not None or type(self.root.task) is RunTask

    def cancel_root(self) -> None:
        """Cancels the body's first task."""
        if self.run.drive is not None:
            self.run.drive.abort()
        elif self.root.task is not None:
            self.root.task.cancel()

    def on_stop(self) -> None:
        """The run was stopped."""
        self.teardown.begin()
        self.call_handler_gone()

    def call_handler_gone(self) -> None:
        """An update handler has ended, or the run has."""
        if self._handlers_gone is not None:
            wake(self._handlers_gone)

    @property
    def handling(self) -> int:
        """How many updates were taken and have not ended."""
        return len(self.mail.handlers)

    async def handlers_ended(self) -> None:
        """The body has ended: until the updates that it took have, too. Then it is too late for more of them."""
        while self.mail.handlers and self.run.stopped is None:
            if not self.mail.ending:
                self.mail.ending, self.mail.aborted = True, False
                self._elsewhere.pop(0, None)
            self._handlers_gone = self.loop.create_future()
            self._settler.want(self)
            await self._handlers_gone

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
        elif self.run.desk is not None:
            self._settler.want(self)

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

    def on_alarm(self, alarm: asyncio.TimerHandle) -> None:
        """A timer was armed that would cancel the present task."""
        place = self._place_of(asyncio.current_task())
        if place is not None:
            place.alarms = [*(place.alarms or ()), alarm]

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

    def _several(self) -> bool:
        """Whether the body has other tasks than its first."""
        return len(self.tasks) > (0 in self.tasks)
