"""Lanes on Valkey."""

from collections.abc import Sequence

from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lanes import HandedOver, HandingOver, Homecoming, LaneState
from pyrula.workflows.store.messages import WAIT_STATUS
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.valkey import keys
from pyrula.workflows.store.valkey.record_runs import ValkeyRecords, lost
from pyrula.workflows.store.valkey.record_scripts import record_script
from pyrula.workflows.store.valkey.record_wire import AddressKeys
from pyrula.workflows.store.valkey.run_keys import class_of, owner_of, structures
from pyrula.workflows.store.valkey.run_wire import microseconds, read_messages


class ValkeyLanes(ValkeyRecords):
    """LaneStore on Valkey."""

    durability: str

    @property
    def hands_over(self) -> bool:
        return self.durability == "fsync"

    def _lane_keys(self, registration: Registration) -> tuple[bytes, bytes, AddressKeys, int]:
        runs = self._runs
        source_key, prefix = keys.source_keys(runs.namespace, runs.shards, registration.source)
        shard = keys.shard_of(registration.source, runs.shards)
        return source_key, prefix, AddressKeys(runs.namespace, shard, registration.address), shard

    async def lanes(self, source: bytes, address: str) -> dict[bytes, LaneState]:
        runs = self._runs
        shard = keys.shard_of(source, runs.shards)
        flat = await runs.funnel.ask(b"HGETALL", AddressKeys(runs.namespace, shard, address).lanes)
        told = [text.partition(b" ") for text in flat[1::2]]
        unfinished = structures(runs.namespace, shard)[0]
        away = [runs.funnel.ask(b"HEXISTS", unfinished, head) for _, _, head in told]
        return {
            lane: LaneState(int(floor), bool(await live), head.decode())
            for lane, (floor, _, head), live in zip(flat[::2], told, away, strict=True)
        }

    async def hand_over(self, registration: Registration, token: Token, run: HandingOver) -> HandedOver:
        source_key, prefix, address, shard = self._lane_keys(registration)
        runs, record = self._runs, run.run_id
        of_run = runs.keys(RunId(shard, str(record), 1))
        names = [
            *structures(runs.namespace, shard),
            source_key,
            b"%b%d" % (prefix, keys.bucket_of(record.position)),
            address.board,
            address.lanes,
            *of_run.all(),
        ]
        waits = [
            part for wait in run.waits for part in (wait.kind.encode(), wait.name.encode(), microseconds(wait.deadline))
        ]
        rows = [part for index, data in run.rows for part in (b"%d" % index, data)]
        arguments = [
            runs.channel,
            str(record).encode(),
            str(token).encode(),
            b"%d" % record.position,
            run.lane or b"",
            class_of(run.served, registration.version),
            owner_of(""),
            class_of(registration.name, None),
            registration.version.encode(),
            b"%d" % run.attempt,
            run.params,
            b"%d" % run.seen,
            encode_event("handed_over", runs.now()),
            WAIT_STATUS[run.waits[0].kind].encode(),
            b"%d" % len(run.waits),
            *waits,
            b"%d" % len(run.rows),
            *rows,
        ]
        verdict, *rest = await runs.funnel.run(record_script("hand_over"), names, arguments)
        if verdict == b"lost":
            raise lost(registration, token)
        return HandedOver(verdict == b"taken", read_messages(rest[0]) if rest else ())

    async def come_home(
        self, registration: Registration, token: Token, asked: Sequence[tuple[bytes, int]]
    ) -> list[Homecoming]:
        source_key, _, address, shard = self._lane_keys(registration)
        names = [source_key, address.lanes, structures(self._runs.namespace, shard)[0]]
        told = [part for lane, position in asked for part in (lane, b"%d" % position)]
        found = await self._runs.funnel.run(record_script("homecoming"), names, [str(token).encode(), *told])
        if found == [b"lost"]:
            raise lost(registration, token)
        return [answer.decode() for answer in found]
