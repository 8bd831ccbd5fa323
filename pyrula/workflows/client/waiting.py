"""Waiting for something of a run to be there.

`Waits` is how a client waits, and the seam for clients whose runs are driven in their own process: those drive the run
in `until` instead of waiting for a worker. `Polling` waits for workers elsewhere. Wake-ups by the store are hints, so
it polls too: one ticker wakes all waits of the client at once, and their reads share a round trip.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from pyrula.workflows.store.runs import RunSender

__all__ = ["Polling", "Waits"]

T = TypeVar("T")

_GRACE: Final = 1.0
"""Seconds that a store may take for the last read, after the time is over."""


class Waits(Protocol):
    """How a client waits for a run that somebody executes."""

    async def until(
        self,
        run_id: str,
        read: Callable[[], Awaitable[T | None]],
        seconds: float | None,
        *,
        woken: asyncio.Event | None = None,
    ) -> T | None:
        """What `read` gives once it isn't None; None when the time is over. At least one read is made.

        `read` is called whenever the run may have changed, and when `woken` is set. What it raises is raised."""

    async def sent(self, run_id: str) -> None:
        """Called after the client has submitted the run or sent it a message."""


class Polling:
    """Waits for what workers do. Uses the loop it is called in; holds nothing while nobody waits."""

    def __init__(self, store: RunSender, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._waiting: set[asyncio.Event] = set()
        self._ticker: asyncio.TimerHandle | None = None

    async def sent(self, run_id: str) -> None:
        """Workers hear of it from the store."""

    async def until(
        self,
        run_id: str,
        read: Callable[[], Awaitable[T | None]],
        seconds: float | None,
        *,
        woken: asyncio.Event | None = None,
    ) -> T | None:
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        event = woken or asyncio.Event()
        limit = asyncio.timeout_at(None if deadline is None else deadline + _GRACE)
        try:
            async with limit:
                found = await read()
                if found is not None:
                    return found
                subscription = self._store.on_change(run_id, event.set)
                self._join(event)
                try:
                    return await self._read_on(event, read, deadline)
                finally:
                    self._leave(event)
                    subscription.close()
        except TimeoutError:
            if not limit.expired():
                raise
            return None

    async def _read_on(
        self, event: asyncio.Event, read: Callable[[], Awaitable[T | None]], deadline: float | None
    ) -> T | None:
        # the first time at once: it may have changed since it was read, before this listened
        late = False
        while True:
            event.clear()
            found = await read()
            if found is not None or late:
                return found
            late = not await _set_in_time(event, deadline)

    def _join(self, event: asyncio.Event) -> None:
        self._waiting.add(event)
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def _leave(self, event: asyncio.Event) -> None:
        self._waiting.discard(event)
        if not self._waiting and self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _tick(self) -> None:
        for event in self._waiting:
            event.set()
        self._ticker = asyncio.get_running_loop().call_later(self._interval, self._tick)


async def _set_in_time(event: asyncio.Event, deadline: float | None) -> bool:
    try:
        async with asyncio.timeout_at(deadline):
            await event.wait()
    except TimeoutError:
        return False
    return True
