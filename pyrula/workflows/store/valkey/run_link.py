"""What both sides of submitted runs on Valkey share: shards, keys, one funnel for all scripts."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from pyrula.workflows.errors import SerializationError
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import RETENTION_SECONDS
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.ear import Ear
from pyrula.workflows.store.valkey.funnel import Funnel
from pyrula.workflows.store.valkey.record_wire import AddressKeys
from pyrula.workflows.store.valkey.run_keys import STRUCTURES, RunKeys, idempotency_key, keys_of, packed_structures
from pyrula.workflows.store.valkey.run_scripts import run_script
from pyrula.workflows.store.valkey.topology import Topology


class RunLink:
    """How the parts of a ValkeyStore reach submitted runs."""

    def __init__(self, topology: Topology, namespace: str, shards: int, timeout: float, patience: float) -> None:
        self.namespace = namespace
        self.shards = shards
        self.channel = namespace.encode()
        self.retention = RETENTION_SECONDS
        self.funnel = Funnel(topology, timeout, patience)
        self.ear = Ear(topology, timeout)
        self._ahead = 0.0

    async def open(self) -> None:
        seconds, microseconds = await self.funnel.ask(b"TIME")
        self.set_clock(int(seconds) + int(microseconds) / 1e6)

    async def close(self) -> None:
        await self.ear.close()
        await self.funnel.close()

    def set_clock(self, now: float) -> None:
        self._ahead = now - time.time()

    def now(self) -> float:
        return time.time() + self._ahead

    def parse(self, text: str) -> RunId:
        run = RunId.parse(text)
        if run.shard >= self.shards:
            raise RunNotFoundError(text)
        return run

    def keys(self, run: RunId) -> RunKeys:
        return keys_of(self.namespace, run)

    def script(self, name: str, shard: int, keys: Sequence[bytes], arguments: Sequence[bytes]) -> "asyncio.Future[Any]":
        wanted = run_script(name)
        first, common = packed_structures(self.namespace, shard)
        data = wire.evalsha_behind(wanted, common, len(STRUCTURES), keys, [self.channel, *arguments])
        return self.funnel.run_packed(wanted, first, data)

    async def ending_keys(self, run: RunId) -> list[bytes]:
        """What else a script names that may end the run."""
        record = RecordId.parse(run.chain)
        if record is None:
            return await self.entry_of(run)
        address = AddressKeys(self.namespace, record.shard, record.address)
        return [address.lanes, address.queue, address.idle]

    async def entry_of(self, run: RunId) -> list[bytes]:
        """The key of the run's idempotency entry, if it has one."""
        entry = await self.funnel.ask(b"HGET", self.keys(run).hash, b"entry")
        return [idempotency_key(self.namespace, run.shard, entry.decode())] if entry else []


def check_size(what: str, data: bytes) -> None:
    if len(data) > MAX_VALUE:
        raise SerializationError(f"{what} has {len(data)} bytes, over the limit of {MAX_VALUE}")
