"""Few connections for many callers, and when a request is sent again.

A request that fails on its way is sent again at once (a connection may just have grown stale), then with growing
delays, until its patience is used up. That is safe because every script answers a second sending as it did the first.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.link import StoreFull
from pyrula.workflows.store.valkey.route import Again, Call, Route
from pyrula.workflows.store.valkey.scripts import Script
from pyrula.workflows.store.valkey.topology import Topology

_T = TypeVar("_T")

_CONNECTIONS = 3
_FIRST_DELAY, _LAST_DELAY = 0.05, 1.0
# Scripts and slots are found within two or three; whoever is sent about for longer waits.
_AT_ONCE = 8


class Attempts:
    """Counts the failures of one request against its patience, in seconds."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._delay = 0.0
        self._at_once = _AT_ONCE

    async def failed(self, error: StoreUnavailable) -> None:
        """Returns when it is time to send again; raises the error when there is no use in it any more."""
        if isinstance(error, Again) and self._at_once:
            self._at_once -= 1
            return
        if isinstance(error, StoreFull) or time.monotonic() + self._delay >= self._deadline:
            raise error
        await asyncio.sleep(self._delay * random.uniform(0.8, 1.2))
        self._delay = min(max(self._delay * 2, _FIRST_DELAY), _LAST_DELAY)


class Session:
    """All requests of a store but its flushes, on at most three connections to a node."""

    def __init__(self, topology: Topology, timeout: float, patience: float) -> None:
        self._topology = topology
        self._timeout = timeout
        self._patience = patience
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Route] = []

    async def close(self) -> None:
        routes, self._idle = self._idle, []
        for route in routes:
            await route.drop(wait=True)

    async def persist(self, attempt: Callable[[Route], Awaitable[_T]]) -> _T:
        """Tries until it succeeds, fails for good, or the patience is used up."""
        attempts = Attempts(self._patience)
        async with self._route() as route:
            while True:
                try:
                    return await attempt(route)
                except StoreUnavailable as error:
                    await attempts.failed(error)

    async def ask(self, *commands: Sequence[bytes]) -> list[Any]:
        """Commands that may be repeated, in one pipeline a node; each has a key as its second word. An error reply is
        raised."""
        return await self._send([Call(wire.command(*words), words[1]) for words in commands])

    async def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        """One script, loaded if the server doesn't have it (any more)."""
        (answer,) = await self._send([Call(wire.evalsha(script, keys, arguments), keys[0], script)])
        return answer

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        async def attempt(route: Route) -> list[Any]:
            answers = await route.send(calls)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

        return await self.persist(attempt)

    @asynccontextmanager
    async def _route(self) -> AsyncIterator[Route]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # the former one is over, with all that waited in it
            self._loop, self._room = loop, asyncio.Semaphore(_CONNECTIONS)
        async with self._room:
            route = self._idle.pop() if self._idle else Route(self._topology, self._timeout)
            try:
                yield route
            finally:
                self._idle.append(route)
