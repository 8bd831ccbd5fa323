"""`result(on_interrupt=)`: a program's own function answers the interrupts of the run it waits for.

Rules: each interrupt is shown once, as soon as it is seen open, and several at a time if the run has raised several.
Whoever answers first wins; an answer that comes too late is dropped. What the function raises, `result` raises.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from pyrula.workflows.codec import loads
from pyrula.workflows.store.messages import Interrupt
from pyrula.workflows.store.payloads import InterruptAnswer
from pyrula.workflows.store.refusals import RunNotWaitingError

__all__ = ["OnInterrupt", "OpenInterrupt", "Reception", "Resume"]


Resume: TypeAlias = Callable[[str, Any, str], Awaitable[None]]
"""Sends action and value to the interrupt of a wait id."""


class OpenInterrupt:
    """An interrupt that a run waits on. `payload` is what the body gave `ctx.interrupt`."""

    __slots__ = ("_resume", "payload", "run_id", "wait_id")

    def __init__(self, run_id: str, wait_id: str, payload: Any, resume: Resume) -> None:
        self.run_id = run_id
        self.wait_id = wait_id
        self.payload = payload
        self._resume = resume

    def __repr__(self) -> str:
        return f"<interrupt {self.wait_id!r} of run {self.run_id}>"

    async def resume(self, action: str, value: Any = None) -> None:
        """Answer it. RunNotWaitingError if somebody has."""
        await self._resume(action, value, self.wait_id)


_Given: TypeAlias = InterruptAnswer | tuple[str, Any] | str | None

OnInterrupt: TypeAlias = Callable[[OpenInterrupt], _Given | Awaitable[_Given]]
"""Gives the answer: (action, value), an InterruptAnswer or an action alone. None leaves it open, or was answered."""


class Reception:
    """Shows open interrupts to the function, in tasks of its own; `done` is set when one of them ends."""

    def __init__(self, run_id: str, function: OnInterrupt, resume: Resume) -> None:
        self.done = asyncio.Event()
        self._run_id = run_id
        self._function = function
        self._resume = resume
        self._shown: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def show(self, interrupts: Iterable[Interrupt]) -> None:
        """Starts on those that are new. Raises what the function raised for an earlier one."""
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()
        for interrupt in interrupts:
            if interrupt.wait_id not in self._shown:
                self._shown.add(interrupt.wait_id)
                shown = OpenInterrupt(self._run_id, interrupt.wait_id, loads(interrupt.payload), self._resume)
                task = asyncio.create_task(self._answer(shown), name=f"pyrula interrupt {interrupt.wait_id}")
                task.add_done_callback(lambda _: self.done.set())
                self._tasks.add(task)

    async def close(self) -> None:
        """The run has ended, or nobody waits for it any more: no answer is needed."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            # taken note of, or asyncio would complain; the result that was waited for is there and counts
            if not task.cancelled():
                task.exception()

    async def _answer(self, interrupt: OpenInterrupt) -> None:
        given = self._function(interrupt)
        answer = await given if inspect.isawaitable(given) else given
        if answer is None:
            return
        action, value = (answer, None) if isinstance(answer, str) else _pair(answer)
        # somebody else may have been first, or the run has ended
        with contextlib.suppress(RunNotWaitingError):
            await interrupt.resume(action, value)


def _pair(answer: object) -> tuple[str, Any]:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str):
        return answer
    raise TypeError(f"on_interrupt must give (action, value), an action or None, not {answer!r:.100}")
