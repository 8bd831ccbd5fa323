"""What a store has, read from its insides: of MemoryStore and of a server in the same words, so that they compare.

Left out is what only one of them has: times, order numbers (their order shows in the queues), texts for people.
"""

from collections.abc import Iterable
from typing import Any

from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import TERMINAL
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.valkey import keys
from pyrula.workflows.store.valkey.record_wire import AddressKeys
from pyrula.workflows.store.valkey.run_keys import RunKeys, structures, worker_of
from tests.conformance.server import Server
from tests.model.calls import ADDRESS, SOURCE, run_text

_READ = """
local function text(value)
  if type(value) == 'number' then
    return string.format('%.17g', value)
  end
  return value and tostring(value) or ''
end
local function record(packed)
  local found = cmsgpack.unpack(packed)
  local row = {}
  for _, name in ipairs({'s', 'e', 'w', 'a', 'x', 'q', 'F', 'L'}) do
    row[#row + 1] = text(found[name])
  end
  return row
end
local answer, runs = {}, {}
for place = 1, 4 do
  answer[place] = redis.call('HGETALL', KEYS[place])
end
for place = 5, 8 do
  answer[place] = redis.call('ZRANGE', KEYS[place], 0, -1)
end
for place = 10, #KEYS, 3 do
  local id, found = ARGV[(place - 7) / 3], {}
  local packed = redis.call('HGET', KEYS[9], id)
  local ended = redis.call('HGET', KEYS[place], 'rec')
  local here = redis.call('HGET', KEYS[place], 'here')
  runs[#runs + 1] = {
    id, packed and record(packed) or '', ended and record(ended) or '', here and cmsgpack.unpack(here).s or '',
    redis.call('HGETALL', KEYS[place + 1]), redis.call('HKEYS', KEYS[place + 2])
  }
end
answer[9] = runs
return answer
"""


def of_memory(store: MemoryStore) -> dict[str, Any]:
    found: dict[str, Any] = {"source": (), "rows": {}, "board": {}, "lanes": {}, "runs": {}}
    for source in store._sources.values():
        below = source.below
        found["source"] = (str(source.token), below)
        found["rows"] = {
            (position, index): data for position, rows in source.rows.items() for index, data in rows.items()
        }
    for address in store._records.addresses.values():
        found["board"] = dict(address.board)
        found["lanes"] = {
            name.decode(): (lane.floor, lane.head, tuple(lane.queue)) for name, lane in address.lanes.items()
        }
    for record, run in store._records.runs.items():
        found["runs"][str(record)] = ("here", str(run.status), sorted(run.inbox))
    for chain_id, chain in store._board.chains.items():
        ended = chain.status in TERMINAL
        state = (str(chain.status), chain.epoch, "" if ended else chain.worker or "", chain.attempt, chain.cancel)
        journal = dict(chain.rows)
        found["runs"][chain_id] = ("ended" if ended else "live", *state, chain.failed, sorted(chain.inbox), journal)
    queue = store._board.queue
    found["ready"] = sorted(queue._queued)
    found["held"] = sorted((worker, run) for worker, runs in store._board.held.items() for run in runs)
    return found


def names(namespace: str, shard: int, runs: Iterable[str]) -> list[bytes]:
    """The keys that are read, of a server."""
    source, prefix = keys.source_keys(namespace, 16, SOURCE)
    shared, address = structures(namespace, shard), AddressKeys(namespace, shard, ADDRESS)
    found = [source, prefix + b"0", address.board, address.lanes, address.queue, address.idle, shared[1], shared[6]]
    found.append(shared[0])
    for run in runs:
        of_run = RunKeys(namespace, RunId(shard, run, 1))
        found += [of_run.hash, of_run.journal, of_run.inbox]
    return found


def all_names(namespace: str, shard: int, runs: Iterable[str]) -> list[bytes]:
    """Every key that these runs and their partition may leave."""
    runs, found = list(runs), names(namespace, shard, ())
    address = AddressKeys(namespace, shard, ADDRESS)
    found += [*structures(namespace, shard), address.stream, address.questions]
    for run in runs:
        of_run = RunKeys(namespace, RunId(shard, run, 1))
        found += [*of_run.all(), of_run.kept]
    return found


def run_ids(store: Any, offsets: int) -> list[str]:
    """Of the runs that a log of so many records may have."""
    return [run_text(store, f"{offset}") for offset in range(offsets)]


async def of_server(server: Server, shard: int, runs: list[str], workers: Iterable[str]) -> dict[str, Any]:
    wanted = names(server.namespace, shard, runs)
    answer = await server.call("EVAL", _READ, len(wanted), *wanted, *runs)
    source, rows, board, lanes = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in answer[:4])
    queue, _, ready, held = answer[4:8]
    found: dict[str, Any] = {"source": (), "rows": {}, "runs": {}}
    if source:
        below = source.get(b"below")
        found["source"] = (source[b"token"].decode(), None if below is None else int(below))
    for field, data in rows.items():
        position, _, index = field.partition(b".")
        found["rows"][int(position), int(index)] = data
    found["board"] = {int(position): int(count) for position, count in board.items()}
    behind: dict[str, list[str]] = {}
    for member in queue:
        length = member[0]
        behind.setdefault(member[1 : 1 + length].decode(), []).append(member[1 + length + 9 + 4 :].decode())
    found["lanes"] = {}
    for lane, entry in lanes.items():
        if lane != b"#":
            floor, head, count, _ = entry.decode().split(" ")
            line = tuple(behind.pop(lane.decode(), ()))
            assert len(line) == int(count), f"lane {lane!r} counts {count} in its queue, where there are {line}"
            found["lanes"][lane.decode()] = (int(floor), "" if head == "-" else head, line)
    assert not behind, f"queued in no lane: {behind}"
    for run, packed, ended, here, journal, inbox in answer[8]:
        if packed or ended:
            status, epoch, worker, attempt, cancel, _, failed, _ = (part.decode() for part in packed or ended)
            rows_of = {int(i): data for i, data in zip(journal[::2], journal[1::2], strict=True)}
            state = (status, int(epoch), worker if packed else "", int(attempt), cancel not in ("", "0", "false"))
            kind = "live" if packed else "ended"
            failed = failed not in ("", "0", "false")
            found["runs"][run.decode()] = (kind, *state, failed, sorted(map(int, inbox)), rows_of)
        elif here:
            found["runs"][run.decode()] = ("here", here.decode(), sorted(map(int, inbox)))
    found["ready"] = sorted(run for run in runs if any(member.endswith(run.encode()) for member in ready))
    digests = {worker_of(worker): worker for worker in workers}
    found["held"] = sorted(
        (worker, run) for run in runs for digest, worker in digests.items() if digest + run.encode() in held
    )
    return found
