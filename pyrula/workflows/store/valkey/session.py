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
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.link import Link, Meaning, StoreFull, meaning
from pyrula.workflows.store.valkey.scripts import Script

_T = TypeVar("_T")

_CONNECTIONS = 3
_FIRST_DELAY, _LAST_DELAY = 0.05, 1.0


class Attempts:
    """Counts the failures of one request against its patience, in seconds."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._delay = 0.0

    async def failed(self, error: StoreUnavailable) -> None:
        """Returns when it is time to send again; raises the error when there is no use in it any more."""
        if isinstance(error, StoreFull) or time.monotonic() + self._delay >= self._deadline:
            raise error
        await asyncio.sleep(self._delay * random.uniform(0.8, 1.2))
        self._delay = min(max(self._delay * 2, _FIRST_DELAY), _LAST_DELAY)


class Session:
    """All requests of a store but its flushes, on at most three connections."""

    def __init__(self, address: Address, timeout: float, patience: float) -> None:
        self._address = address
        self._timeout = timeout
        self._patience = patience
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._idle: list[Link] = []

    async def close(self) -> None:
        # a new semaphore: whoever comes next may do so in another loop
        self._room = asyncio.Semaphore(_CONNECTIONS)
        links, self._idle = self._idle, []
        for link in links:
            await link.drop(wait=True)

    async def persist(self, attempt: Callable[[Link], Awaitable[_T]]) -> _T:
        """Tries until it succeeds, fails for good, or the patience is used up."""
        attempts = Attempts(self._patience)
        async with self._link() as link:
            while True:
                try:
                    return await attempt(link)
                except StoreUnavailable as error:
                    # also after a reply: who is a replica today may be reached at another address tomorrow
                    await link.drop()
                    await attempts.failed(error)

    async def ask(self, *request: bytes) -> list[Any]:
        """Commands that may be repeated, in one pipeline. An error reply is raised."""

        async def attempt(link: Link) -> list[Any]:
            replies = await link.exchange(request, len(request))
            for reply in replies:
                if isinstance(reply, Exception):
                    raise link.error(reply)
            return replies

        return await self.persist(attempt)

    async def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        """One script, loaded if the server doesn't have it (any more)."""
        call = wire.evalsha(script, keys, arguments)

        async def attempt(link: Link) -> Any:
            (reply,) = await link.exchange([call], 1)
            while isinstance(reply, Exception):
                if meaning(reply) is not Meaning.LOAD:
                    raise link.error(reply)
                loaded, reply = await link.exchange([wire.script_load(script), call], 2)
                if isinstance(loaded, Exception):
                    raise link.error(loaded)
            return reply

        return await self.persist(attempt)

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[Link]:
        async with self._room:
            link = self._idle.pop() if self._idle else Link(self._address, self._timeout)
            try:
                yield link
            finally:
                self._idle.append(link)
