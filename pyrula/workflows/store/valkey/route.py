"""Requests to whoever has their keys: each to its node in one pipeline a node, the answers in the order asked.

Rules: one round a call; who calls sends again what was answered with StoreUnavailable, at once if it is `Again` (the
node has said where else, or its scripts are loaded first), later if not. Nothing else is sent again. A script is loaded
on the node that doesn't know it. Requests with keys in one slot go in the order given, on one connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError, MovedError, TryAgainError

from pyrula.workflows.errors import ConfigurationError, PyrulaError, StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.link import Link, Meaning, meaning
from pyrula.workflows.store.valkey.scripts import Script
from pyrula.workflows.store.valkey.topology import Topology

_ASKING = wire.command(b"ASKING")


class Again(StoreUnavailable):
    """To be sent again at once: this time it will be understood."""


class Call:
    """A request: a command packed, a key that says where it goes (None: anywhere), its script if it runs one."""

    __slots__ = ("ask", "data", "key", "script")

    def __init__(self, data: bytes, key: bytes | None, script: Script | None = None) -> None:
        self.data = data
        self.key = key
        self.script = script
        self.ask: Address | None = None
        """A node that takes the slot over and wants to be asked this once."""


class _Node:
    __slots__ = ("link", "missing")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.missing: dict[bytes, Script] = {}


class Route:
    """One connection to each node that is needed. One sending at a time."""

    def __init__(self, topology: Topology, timeout: float, connect: Callable[[Address], Link] | None = None) -> None:
        self._topology = topology
        self._connect = connect or (lambda address: Link(address, timeout, synced=topology.synced))
        self._waitaof = wire.command(b"WAITAOF", b"1", b"0", b"%d" % max(1, 800 * timeout))
        self._nodes: dict[Address, _Node] = {}

    async def drop(self, *, wait: bool = False) -> None:
        """Close all connections."""
        for node in self._nodes.values():
            await node.link.drop(wait=wait)

    async def ask_node(self, address: Address, request: Sequence[bytes]) -> list[Any]:
        """Commands to one server as they are; error replies stand among the answers."""
        return await self._node(address).link.exchange(request, len(request))

    def error(self, address: Address, reply: Exception) -> PyrulaError:
        """A server's error reply as one of ours."""
        return self._node(address).link.error(reply)

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        """The reply to each, or what is in its way as one of our errors. Raises ConfigurationError for what only a
        person can put right, and StoreError for a script that can't be loaded."""
        topology = self._topology
        if not topology.clustered:
            return await self._bring(topology.seed, calls)
        await topology.settle()
        answers: list[Any] = [None] * len(calls)
        groups: dict[Address, list[int]] = {}
        for place, call in enumerate(calls):
            try:
                groups.setdefault(call.ask or topology.owner(call.key), []).append(place)
            except StoreUnavailable as error:
                answers[place] = error
        brought = [self._bring(address, [calls[place] for place in places]) for address, places in groups.items()]
        if len(brought) == 1:
            found: list[Any] = [await brought[0]]
        else:
            found = await asyncio.gather(*brought, return_exceptions=True)
        for places, replies in zip(groups.values(), found, strict=True):
            if isinstance(replies, BaseException):
                raise replies
            for place, reply in zip(places, replies, strict=True):
                answers[place] = reply
        return answers

    def _node(self, address: Address) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(self._connect(address))
        return node

    async def _bring(self, address: Address, calls: Sequence[Call]) -> list[Any]:
        node = self._node(address)
        loads = list(node.missing.values())
        request = [wire.script_load(script) for script in loads]
        for call in calls:
            if call.ask is not None:
                request.append(_ASKING)
            request.append(call.data)
        synced = self._topology.synced and any(call.script is not None for call in calls)
        if synced:
            request.append(self._waitaof)
        try:
            found = await node.link.exchange(request, len(request))
            if synced:
                _check_on_disk(address, found.pop())
            replies = iter(found)
        except StoreUnavailable as error:
            self._topology.doubt()
            await self._leave(address)
            return [error] * len(calls)
        for script in loads:
            loaded = next(replies)
            if isinstance(loaded, Exception):
                refused = node.link.error(loaded)
                if not isinstance(refused, StoreUnavailable):
                    raise refused
            else:
                node.missing.pop(script.digest, None)
        answers = []
        leave = False
        for call in calls:
            if call.ask is not None:
                call.ask = None
                next(replies)
            reply = next(replies)
            if isinstance(reply, Exception):
                reply, left = self._interpreted(address, node, call, reply)
                leave = leave or left
            answers.append(reply)
        if leave:
            await self._leave(address)
        return answers

    async def _leave(self, address: Address) -> None:
        """Drop a connection: who is a replica today may be reached at another address tomorrow."""
        node = self._nodes.get(address)
        if node is not None:
            await node.link.drop()
            if self._topology.clustered and address not in self._topology.primaries:
                del self._nodes[address]

    def _interpreted(self, address: Address, node: _Node, call: Call, reply: Exception) -> tuple[PyrulaError, bool]:
        """An error reply as one of ours, and whether to leave the connection."""
        topology = self._topology
        # a subclass of the next one
        if isinstance(reply, MovedError):
            topology.moved(reply.slot_id, reply.host, reply.port, address)
            return Again(f"{address.text} has handed slot {reply.slot_id} over"), False
        if isinstance(reply, AskError):
            call.ask = topology.seed.at(reply.host or address.host, reply.port)
            return Again(f"{address.text} hands slot {reply.slot_id} over to {call.ask.text}"), False
        if call.script is not None and meaning(reply) is Meaning.LOAD:
            node.missing[call.script.digest] = call.script
            return Again(f"{address.text} doesn't know the script {call.script.name}"), False
        error = node.link.error(reply)
        if not isinstance(error, StoreUnavailable):
            return error, False
        if isinstance(reply, TryAgainError):
            return error, False
        topology.doubt()
        return error, True


def _check_on_disk(address: Address, answer: Any) -> None:
    """WAITAOF speaks of all that went before it on its connection. It is a second belt: with appendfsync always there
    is nothing to wait for."""
    if isinstance(answer, Exception):
        raise ConfigurationError(f'{address.text} can\'t hold to durability="fsync" any more: {answer}')
    if answer[0] < 1:
        raise StoreUnavailable(f"{address.text} has not written to disk in time")
