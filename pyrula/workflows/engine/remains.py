"""What a run that was stopped still has: threads, tasks that resist, and tasks that ask for more."""

import asyncio
from contextvars import Context
from typing import Any

__all__ = ["Remains", "Torn", "wake"]


class Torn(asyncio.CancelledError):
    """An operation was asked for in a run that is being torn down."""


class _Forever(asyncio.Future[None]):
    """Never resolved."""


class Remains:
    """Made when there is something to keep track of."""

    __slots__ = ("_left_behind", "_told", "rests", "threads")

    def __init__(self) -> None:
        self.threads: set[asyncio.Future[Any]] = set()
        self.rests: dict[str, float] = {}
        self._told: set[Any] = set()
        self._left_behind: dict[Any, asyncio.Future[None]] = {}

    def on_thread(self, done: "asyncio.Future[Any]") -> None:
        """A thread was started; `done` is resolved when it ends."""
        self.threads.add(done)
        done.add_done_callback(self.threads.discard, context=Context())

    async def refuse(self, text: str) -> None:
        """The first operation that a task asks for raises, the next one never returns: a loop around it can't spin."""
        task = asyncio.current_task()
        if task not in self._told:
            self._told.add(task)
            raise Torn(text)
        if task in self._left_behind:
            wake(self._left_behind[task])
        await _Forever(loop=asyncio.get_running_loop())

    def on_left_behind(self, task: "asyncio.Task[Any]", waits_on: object) -> None:
        """A task that resists. It counts as alive until it ends, or waits for ever and so does no more."""
        self._left_behind[task] = dead = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: wake(dead), context=Context())
        if isinstance(waits_on, _Forever) and not waits_on.done():
            dead.set_result(None)

    def alive(self) -> "tuple[asyncio.Future[Any], ...]":
        """Resolved when the threads and tasks that are alive now have ended."""
        return tuple(future for future in (*self.threads, *self._left_behind.values()) if not future.done())


def wake(waiter: "asyncio.Future[None]") -> None:
    """Resolves a future that may be done already."""
    if not waiter.done():
        waiter.set_result(None)
