"""Few words for what the tests of batches do, and a clock that they move, for Valkey's scripts too."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha1
from typing import Any

from pyrula.workflows.batching import TriggerEvent, Window
from pyrula.workflows.clock import ManualClock
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.store.batches import Buffer, EventBatch, Fed
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.valkey import ValkeyStore
from pyrula.workflows.store.valkey.run_batches import batch_script
from pyrula.workflows.store.valkey.scripts import Script
from tests.conformance.server import Server

START = 4e9
_TIME = b"redis.call('TIME')"

COLLECT = Window(10.0, 3)
DEBOUNCE = Window(10.0)

_ids = itertools.count()


@dataclass
class Rig:
    store: Any
    other: Any
    clock: ManualClock
    tell: Callable[[float], Awaitable[None]]

    async def open(self) -> None:
        await self.store.open()
        await self.other.open()
        await self.advance(0)

    async def close(self) -> None:
        await self.store.close()
        await self.other.close()

    def now(self) -> float:
        return self.clock.now().timestamp()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.tell(self.now())

    async def feed(self, value: object, key: str = "k", window: Window = COLLECT, **fields: Any) -> Fed:
        fields.setdefault("id", f"own{next(_ids)}")
        fed: Fed = await self.store.feed(
            TriggerEvent(fields.pop("name", "digest"), key, dumps(value), window, **fields)
        )
        return fed

    async def due(self, *names: str) -> list[Buffer]:
        return list((await self.store.due_batches(names or ["digest"])).buffers)

    async def taken(self) -> EventBatch | None:
        """The first batch that is due."""
        for buffer in await self.due():
            batch: EventBatch | None = await self.store.take_batch(buffer)
            if batch is not None:
                return batch
        return None

    async def dropped(self, batch: EventBatch | None, run_id: str = "r") -> EventBatch | None:
        assert batch is not None
        following: EventBatch | None = await self.store.drop_batch(batch, run_id)
        return following


def events(batch: EventBatch | None) -> list[Any]:
    """What is in it, by its params."""
    assert batch is not None
    params = loads(batch.params)
    assert list(params) == ["key", "events", "count"]
    assert (params["key"], params["count"]) == (batch.key, batch.count) == (batch.key, len(params["events"]))
    found: list[Any] = params["events"]
    return found


def _clock() -> ManualClock:
    return ManualClock(datetime.fromtimestamp(START, UTC))


def memory_rig() -> Rig:
    clock = _clock()
    store = MemoryStore(clock)

    async def tell(now: float) -> None:
        pass

    return Rig(store, store.twin(), clock, tell)


def valkey_rig(server: Server) -> Rig:
    clock = _clock()
    stores = [ValkeyStore(server.url, namespace=server.namespace, shards=1) for _ in range(2)]
    for store in stores:
        _at_another_time(store, clock)

    async def tell(now: float) -> None:
        for store in stores:
            store._runs.now = lambda: now  # type: ignore[method-assign]

    return Rig(*stores, clock, tell)


def _at_another_time(store: Any, clock: ManualClock) -> None:
    """Its scripts get the time with their arguments, instead of the server's."""
    send = store._batch_script

    def script(name: str, buffer: Buffer, arguments: Sequence[bytes] = (), keys: Sequence[bytes] = ()) -> Any:
        seconds, microseconds = divmod(round(clock.now().timestamp() * 1e6), 1_000_000)
        return send(name, buffer, [*arguments, b"%d" % seconds, b"%d" % microseconds], keys)

    store._batch_script = script
    store._scripts = _with_time_told


@cache
def _with_time_told(name: str) -> Script:
    script = batch_script(name)
    assert script.text.count(_TIME) == (name in ("feed", "take", "drop"))
    text = script.text.replace(_TIME, b"{ARGV[#ARGV - 1], ARGV[#ARGV]}")
    return Script(script.name, text, sha1(text).hexdigest().encode())
