"""Triggers on Valkey. Everything of one workflow and key lies on the shard of both, whoever owns it; see
docs/formats-runs.md."""

import asyncio
import re
import secrets
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

from pyrula.workflows.batching import TriggerEvent, room_for
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.store.batches import (
    LEASE_SECONDS,
    OWN_ID_SECONDS,
    Buffer,
    Due,
    EventBatch,
    Fed,
    OpenBatch,
    Reason,
)
from pyrula.workflows.store.ids import digest, shard_for
from pyrula.workflows.store.valkey.lua_parts import needed
from pyrula.workflows.store.valkey.run_keys import tag
from pyrula.workflows.store.valkey.run_link import RunLink
from pyrula.workflows.store.valkey.run_wire import microseconds
from pyrula.workflows.store.valkey.scripts import Script

_LEASE: Final = b"%d" % round(LEASE_SECONDS * 1e6)
_LOOKED_AT: Final = 200
_CLOCK: Final = re.compile(rb"^local moment$.*?^end$", re.MULTILINE | re.DOTALL)
_LISTED: Final = 1000


@cache
def batch_script(name: str) -> Script:
    folder = files(__package__).joinpath("lua")
    text = folder.joinpath("batches", f"{name}.lua").read_bytes()
    if name != "list":
        first, rest = text.split(b"\n", 1)
        # the shard has one clock; nothing but its counters is needed for that
        clock = _CLOCK.search(folder.joinpath("runs", "library.lua").read_bytes())
        assert clock is not None
        library = folder.joinpath("batches", "library.lua").read_bytes() + clock[0]
        text = b"\n".join((first, needed(library, rest), rest))
    # the server names a script by this digest; nothing is kept secret by it
    return Script(f"batches/{name}", text, sha1(text, usedforsecurity=False).hexdigest().encode())


@lru_cache(maxsize=4096)
def _buffer(shards: int, name: str, key: str, *owner: str) -> Buffer:
    return Buffer(name, shard_for(shards, name, key), digest("batch", name, key, *owner, size=16))


@lru_cache(maxsize=4096)
def _keys(namespace: str, buffer: Buffer) -> tuple[bytes, ...]:
    """What every script gets, in its order."""
    prefix, own = tag(namespace, buffer.shard), buffer.digest.hex().encode()
    return (
        prefix + b"meta",
        prefix + b"batch",
        b"%bte:%b" % (prefix, own),
        b"%bts:%b" % (prefix, own),
        due_key(namespace, buffer.shard, buffer.name),
    )


@lru_cache(maxsize=4096)
def due_key(namespace: str, shard: int, name: str) -> bytes:
    return b"%btd:%b" % (tag(namespace, shard), digest("due", name, size=16).hex().encode())


def _known(event: TriggerEvent) -> bytes:
    """What stands for an event's id, which counts within its workflow, key and owner."""
    return digest("event", *event.place, event.id, size=16).hex().encode()


