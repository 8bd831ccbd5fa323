"""Ends the tasks of a run that is over: cancelled, youngest first, in three rounds; what resists is left behind.

Closing a coroutine or forgetting its task would run its `finally` blocks in worse ways. An operation that is asked for
meanwhile raises, so nothing acts for the run any more.
"""

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import Any, Protocol

from pyrula.workflows.engine.drive import ROUND_SECONDS, ROUNDS
from pyrula.workflows.engine.leftovers import abandon
from pyrula.workflows.engine.remains import wake
from pyrula.workflows.engine.run import Run

__all__ = ["Teardown"]


class Tasks(Protocol):
    """What is to be ended."""

    run: Run
    loop: asyncio.AbstractEventLoop
    tasks: dict[int, Any]
    executing: "set[asyncio.Task[Any]]"


class Teardown:
    """Begun once. `gone` when all tasks have ended or been left behind."""

    __slots__ = ("_crew", "_rounds", "_timer", "_waiters", "begun", "gone")

    def __init__(self, crew: Tasks) -> None:
        self._crew = crew
        self._rounds = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.begun = False
        self.gone = False

    def begin(self) -> None:
        """Start ending the tasks."""
        if not self.begun:
            self.begun = True
            self._round()

    def on_new(self, task: "asyncio.Task[Any]") -> None:
        """A task was made: while it is under way it has until the next round, like the others."""
        if self.gone:
            task.cancel()

    def on_end(self) -> None:
        """A task has ended, or the body in its caller's task."""
        if self.begun and not self.gone and not self._alive():
            self._finish()

    def _alive(self) -> bool:
        crew = self._crew
        return bool(crew.tasks or crew.executing or crew.run.drive is not None)

    async def wait(self) -> None:
        """Until `gone`."""
        self.on_end()
        if not self.gone:
            waiter: asyncio.Future[None] = self._crew.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _round(self) -> None:
        crew = self._crew
        if not self._alive():
            self._finish()
            return
        if self._rounds == ROUNDS:
            self._leave_behind([*crew.tasks.values(), *crew.executing])
            return
        self._rounds += 1
        present = asyncio.current_task()  # the body at its end, or one that asked for what it mustn't
        for task in sorted(crew.tasks.values(), key=lambda task: -task.place.serial):
            if task is not present or self._rounds > 1:
                task.cancel()
        if self._rounds > 1:  # in the first one an operation is given up by its task, which cancels it
            for task in list(crew.executing):
                task.cancel()
        self._timer = crew.loop.call_later(ROUND_SECONDS, self._round, context=Context())

    def _leave_behind(self, alive: "Iterable[asyncio.Task[Any]]") -> None:
        for task in alive:
            if not task.done():
                waits_on = getattr(task, "_fut_waiter", None)
                reason = f"a task of it still runs after it was asked to end {ROUNDS} times"
                abandon(self._crew.run, task, waits_on, reason)
        self._finish()

    def _finish(self) -> None:
        self.gone = True
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters:
            wake(waiter)
