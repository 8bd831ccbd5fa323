"""Many callers' requests as few round trips: one flight at a time, and what is asked meanwhile goes in the next.

That is group commit for the runs of a worker, and one pipeline for all waits of a client. A flight that fails on its
way is sent again whole, since everything that goes through here may be sent twice; requests keep their order.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.link import Link, Meaning, meaning
from pyrula.workflows.store.valkey.scripts import Script
from pyrula.workflows.store.valkey.session import Attempts

_FLIGHT_REQUESTS = 500
_FLIGHT_BYTES = 1 << 20


class _Request:
    __slots__ = ("answer", "data", "script")

    def __init__(self, data: bytes, script: Script | None, answer: "asyncio.Future[Any]") -> None:
        self.data = data
        self.script = script
        self.answer = answer

    def done(self, result: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def failed(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Funnel:
    """One connection for many callers."""

    def __init__(self, link: Link, patience: float) -> None:
        self._link = link
        self._patience = patience
        self._waiting: deque[_Request] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def close(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None and not pump.done() and pump.get_loop() is asyncio.get_running_loop():
            pump.cancel()
            await asyncio.wait([pump])
        for request in self._waiting:
            request.failed(StoreUnavailable("the store was closed"))
        self._waiting.clear()
        await self._link.drop(wait=True)

    def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> "asyncio.Future[Any]":
        """A script's reply. An error reply is raised, translated."""
        return self._put(wire.evalsha(script, keys, arguments), script)

    def ask(self, *command: bytes) -> "asyncio.Future[Any]":
        """A plain command's reply."""
        return self._put(wire.command(*command), None)

    def _put(self, data: bytes, script: Script | None) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Request(data, script, answer))
        pump = self._pump
        if pump is None or pump.done() or pump.get_loop() is not loop:
            self._pump = loop.create_task(self._fly(), name="pyrula store")
        return answer

    async def _fly(self) -> None:
        while self._waiting:
            flight: list[_Request] = []
            size = 0
            while self._waiting and len(flight) < _FLIGHT_REQUESTS and size < _FLIGHT_BYTES:
                request = self._waiting.popleft()
                flight.append(request)
                size += len(request.data)
            try:
                await self._bring(flight)
            except Exception as error:  # noqa: BLE001 - whoever asked hears of it
                for request in flight:
                    request.failed(error)
            except BaseException:
                for request in flight:
                    request.failed(StoreUnavailable("the store was closed"))
                raise

    async def _bring(self, flight: list[_Request]) -> None:
        attempts = Attempts(self._patience)
        load: list[Script] = []
        while flight:
            loads = [wire.script_load(script) for script in load]
            try:
                replies = await self._link.exchange([*loads, *(r.data for r in flight)], len(loads) + len(flight))
                for reply in replies[: len(loads)]:
                    if isinstance(reply, Exception):
                        raise self._link.error(reply)
                flight, load, trouble = self._sort(flight, replies[len(loads) :])
                if trouble is not None:
                    raise trouble
            except StoreUnavailable as error:
                await self._link.drop()
                await attempts.failed(error)

    def _sort(
        self, flight: list[_Request], replies: Sequence[Any]
    ) -> tuple[list[_Request], list[Script], StoreUnavailable | None]:
        """Hands the replies out. What must be sent again, the scripts to load first, and what is wrong at present."""
        again: list[_Request] = []
        load: dict[bytes, Script] = {}
        trouble: StoreUnavailable | None = None
        for request, reply in zip(flight, replies, strict=True):
            if not isinstance(reply, Exception):
                request.done(reply)
                continue
            if request.script is not None and meaning(reply) is Meaning.LOAD:
                load[request.script.digest] = request.script
                again.append(request)
                continue
            error = self._link.error(reply)
            if isinstance(error, StoreUnavailable):
                trouble = error
                again.append(request)
            else:
                request.failed(error)
        return again, list(load.values()), trouble
