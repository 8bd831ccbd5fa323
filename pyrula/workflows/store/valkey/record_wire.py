"""Keys of records' runs, and a change of one as bytes. Pure; written down in docs/formats-records.md."""

from collections.abc import Iterable

from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.port import MAX_POSITION, Batch
from pyrula.workflows.store.record_changes import RecordChange, RecordId
from pyrula.workflows.store.records import TOLD_SECONDS
from pyrula.workflows.store.runs import RETENTION_SECONDS
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.keys import bucket_of
from pyrula.workflows.store.valkey.run_keys import RunKeys, tag
from pyrula.workflows.store.valkey.run_wire import microseconds
from pyrula.workflows.store.valkey.scripts import Script

__all__ = ["AddressKeys", "change_request", "outbox", "record_keys"]

_LETTERS = {"ok": b"o", "error": b"e", "rejected": b"r"}


class AddressKeys:
    """`stream` is what a source was registered with, `board` its addressed runs, `questions` what is asked of them,
    `lanes` those of which a record was handed over, `queue` what is behind their heads, `idle` those that are home."""

    __slots__ = ("board", "idle", "lanes", "questions", "queue", "stream")

    def __init__(self, namespace: str, shard: int, address: str) -> None:
        prefix, text = tag(namespace, shard), address.encode()
        self.stream = b"%bs:%b" % (prefix, text)
        self.board = b"%bn:%b" % (prefix, text)
        self.questions = b"%bo:%b" % (prefix, text)
        self.lanes = b"%bf:%b" % (prefix, text)
        self.queue = b"%bg:%b" % (prefix, text)
        self.idle = b"%bh:%b" % (prefix, text)


def record_keys(namespace: str, record: RecordId) -> tuple[bytes, ...]:
    """The keys of one run: its hash, events, inbox, ids of messages met, when they were consumed, interrupts and
    children."""
    keys = RunKeys(namespace, RunId(record.shard, str(record), 1))
    return keys.hash, keys.events, keys.inbox, keys.met, keys.consumed, keys.extras


def outbox(namespace: str, shard: int) -> bytes:
    """Messages on their way to other runs, those of submitted ones too."""
    return tag(namespace, shard) + b"out"


def change_request(
    script: Script,
    namespace: str,
    source_key: bytes,
    prefix: bytes,
    batch: Batch,
    change: RecordChange,
    sending: bytes,
    ttl: int,
) -> bytes:
    """The EVALSHA of change.lua. Raises ValueError for a position no script could compare."""
    record = change.run_id
    if not 0 <= batch.high <= MAX_POSITION:
        raise ValueError(f"position {batch.high} is outside 0..{MAX_POSITION}")
    keys, bucket = AddressKeys(namespace, record.shard, record.address), bucket_of(record.position)
    rows: dict[int, bytes] = {}
    for index, data in change.rows:
        # the last word on an index counts
        rows.pop(index, None)
        rows[index] = data
    arguments = [
        str(batch.token).encode(),
        sending,
        b"%d" % batch.high,
        batch.witness or b"",
        b"%d" % ttl,
        namespace.encode(),
        str(record).encode(),
        b"%d" % record.position,
        b"%d" % bucket,
        b"%d" % sum(map(len, rows.values())),
        change.holder.encode(),
        b"%d" % change.number,
        b"%d" % RETENTION_SECONDS,
        change.status.encode(),
        change.error or b"",
        b"" if change.attempt is None else b"%d" % change.attempt,
    ]
    waits = ((wait.kind.encode(), wait.name.encode(), microseconds(wait.deadline)) for wait in change.waits)
    _counted(arguments, 3, (part for wait in waits for part in wait))
    fields = ((b"%d.%d" % (record.position, index), data) for index, data in rows.items() if data)
    _counted(arguments, 2, (part for field in fields for part in field))
    _counted(arguments, 1, (b"%d.%d" % (record.position, index) for index, data in rows.items() if not data))
    _counted(arguments, 1, (b"%d" % number for number in change.consumed))
    applied = ((one.update_id.encode(), _LETTERS[one.outcome] + one.value) for one in change.applied)
    _counted(arguments, 2, (part for one in applied for part in one))
    _counted(arguments, 2, (part for opened in change.opened for part in (opened.wait_id.encode(), opened.payload)))
    _counted(arguments, 1, (wait_id.encode() for wait_id in change.closed))
    children = ((child.run_id.encode(), child.on_parent_close.encode()) for child in change.children)
    _counted(arguments, 2, (part for child in children for part in child))
    _counted(arguments, 1, change.events)
    end = change.end
    if end is None:
        arguments.append(b"")
    else:
        arguments += [end.status.encode(), end.value, end.error or b"", b"%d" % end.seconds, b"%d" % TOLD_SECONDS]
        arguments.append(end.params)
        _counted(arguments, 2, (part for index, data in end.rows for part in (b"%d" % index, data)))
    names = [
        source_key,
        b"%b%d" % (prefix, bucket),
        keys.stream,
        keys.board,
        outbox(namespace, record.shard),
        *record_keys(namespace, record),
        keys.lanes,
        RunKeys(namespace, RunId(record.shard, str(record), 1)).journal,
    ]
    return wire.evalsha(script, names, arguments)


def _counted(arguments: list[bytes], width: int, values: Iterable[bytes]) -> None:
    place = len(arguments)
    arguments.append(b"")
    arguments.extend(values)
    arguments[place] = b"%d" % ((len(arguments) - place - 1) // width)
