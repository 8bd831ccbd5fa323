"""Lanes on Valkey."""

from collections.abc import Sequence

from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lanes import (
    NO_QUEUE,
    HandedOver,
    HandingOver,
    Homecoming,
    LaneBounds,
    LaneState,
    LinedUp,
    LiningUp,
)
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import WAIT_STATUS
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.valkey import keys
from pyrula.workflows.store.valkey.record_runs import ValkeyRecords, lost
from pyrula.workflows.store.valkey.record_scripts import record_script
from pyrula.workflows.store.valkey.record_wire import AddressKeys
from pyrula.workflows.store.valkey.run_keys import class_of, owner_of, structures
from pyrula.workflows.store.valkey.run_wire import microseconds, read_messages

IN_ALL = b"#"
"""Among the lanes of a partition: the bytes that are queued in all of them."""


class ValkeyLanes(ValkeyRecords):
    """LaneStore on Valkey."""

    durability: str

    @property
    def hands_over(self) -> bool:
        return self.durability != "memory"

    @property
    def settles(self) -> bool:
        return self.durability == "everysec"

    def _lane_keys(self, registration: Registration) -> tuple[bytes, bytes, AddressKeys, int]:
        runs = self._runs
        source_key, prefix = keys.source_keys(runs.namespace, runs.shards, registration.source)
        shard = keys.shard_of(registration.source, runs.shards)
        return source_key, prefix, AddressKeys(runs.namespace, shard, registration.address), shard

    async def lanes(self, source: bytes, address: str) -> dict[bytes, LaneState]:
        runs = self._runs
        shard = keys.shard_of(source, runs.shards)
        flat = await runs.funnel.ask(b"HGETALL", AddressKeys(runs.namespace, shard, address).lanes)
        return {lane: _state(text) for lane, text in zip(flat[::2], flat[1::2], strict=True) if lane != IN_ALL}

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
            address.idle,
            *of_run.all(),
        ]
        waits = [
            part for wait in run.waits for part in (wait.kind.encode(), wait.name.encode(), microseconds(wait.deadline))
        ]
        rows = [part for index, data in run.rows for part in (b"%d" % index, data)]
        status = RunStatus.PAUSED if run.failure is not None else WAIT_STATUS[run.waits[0].kind]
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
            run.failure or b"",
            encode_event("handed_over", runs.now()),
            status.encode(),
            b"%d" % len(run.waits),
            *waits,
            b"%d" % len(run.rows),
            *rows,
        ]
        verdict, *rest = await runs.funnel.run(record_script("hand_over"), names, arguments)
        if verdict == b"lost":
            raise lost(registration, token)
        return HandedOver(verdict == b"taken", read_messages(rest[0]) if rest else ())

    async def line_up(
        self,
        registration: Registration,
        token: Token,
        served: str,
        lanes: Sequence[LiningUp],
        bounds: LaneBounds,
    ) -> list[LinedUp]:
        source_key, _, address, shard = self._lane_keys(registration)
        runs = self._runs
        names = [*structures(runs.namespace, shard), source_key, address.board, address.lanes, address.queue]
        arguments = [
            runs.channel,
            str(token).encode(),
            class_of(served, registration.version),
            owner_of(""),
            class_of(registration.name, None),
            registration.version.encode(),
            registration.name.encode(),
            registration.metadata,
            encode_event("lined_up", runs.now()),
            *_bounds(bounds),
            b"%d" % len(lanes),
        ]
        for one in lanes:
            arguments += [one.lane, b"%d" % len(one.records)]
            for record, params in one.records:
                arguments += [str(record).encode(), b"%d" % record.position, params]
                names += runs.keys(RunId(shard, str(record), 1)).all()
        found = await runs.funnel.run(record_script("line_up"), names, arguments)
        if found == [b"lost"]:
            raise lost(registration, token)
        return [LinedUp(taken, rest.decode()) for taken, rest in found]

    async def come_home(
        self,
        registration: Registration,
        token: Token,
        asked: Sequence[tuple[bytes, int]],
        bounds: LaneBounds = NO_QUEUE,
    ) -> list[Homecoming]:
        source_key, _, address, shard = self._lane_keys(registration)
        names = [*structures(self._runs.namespace, shard), source_key, address.lanes]
        told = [part for lane, position in asked for part in (lane, b"%d" % position)]
        arguments = [self._runs.channel, str(token).encode(), *_bounds(bounds), *told]
        found = await self._runs.funnel.run(record_script("homecoming"), names, arguments)
        if found == [b"lost"]:
            raise lost(registration, token)
        return [
            Homecoming(answer.decode(), head.decode()) for answer, head in zip(found[::2], found[1::2], strict=True)
        ]


def _bounds(bounds: LaneBounds) -> list[bytes]:
    return [b"%d" % bound for bound in bounds]


def _state(text: bytes) -> LaneState:
    floor, head, queued, size = text.split(b" ")
    away = head != b"-"
    return LaneState(int(floor), away, head.decode() if away else "", int(queued), int(size))
