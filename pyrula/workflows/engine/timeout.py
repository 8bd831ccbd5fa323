"""`ctx.timeout`: a time-out whose end is journaled, so that a replay cancels at the same point."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyrula.workflows.engine.crew import Crew
from pyrula.workflows.engine.operations import SleepOperation
from pyrula.workflows.engine.run import Run

__all__ = ["Deadline", "Timeout"]


class _DeadlineOperation(SleepOperation):
    """Waited for by no task; its delivery calls `expire`."""

    __slots__ = ("_expire",)

    def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
        super().__init__("timeout", seconds, None)
        self._expire = expire

    def deliver(self, kind: str, answer: Any) -> None:
        self._expire()


class Deadline:
    """Calls `expire` when `seconds` have passed, unless it was lifted before."""

    __slots__ = ("_crew", "_operation", "text")

    def __init__(self, crew: Crew, seconds: float, expire: Callable[[], None]) -> None:
        self._crew = crew
        self._operation = _DeadlineOperation(seconds, expire)
        _, self._operation.id = crew.count()
        self.text = f"the time of {seconds:g} s is up ({self._operation})"
        crew.begin(self._operation)

    @classmethod
    async def set(cls, run: Run, seconds: float, expire: Callable[[], None]) -> "Deadline":
        """Asks for one; an operation like others."""
        await run.admit()
        return cls(Crew.of(run), seconds, expire)

    def lift(self) -> None:
        """It isn't wanted any more."""
        self._crew.withdraw(self._operation)


class Timeout:
    """An asynchronous context manager. Raises TimeoutError at its end if the time was up before."""

    __slots__ = ("_cancelling", "_deadline", "_expired", "_run", "_seconds", "_task")

    def __init__(self, run: Run, seconds: float) -> None:
        self._run = run
        self._seconds = seconds
        self._expired = False

    def expired(self) -> bool:
        """Whether the time was up before the end of the block."""
        return self._expired

    async def __aenter__(self) -> "Timeout":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._deadline = await Deadline.set(self._run, self._seconds, self._expire)
        return self

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel(self._deadline.text)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadline.lift()
        if not self._expired:
            return
        # The count alone doesn't tell: up to Python 3.12 a TaskGroup whose child fails leaves it one too high.
        alone = self._task.uncancel() <= self._cancelling
        if isinstance(error, asyncio.CancelledError) and (alone or error.args == (self._deadline.text,)):
            raise TimeoutError(self._deadline.text) from error
