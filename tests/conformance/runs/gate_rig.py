"""The queue's raw structures on Valkey, and what must hold of them after every command.

`Queue.read` takes all of them in one script, so what is judged is one moment. The checks are written from
docs/formats-runs.md and know nothing of the scripts.
"""

import math
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.server import Server

READ = """
local function text(value)
  if value == nil then
    return ''
  elseif value == true then
    return '1'
  elseif type(value) == 'number' then
    return string.format('%.17g', value)
  elseif type(value) == 'table' then
    local parts = {}
    for place, part in ipairs(value) do
      parts[place] = text(part)
    end
    return parts
  end
  return value
end
local function unpacked(key, names)
  local flat, rows = redis.call('HGETALL', key), {}
  for place = 1, #flat, 2 do
    local found, row = cmsgpack.unpack(flat[place + 1]), {flat[place]}
    for _, name in ipairs(names) do
      row[#row + 1] = text(found[name])
    end
    rows[#rows + 1] = row
  end
  return rows
end
local function all(key)
  return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
end
return {
  unpacked(KEYS[1], {'s', 'c', 'o', 'k', 'wd', 'G', 'P'}),
  unpacked(KEYS[15], {'c', 'o', 'l', 'm', 'r', 'i', 't', 'w', 'k', 'n', 'b', 'v'}),
  all(KEYS[2]), all(KEYS[3]), redis.call('HGETALL', KEYS[4]), redis.call('HGETALL', KEYS[5]), all(KEYS[6]),
  all(KEYS[7]),
  redis.call('HGETALL', KEYS[9]), all(KEYS[16]), all(KEYS[17]), all(KEYS[18]), all(KEYS[19])
}
"""


@dataclass
class Record:
    status: str
    cls: bytes
    owner: bytes
    key: bytes
    worker: bytes
    gates: list[bytes] | None
    paid: bool

    @property
    def limit(self) -> bytes:
        return b"" if self.gates is None else self.gates[0]

    @property
    def cohort(self) -> bytes | None:
        if self.gates is None or (not self.gates[0] and (self.paid or not self.gates[2])):
            return None
        return self.cls + (self.gates[5] if self.gates[2] and not self.paid else self.gates[6])


@dataclass
class CohortRow:
    cls: bytes
    owner: bytes
    limit: bytes
    max: int
    rate: bytes
    interval: float
    ahead: float
    where: bytes
    key: bytes
    since: int
    bounces: int
    reserved: bool

    @property
    def place(self) -> bytes:
        return b"w" + self.cls + self.where if self.where else b"r" + self.cls

    def needs(self) -> list[bytes]:
        return [gate for gate in (self.limit, self.rate) if gate]


