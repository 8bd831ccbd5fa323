"""Commands as bytes, packed here since redis-py's packing would dominate a flush. No I/O."""

from collections.abc import Iterable, Sequence

from pyrula.workflows.store.port import MAX_POSITION, Batch
from pyrula.workflows.store.valkey.keys import BUCKET_BITS
from pyrula.workflows.store.valkey.scripts import Script


def command(*arguments: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(arguments), _bulk(arguments))


def script_load(script: Script) -> bytes:
    return command(b"SCRIPT", b"LOAD", script.text)


def evalsha(script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
    return command(b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *arguments)


def packed(arguments: Iterable[bytes]) -> bytes:
    """Arguments that many requests have in common, packed once."""
    return _bulk(arguments)


def evalsha_behind(
    script: Script, common: bytes, count: int, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> bytes:
    """EVALSHA whose first ``count`` keys are packed already."""
    head = (b"EVALSHA", script.digest, b"%d" % (count + len(keys)))
    total = 3 + count + len(keys) + len(arguments)
    return b"*%d\r\n%b%b%b" % (total, _bulk(head), common, _bulk([*keys, *arguments]))


def _bulk(arguments: Iterable[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


class _Group:
    """Consecutive rows of one bucket that are all set or all deleted, packed."""

    __slots__ = ("bucket", "count", "pieces", "size")

    def __init__(self, bucket: int) -> None:
        self.bucket = bucket
        self.count = 0
        self.size = 0
        self.pieces: list[bytes] = []


def append(script: Script, source_key: bytes, prefix: bytes, batch: Batch, sending: bytes, ttl: int) -> bytes:
    """The EVALSHA of append.lua for one batch. Raises ValueError for positions no script could compare."""
    if not 0 <= batch.high <= MAX_POSITION:
        raise ValueError(f"position {batch.high} is outside 0..{MAX_POSITION}")
    groups = _group(batch.rows)
    buckets = {bucket: place for place, bucket in enumerate(dict.fromkeys(group.bucket for group in groups), start=2)}
    arguments = [
        str(batch.token).encode(),
        sending,
        b"%d" % batch.high,
        batch.witness or b"",
        b"%d" % ttl,
        b"%d" % len(groups),
    ]
    for group in groups:
        arguments += [b"%d" % buckets[group.bucket], b"%d" % group.bucket, b"%d" % group.count, b"%d" % group.size]
    keys = [source_key, *(b"%b%d" % (prefix, bucket) for bucket in buckets)]
    values = sum(2 * group.count if group.count > 0 else -group.count for group in groups)
    head = _bulk([b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *arguments])
    total = 3 + len(keys) + len(arguments) + values
    return b"".join([b"*%d\r\n" % total, head, *(piece for group in groups for piece in group.pieces)])


def _group(rows: Sequence[tuple[int, int, bytes]]) -> list[_Group]:
    # Order matters only between rows of one field, so rows of one kind gather by bucket; a change of kind (rare:
    # deletions come with a retry) starts the gathering anew.
    groups: list[_Group] = []
    open_groups: dict[int, _Group] = {}
    group = _Group(-1)
    deleting = False
    pieces = group.pieces
    for position, index, data in rows:
        bucket = position >> BUCKET_BITS
        if bucket != group.bucket or deleting != (not data):
            if deleting != (not data):
                deleting = not deleting
                open_groups.clear()
            found = open_groups.get(bucket)
            if found is None:
                found = open_groups[bucket] = _Group(bucket)
                groups.append(found)
            group = found
            pieces = group.pieces
        name = b"%d.%d" % (position, index)
        if data:
            length = len(data)
            pieces.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, length, data))
            group.size += length
        else:
            pieces.append(b"$%d\r\n%b\r\n" % (len(name), name))
    for group in groups:
        group.count = len(group.pieces) if group.size else -len(group.pieces)
    return groups
