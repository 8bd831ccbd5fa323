"""Commands as bytes, packed here since redis-py's packing would dominate a flush. No I/O."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from pyrula.workflows.store.port import MAX_POSITION, Batch, Token
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


class _Group(NamedTuple):
    """Consecutive rows of one bucket that are all set or all deleted, packed; deleted ones are counted below 0."""

    bucket: int
    rows: int
    size: int
    packed: bytes


def append(script: Script, source_key: bytes, prefix: bytes, batch: Batch, sending: bytes, ttl: int) -> bytes:
    """The EVALSHA of append.lua for one batch. Raises ValueError for positions no script could compare."""
    high = batch.high
    if not 0 <= high <= MAX_POSITION:
        raise ValueError(f"position {high} is outside 0..{MAX_POSITION}")
    told = sending, b"%d" % high, batch.witness or b""
    group = _plain(batch.rows)
    if group is not None:
        bucket, rows, size, packed = group
        before, behind = _frame(script.digest, source_key, prefix, bucket, batch.token, ttl)
        counts = b"%d" % rows, b"%d" % size
        return b"".join([b"*%d\r\n" % (15 + 2 * rows), before, _bulk(told), behind, _bulk(counts), packed])
    groups = _group(batch.rows)
    buckets = {bucket: place for place, bucket in enumerate(dict.fromkeys(group.bucket for group in groups), start=2)}
    arguments = [str(batch.token).encode(), *told, b"%d" % ttl, b"%d" % len(groups)]
    for group in groups:
        arguments += [b"%d" % buckets[group.bucket], b"%d" % group.bucket, b"%d" % group.rows, b"%d" % group.size]
    keys = [source_key, *(b"%b%d" % (prefix, bucket) for bucket in buckets)]
    values = sum(2 * group.rows if group.rows > 0 else -group.rows for group in groups)
    head = _bulk([b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *arguments])
    total = 3 + len(keys) + len(arguments) + values
    return b"".join([b"*%d\r\n" % total, head, *[group.packed for group in groups]])


# A row to set, by how long its field's name is.
_ROWS = [b"$%d\r\n%%d.%%d\r\n$%%d\r\n%%b\r\n" % length for length in range(len(str(MAX_POSITION)) + 3)]


def _plain(rows: Sequence[tuple[int, int, bytes]]) -> _Group | None:
    """Nearly all batches: rows to set, of one bucket, with field names of one length. None for others."""
    if not rows:
        return None
    positions, indexes, values = zip(*rows, strict=True)
    first, last, bucket = min(positions), max(positions), positions[0] >> BUCKET_BITS
    digits = len(str(last))
    if first >> BUCKET_BITS != bucket or last >> BUCKET_BITS != bucket or len(str(first)) != digits:
        return None
    if min(indexes) < 0 or max(indexes) > 9 or last > MAX_POSITION or not all(values):
        return None
    row = _ROWS[digits + 2]
    packed = b"".join([row % (position, index, len(value), value) for position, index, value in rows])
    return _Group(bucket, len(rows), sum(map(len, values)), packed)


@lru_cache(maxsize=1024)
def _frame(digest: bytes, source_key: bytes, prefix: bytes, bucket: int, token: Token, ttl: int) -> tuple[bytes, bytes]:
    """What all plain batches of a bucket have in common: before the sending's number, and behind the witness."""
    before = b"EVALSHA", digest, b"2", source_key, b"%b%d" % (prefix, bucket), str(token).encode()
    return _bulk(before), _bulk([b"%d" % ttl, b"1", b"2", b"%d" % bucket])


def _group(rows: Sequence[tuple[int, int, bytes]]) -> list[_Group]:
    # Order matters only between rows of one field, so rows of one kind gather by bucket; a change of kind (rare:
    # deletions come with a retry) starts the gathering anew.
    if b"" not in [data for _, _, data in rows]:
        return _by_bucket(rows, _set)
    groups: list[_Group] = []
    for deleted, some in groupby(rows, key=lambda row: not row[2]):
        groups += _by_bucket(list(some), _delete if deleted else _set)
    return groups


def _by_bucket(
    rows: Sequence[tuple[int, int, bytes]], pack: Callable[[int, Sequence[tuple[int, int, bytes]]], _Group]
) -> list[_Group]:
    buckets = [position >> BUCKET_BITS for position, _, _ in rows]
    several = dict.fromkeys(buckets)
    if len(several) == 1:
        return [pack(buckets[0], rows)]
    return [pack(one, [row for row, bucket in zip(rows, buckets, strict=True) if bucket == one]) for one in several]


def _set(bucket: int, rows: Sequence[tuple[int, int, bytes]]) -> _Group:
    names = [b"%d.%d" % (position, index) for position, index, _ in rows]
    values = [data for _, _, data in rows]
    packed = [
        b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(value), value)
        for name, value in zip(names, values, strict=True)
    ]
    return _Group(bucket, len(rows), sum(map(len, values)), b"".join(packed))


def _delete(bucket: int, rows: Sequence[tuple[int, int, bytes]]) -> _Group:
    return _Group(bucket, -len(rows), 0, _bulk([b"%d.%d" % (position, index) for position, index, _ in rows]))
