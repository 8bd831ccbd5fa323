"""Many callers' requests as few round trips: one flight to a server at a time, and what is asked meanwhile goes in the
next.

That is group commit for the runs of a worker, and one pipeline for all waits of a client. What fails on its way is sent
again, since everything that goes through here may be sent twice. Requests about one shard keep their order: they take
one lane as long as any of them is under way, also when the shard moves to another node of a cluster meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.link import StoreFull
from pyrula.workflows.store.valkey.route import Again, Call, Route
from pyrula.workflows.store.valkey.scripts import Script
from pyrula.workflows.store.valkey.session import Attempts
from pyrula.workflows.store.valkey.topology import Topology

_FLIGHT_REQUESTS = 500
_FLIGHT_BYTES = 1 << 20


class _Request(Call):
    __slots__ = ("answer", "tag")

    def __init__(self, data: bytes, key: bytes | None, script: Script | None, answer: "asyncio.Future[Any]") -> None:
        super().__init__(data, key, script)
        self.answer = answer
        self.tag = b""

    def done(self, result: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def failed(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Lane:
    """What goes to one server, flight after flight. ``settled`` hears of every request that is answered."""

    def __init__(self, route: Route, patience: float, settled: Callable[[_Request], None] | None) -> None:
        self._route = route
        self._patience = patience
        self._settled = settled
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
        await self._route.drop(wait=True)

    def put(self, request: _Request, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(request)
        pump = self._pump
        if pump is None or pump.done() or pump.get_loop() is not loop:
            self._pump = loop.create_task(self._fly(), name="pyrula store")

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
            finally:
                if self._settled is not None:
                    for request in flight:
                        self._settled(request)

    async def _bring(self, flight: Sequence[_Request]) -> None:
        attempts = Attempts(self._patience)
        while flight:
            flight, trouble = self._sort(flight, await self._route.send(flight))
            if trouble is not None:
                await attempts.failed(trouble)

    def _sort(
        self, flight: Sequence[_Request], replies: Sequence[Any]
    ) -> tuple[list[_Request], StoreUnavailable | None]:
        """Hands the replies out. What must be sent again, and why. For want of memory nobody waits."""
        again: list[_Request] = []
        trouble: StoreUnavailable | None = None
        for request, reply in zip(flight, replies, strict=True):
            if not isinstance(reply, Exception):
                request.done(reply)
            elif isinstance(reply, StoreUnavailable) and not isinstance(reply, StoreFull):
                again.append(request)
                # what has to be waited for counts for more than what may go again at once
                if trouble is None or isinstance(trouble, Again):
                    trouble = reply
            else:
                request.failed(reply)
        return again, trouble


class Funnel:
    """One connection to each server for many callers."""

    def __init__(self, topology: Topology, timeout: float, patience: float) -> None:
        self._topology = topology
        self._timeout = timeout
        self._patience = patience
        self._lane = _Lane(Route(topology, timeout), patience, None)
        self._lanes: dict[str, _Lane] = {}
        self._under_way: dict[bytes, tuple[_Lane, int]] = {}

    async def close(self) -> None:
        lanes, self._lanes = self._lanes, {}
        for lane in (self._lane, *lanes.values()):
            await lane.close()
        self._under_way.clear()

    def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> "asyncio.Future[Any]":
        """A script's reply. An error reply is raised, translated."""
        return self._put(wire.evalsha(script, keys, arguments), keys[0], script)

    def run_packed(self, script: Script, key: bytes, data: bytes) -> "asyncio.Future[Any]":
        """The same of an EVALSHA that is packed already; one of its keys says where it goes."""
        return self._put(data, key, script)

    def ask(self, *command: bytes) -> "asyncio.Future[Any]":
        """A plain command's reply; its second word, if it has one, is its key."""
        return self._put(wire.command(*command), command[1] if len(command) > 1 else None, None)

    def _put(self, data: bytes, key: bytes | None, script: Script | None) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        request = _Request(data, key, script, answer)
        lane = self._lane
        if self._topology.clustered and key is not None:
            lane = self._lane_of(request, key)
        lane.put(request, loop)
        return answer

    def _lane_of(self, request: _Request, key: bytes) -> _Lane:
        tag = request.tag = key[: key.find(b"}") + 1] or key
        lane, count = self._under_way.get(tag, (None, 0))
        if lane is None:
            try:
                node = self._topology.owner(key).text
            except StoreUnavailable:
                node = ""
            lane = self._lanes.get(node)
            if lane is None:
                lane = self._lanes[node] = _Lane(Route(self._topology, self._timeout), self._patience, self._settle)
        self._under_way[tag] = lane, count + 1
        return lane

    def _settle(self, request: _Request) -> None:
        lane, count = self._under_way.get(request.tag, (None, 0))
        if lane is None or count == 1:
            self._under_way.pop(request.tag, None)
        else:
            self._under_way[request.tag] = lane, count - 1
