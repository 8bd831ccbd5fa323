"""Flushes: batches of rows as one pipeline of scripts, on a connection of its own.

Rules: one flush at a time, so sendings reach the server in the order of their numbers. Every sending has a new number,
a second sending too: a batch that was refused while a later one of its source was written must not be taken for
written. After a batch to be sent again go all later ones of its source, so that its rows keep their order.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyrula.workflows.errors import LeaseLost, StoreUnavailable
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.record_scripts import record_script
from pyrula.workflows.store.valkey.record_wire import change_request
from pyrula.workflows.store.valkey.route import Again, Call, Route
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
        route: Route,
        namespace: str,
        sender: bytes,
        keys: Callable[[bytes], tuple[bytes, bytes]],
        ttl: int,
        patience: float,
    ) -> None:
        self._route = route
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
        await self._route.drop(wait=True)

    async def append(self, batches: Sequence[Batch]) -> Answers:
        async with self._turn:
            return await self._append(batches)

    async def _append(self, batches: Sequence[Batch]) -> Answers:
        answers: Answers = [None] * len(batches)
        waiting: Sequence[int] = range(len(batches))
        attempts = Attempts(self._patience)
        packed: dict[int, Call] = {}
        while packed := self._pack(batches, waiting, answers, packed):
            found = await self._route.send(list(packed.values()))
            waiting, trouble = self._sort(batches, list(packed), found, answers)
            if trouble is not None:
                await attempts.failed(trouble)
        return answers

    def _pack(
        self, batches: Sequence[Batch], waiting: Sequence[int], answers: Answers, before: Mapping[int, Call]
    ) -> dict[int, Call]:
        packed: dict[int, Call] = {}
        for number in waiting:
            batch = batches[number]
            key, prefix = self._keys(batch.source)
            sending = b"%b.%d" % (self._sender, next(self._sendings))
            try:
                if batch.change is None:
                    data = wire.append(self._script, key, prefix, batch, sending, self._ttl)
                    packed[number] = Call(data, key, self._script)
                else:
                    data = change_request(
                        self._change, self._namespace, key, prefix, batch, batch.change, sending, self._ttl
                    )
                    packed[number] = Call(data, key, self._change)
                if number in before:
                    packed[number].ask = before[number].ask
            except ValueError as error:
                answers[number] = error
        return packed

    def _sort(
        self, batches: Sequence[Batch], sent: Sequence[int], replies: Sequence[Any], answers: Answers
    ) -> tuple[list[int], StoreUnavailable | None]:
        """Notes the answers. Gives back which batches to send again, and why."""
        again: list[int] = []
        behind: set[bytes] = set()
        trouble: StoreUnavailable | None = None
        for number, reply in zip(sent, replies, strict=True):
            batch = batches[number]
            if batch.source not in behind:
                if not isinstance(reply, StoreUnavailable):
                    answers[number] = _answer(batch, reply)
                    continue
                behind.add(batch.source)
                # what has to be waited for counts for more than what may go again at once
                if trouble is None or isinstance(trouble, Again):
                    trouble = reply
            again.append(number)
        return again, trouble


def _answer(batch: Batch, reply: Any) -> Exception | None:
    if isinstance(reply, Exception):
        return reply
    return None if reply == 1 else lost(batch.source, batch.token)


def lost(source: bytes, token: Token) -> LeaseLost:
    return LeaseLost(f"source {source.hex()} is not held with token {token} any more")