@dataclass
class Queue:
    """What lies on one shard."""

    records: dict[bytes, Record]
    cohorts: dict[bytes, CohortRow]
    q: set[bytes]
    ring: set[bytes]
    seat: dict[bytes, bytes]
    own: dict[bytes, bytes]
    timer: dict[bytes, float]
    held: set[bytes]
    meta: dict[bytes, bytes]
    gidx: set[bytes]
    open: set[bytes]
    slot: set[bytes]
    rate: dict[bytes, float]
    lists: dict[bytes, list[bytes]] = field(default_factory=dict)

    @staticmethod
    async def read(server: Server) -> "Queue":
        prefix = b"{%b:0}" % server.namespace.encode()
        names = b"run q ring seat own timer held beat meta out ask asked reply list cohort gidx open slot rate".split()
        keys = [prefix + name for name in names]
        rows, cohorts, *plain = await server.call("EVAL", READ, len(keys), *keys)
        q, ring, seat, own, timer, held, meta, gidx, opened, slot, rate = map(_pairs, plain)
        return Queue(
            {row[0]: _record(row[1:]) for row in rows},
            {row[0]: _cohort(row[1:]) for row in cohorts},
            set(q),
            set(ring),
            seat,
            own,
            {name: float(score) for name, score in timer.items()},
            set(held),
            meta,
            set(gidx),
            set(opened),
            set(slot),
            {name: float(score) for name, score in rate.items()},
        )

    def check(self, now: int) -> None:
        """`now` is the shard's time, in microseconds."""
        self._one_place_each()
        self._seats()
        self._gates()
        self._slots()
        self._offers(now)
        self._timers()

    def _one_place_each(self) -> None:
        expected: set[bytes] = set()
        members: dict[bytes, list[bytes]] = defaultdict(list)
        for run_id, record in self.records.items():
            if record.status != "queued":
                continue
            cohort = record.cohort
            if cohort is None:
                expected.add(b"r" + record.cls + record.owner + record.key + run_id)
            else:
                expected.add(b"c" + cohort + record.key + run_id)
                members[cohort].append(record.key)
        assert set(members) == set(self.cohorts)
        for cid, cohort_row in self.cohorts.items():
            assert cohort_row.key == min(members[cid])
            expected.add(cohort_row.place + cohort_row.owner + cohort_row.key + b"~" + cid)
        assert self.q == expected

    def _seats(self) -> None:
        lists = {self._list_of(member) for member in self.q if member[:1] != b"c"}
        assert set(self.seat) == lists
        assert self.ring == {
            name[:-12] + position + name[-12:] for name, position in self.seat.items() if len(position) == 16
        }
        seats = Counter(name[-12:] for name in self.seat)
        found = {owner: struct.unpack(">IQ", packed) for owner, packed in self.own.items()}
        assert {owner: count for owner, (count, _) in found.items()} == dict(seats)
        tick = int(self.meta.get(b"tick", b"0"))
        assert all(last <= tick for _, last in found.values())

    @staticmethod
    def _list_of(member: bytes) -> bytes:
        return member[: 13 + 12] if member[:1] == b"r" else member[: 26 + 12]

    def _gates(self) -> None:
        assert self.gidx == {row.where + b":" + row.cls for row in self.cohorts.values() if row.where}
        assert self.open == {
            gate + row.cls + b":" + cid
            for cid, row in self.cohorts.items()
            if not row.where
            for gate in row.needs()
            if gate != row.limit or not row.reserved
        }

    def _slots(self) -> None:
        running = {run_id: record for run_id, record in self.records.items() if record.status == "running"}
        assert self.held == {record.worker + run_id for run_id, record in running.items()}
        taken = {record.limit + run_id for run_id, record in running.items() if record.limit}
        reserved = {row.limit + b"~" + cid for cid, row in self.cohorts.items() if row.reserved}
        assert self.slot == taken | reserved

    def room(self, gate: bytes, row: CohortRow, now: int) -> int:
        if gate == row.limit:
            return row.max - sum(member[:13] == gate for member in self.slot) + row.reserved
        return math.floor((row.ahead - max(0.0, self.rate.get(gate, 0.0) - now)) / row.interval) + 1

    def _offers(self, now: int) -> None:
        """Nobody waits for ever: whoever is first at a gate and could start has been offered it, or will be in time."""
        for entry in self.gidx:
            gate, cls = entry[:13], entry[14:]
            place = b"w" + cls + gate
            seats = [member for member in self.ring if member.startswith(place)]
            owner = min(seats)[-12:]
            item = min(member for member in self.q if member.startswith(place + owner))
            row = self.cohorts[item[38 + 10 :]]
            if any(member.startswith(gate + cls + b":") for member in self.open):
                continue
            if self.room(gate, row, now) > 0 or gate == row.rate:
                due = math.ceil(max(self.rate.get(gate, 0.0), now) - row.ahead)
                timer = self.timer.get(b"g" + gate)
                assert gate == row.rate
                assert timer is not None
                assert timer <= max(due, now)

    def _timers(self) -> None:
        ends = {name[1:] for name in self.timer if name[:1] == b"v"}
        assert ends == {cid for cid, row in self.cohorts.items() if row.reserved}
        for name in self.timer:
            if name[:1] not in b"gv":
                assert self.records[name].status not in ("queued", "running", "paused")

    def empty(self) -> bool:
        """Nothing is left but counters, and rates that no claim has dropped yet."""
        gone = (self.records, self.cohorts, self.q, self.ring, self.seat, self.own, self.held, self.gidx, self.open)
        return not any(gone) and not self.slot and all(name[:1] == b"g" for name in self.timer)


def _pairs(flat: list[Any]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _record(row: list[Any]) -> Record:
    status, cls, owner, key, worker, gates, paid = row
    return Record(status.decode(), cls, owner, key, worker, gates or None, bool(paid))


def _cohort(row: list[bytes]) -> CohortRow:
    cls, owner, limit, most, rate, interval, ahead, where, key, since, bounces, reserved = row
    return CohortRow(
        cls,
        owner,
        limit,
        int(most or 0),
        rate,
        float(interval or 0),
        float(ahead or 0),
        where,
        key,
        int(since),
        int(bounces),
        bool(reserved),
    )
