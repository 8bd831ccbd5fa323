"""`ctx.as_completed`: tasks in the order in which they end, which is the same on replay."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from pyrula.workflows.engine.run import Run
from pyrula.workflows.engine.timeout import Deadline

__all__ = ["AsCompleted"]

R = TypeVar("R")


class AsCompleted(Generic[R]):
    """Gives tasks as they end, by `async for`; by a plain `for`, coroutines with their results, as asyncio does."""

    __slots__ = ("_deadline", "_ended", "_left", "_run", "_seconds")

    def __init__(self, run: Run, awaitables: Iterable[Awaitable[R]], seconds: float | None) -> None:
        # In the order given: a set of coroutines has another order in every process.
        distinct = list(dict.fromkeys(awaitables))
        self._run = run
        self._left = len(distinct)
        self._seconds = seconds
        self._deadline: Deadline | None = None
        self._ended: asyncio.Queue[asyncio.Future[R] | None] = asyncio.Queue()
        for awaitable in distinct:
            asyncio.ensure_future(awaitable).add_done_callback(self._ended.put_nowait)

    def __aiter__(self) -> "AsyncIterator[asyncio.Future[R]]":
        return self

    async def __anext__(self) -> "asyncio.Future[R]":
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return await self._next()

    def __iter__(self) -> "Iterator[Coroutine[Any, Any, R]]":
        while self._left:
            self._left -= 1
            yield self._result()

    async def _result(self) -> R:
        return (await self._next()).result()

    async def _next(self) -> "asyncio.Future[R]":
        if self._seconds is not None and self._deadline is None:
            self._deadline = await Deadline.set(self._run, self._seconds, self._expire)
        task = await self._ended.get()
        if task is None:
            self._expire()  # for whoever asks next
            raise TimeoutError(f"ctx.as_completed(timeout={self._seconds:g}): the time is up")
        if not self._left and self._deadline is not None:
            self._deadline.lift()
        return task

    def _expire(self) -> None:
        self._ended.put_nowait(None)
