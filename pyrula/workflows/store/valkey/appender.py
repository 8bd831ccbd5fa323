"""Flushes: batches of rows as one pipeline of scripts, on a connection of its own.

Rules: one flush at a time, so sendings reach the server in the order of their numbers. Every sending has a new number,
a second sending too: a batch that was refused while a later one of its source was written must not be taken for
written. After a batch to be sent again go all later ones of its source, so that its rows keep their order.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pyrula.workflows.errors import LeaseLost, StoreUnavailable
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.link import Link, Meaning, meaning
from pyrula.workflows.store.valkey.record_scripts import record_script
from pyrula.workflows.store.valkey.record_wire import change_request
from pyrula.workflows.store.valkey.scripts import script
from pyrula.workflows.store.valkey.session import Attempts

# How long a flush is tried here before its caller, who tries for ever, hears of it.
_PATIENCE = 2.0

Answers = list[Exception | None]


class Appender:
    """Sends flushes. ``keys`` gives a source's key and the prefix of its buckets' keys; ``sender`` is told by no other
    process."""

    def __init__(
        self,
        link: Link,
        namespace: str,
        sender: bytes,
        keys: Callable[[bytes], tuple[bytes, bytes]],
        ttl: int,
        patience: float,
    ) -> None:
        self._link = link
        self._namespace = namespace
        self._sender = sender
        self._keys = keys
        self._ttl = ttl
        self._patience = min(patience, _PATIENCE)
        self._script, self._change = script("append"), record_script("change")
        self._sendings = itertools.count(1)
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        self._turn = asyncio.Lock()  # the next flush may come in another loop
        await self._link.drop(wait=True)

    async def append(self, batches: Sequence[Batch]) -> Answers:
        async with self._turn:
            return await self._append(batches)

    async def _append(self, batches: Sequence[Batch]) -> Answers:
        answers: Answers = [None] * len(batches)
        waiting: Sequence[int] = range(len(batches))
        load = False
        attempts = Attempts(self._patience)
        while packed := self._pack(batches, waiting, answers):
            waiting = list(packed)
            request = [wire.script_load(one) for one in (self._script, self._change)] if load else []
            request += packed.values()
            try:
                replies = await self._link.exchange(request, len(request))
                for _ in range(2 if load else 0):
                    loaded = replies.pop(0)
                    if isinstance(loaded, Exception):
                        raise self._link.error(loaded)
                waiting, load, trouble = self._sort(batches, waiting, replies, answers)
                if trouble is not None:
                    raise trouble
            except StoreUnavailable as error:
                await self._link.drop()
                await attempts.failed(error)
        return answers

    def _pack(self, batches: Sequence[Batch], waiting: Sequence[int], answers: Answers) -> dict[int, bytes]:
        packed: dict[int, bytes] = {}
        for number in waiting:
            batch = batches[number]
            key, prefix = self._keys(batch.source)
            sending = b"%b.%d" % (self._sender, next(self._sendings))
            try:
                if batch.change is None:
                    packed[number] = wire.append(self._script, key, prefix, batch, sending, self._ttl)
                else:
                    packed[number] = change_request(
                        self._change, self._namespace, key, prefix, batch, batch.change, sending, self._ttl
                    )
            except ValueError as error:
                answers[number] = error
        return packed

    def _sort(
        self, batches: Sequence[Batch], sent: Sequence[int], replies: Sequence[Any], answers: Answers
    ) -> tuple[list[int], bool, StoreUnavailable | None]:
        """Notes the answers. Gives back which batches to send again, whether to load the script first, and what the
        server can't do at present."""
        again: list[int] = []
        behind: set[bytes] = set()
        load = False
        trouble: StoreUnavailable | None = None
        for number, reply in zip(sent, replies, strict=True):
            batch = batches[number]
            if batch.source not in behind:
                if not isinstance(reply, Exception):
                    answers[number] = None if reply == 1 else lost(batch.source, batch.token)
                    continue
                error = self._link.error(reply)
                if meaning(reply) is Meaning.LOAD:
                    load = True
                elif isinstance(error, StoreUnavailable):
                    trouble = error
                else:
                    answers[number] = error
                    continue
                behind.add(batch.source)
            again.append(number)
        return again, load, trouble


def lost(source: bytes, token: Token) -> LeaseLost:
    return LeaseLost(f"source {source.hex()} is not held with token {token} any more")