class ValkeyBatches:
    """BatchStore on Valkey."""

    timeout: float
    retry_for: float
    _runs: RunLink
    _scripts = staticmethod(batch_script)

    async def feed(self, event: TriggerEvent) -> Fed:
        runs = self._runs
        buffer = _buffer(runs.shards, *event.place)
        known = _known(event)
        window = event.window
        arguments = [
            secrets.token_hex(8).encode(),
            event.data,
            dumps(event.key),
            microseconds(window.seconds),
            b"" if window.max_events is None else b"%d" % window.max_events,
            microseconds(window.max_wait),
            b"%d" % room_for(event.key),
            b"%d" % (runs.retention if event.lasting else max(OWN_ID_SECONDS, 2 * (self.retry_for + self.timeout))),
            known,
            event.owner.encode(),
        ]
        batch, run_id, head = await self._batch_script("feed", buffer, arguments, [self._id_key(buffer, known)])
        return Fed(batch.decode(), run_id.decode(), _read(buffer, head))

    def forget_event(self, event: TriggerEvent) -> None:
        buffer = _buffer(self._runs.shards, *event.place)
        answer = self._runs.funnel.ask(b"UNLINK", self._id_key(buffer, _known(event)))
        answer.add_done_callback(_ignored)

    async def due_batches(self, names: Sequence[str]) -> Due:
        asked = [(name, shard) for name in names for shard in range(self._runs.shards)]
        buffers: dict[Buffer, None] = {}
        later: list[float] = []
        # mostly none is due, which the first one of each tells
        for most in (1, _LOOKED_AT):
            now = self._runs.now()
            answers = await asyncio.gather(*(self._first_due(name, shard, most) for name, shard in asked))
            again = []
            for (name, shard), found in zip(asked, answers, strict=True):
                due = [Buffer(name, shard, member) for member, moment in found if moment <= now]
                if due and most == 1:
                    again.append((name, shard))
                    continue
                buffers.update(dict.fromkeys(due))
                later += [moment for member, moment in found if Buffer(name, shard, member) not in buffers][:1]
            asked = again
        return Due(tuple(buffers), min(later, default=None))

    async def _first_due(self, name: str, shard: int, most: int) -> list[tuple[bytes, float]]:
        """Who is due first, and when, in seconds."""
        key = due_key(self._runs.namespace, shard, name)
        flat = await self._runs.funnel.ask(b"ZRANGE", key, b"0", b"%d" % (most - 1), b"WITHSCORES")
        return [(member[1:], float(score) / 1e6) for member, score in zip(flat[::2], flat[1::2], strict=True)]

    async def take_batch(self, buffer: Buffer) -> EventBatch | None:
        return _read(buffer, await self._batch_script("take", buffer))

    async def plan_batch(self, batch: EventBatch, plan: bytes) -> bytes:
        stands: bytes = await self._batch_script("plan", batch.buffer, [batch.id.encode(), plan])
        return stands

    async def drop_batch(self, batch: EventBatch, run_id: str) -> EventBatch | None:
        buffer = batch.buffer
        names = [self._id_key(buffer, batch.event)] if batch.event else []
        return _read(buffer, await self._batch_script("drop", buffer, [batch.id.encode(), run_id.encode()], names))

    async def open_batches(self, name: str) -> list[OpenBatch]:
        runs = self._runs
        shards = range(runs.shards)
        dues = await asyncio.gather(
            *(
                runs.funnel.ask(b"ZRANGE", due_key(runs.namespace, shard, name), b"0", b"%d" % (2 * _LISTED))
                for shard in shards
            )
        )
        wanted = [[member[1:] for member in members if member[:1] == b"o"][:_LISTED] for members in dues]
        states = await asyncio.gather(
            *(
                runs.funnel.run(batch_script("list"), [tag(runs.namespace, shard) + b"batch"], members)
                for shard, members in zip(shards, wanted, strict=True)
                if members
            )
        )
        found = [
            OpenBatch(loads(key), count, opened / 1e6, due / 1e6, owner.decode())
            for state in states
            for key, count, opened, due, owner in state
        ]
        return sorted(found, key=lambda batch: (batch.key, batch.owner))

    def _id_key(self, buffer: Buffer, known: bytes) -> bytes:
        return b"%bti:%b" % (tag(self._runs.namespace, buffer.shard), known)

    def _batch_script(
        self, name: str, buffer: Buffer, arguments: Sequence[bytes] = (), keys: Sequence[bytes] = ()
    ) -> "asyncio.Future[Any]":
        runs = self._runs
        return runs.funnel.run(
            self._scripts(name), [*_keys(runs.namespace, buffer), *keys], [buffer.digest, _LEASE, *arguments]
        )


def _read(buffer: Buffer, found: Sequence[Any] | None) -> EventBatch | None:
    if not found:
        return None
    batch, params, count, reason, opened, event, plan, key, *owner = found
    told: Reason = reason.decode()
    owned = owner[0].decode() if owner else ""
    return EventBatch(buffer, batch.decode(), loads(key), params, count, told, opened / 1e6, event, plan, owned)


def _ignored(answer: "asyncio.Future[Any]") -> None:
    # a hint that was lost: the id goes by itself
    if not answer.cancelled():
        answer.exception()
