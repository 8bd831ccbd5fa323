"""What a record is: the value handed to workflows, its identity, its fingerprint, and the id of its run.

A record's identity is (cluster, group, topic, partition, offset). A fingerprint tells whether the record at an offset
is still the one a journal or a completion map was written for, so that a topic made again under its old name meets
nothing of the old log. Pure: no I/O and no clock. The texts and bytes made here are stored, so they are described in
docs/formats.md; a raw record is any object with the attributes of ``RawRecord``, and doesn't know where it was read.
"""

import re
import struct
from base64 import b32encode
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

_FINGERPRINT = re.compile(r"(0|-?[1-9a-f][0-9a-f]{0,15})\.(~|[0-9a-f]{8})\.(~|[0-9a-f]{8})")
_PACKED_PRINT = struct.Struct(">BqII")
_PACKED_OFFSET = struct.Struct(">q")
_NULL_KEY, _NULL_VALUE = 1, 2
_INT64 = 1 << 63

_RUN_ID = re.compile(r"([0-9a-f]{2})-k([a-z2-7]{10})-(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,18}))?")


class RawRecord(Protocol):
    """A record as a Kafka client gives it. `timestamp` is in milliseconds, negative or None when the log has none."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """A Kafka record, with its value decoded as T. Key and headers stay as they were sent.

    A workflow gets one by asking for it:

    >>> async def charge_order(ctx, order: Record[dict]): ...

    `key` is None for a null key and b"" for an empty one. Headers keep their order and their duplicates; a header's
    value is None where the producer sent null.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: T
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def timestamp(self) -> datetime:
        """`timestamp_ms` as an aware UTC datetime, held within what a datetime can say (a producer may send any)."""
        return _EPOCH + timedelta(milliseconds=min(max(self.timestamp_ms, _FIRST_MS), _LAST_MS))

    @classmethod
    def of(cls, raw: RawRecord, value: T, place: tuple[str, int]) -> "Record[T]":
        """The record `raw` of a topic's partition, its value replaced by the decoded one."""
        timestamp: int | None = raw.timestamp
        record: Record[T] = object.__new__(cls)
        _set_topic(record, place[0])
        _set_partition(record, place[1])
        _set_offset(record, raw.offset)
        _set_key(record, raw.key)
        _set_value(record, value)
        _set_headers(record, tuple(raw.headers))
        _set_timestamp(record, -1 if timestamp is None else timestamp)
        return record


# A frozen dataclass's own constructor takes twice as long, and there is one of these per record.
_set_topic, _set_partition, _set_offset, _set_key, _set_value, _set_headers, _set_timestamp = (
    vars(Record)[field.name].__set__ for field in fields(Record)
)


def fingerprint(raw: RawRecord) -> str:
    """`<timestamp>.<crc of key>.<crc of value>` in hexadecimal, "~" for null: the same for the same record, always."""
    timestamp: int | None = raw.timestamp
    key, value = raw.key, raw.value
    if key is None or value is None or timestamp is None:
        crcs = [None if content is None else crc32(content) for content in (key, value)]
        return str(PrintParts(-1 if timestamp is None else timestamp, *crcs))
    return "%x.%08x.%08x" % (timestamp, crc32(key), crc32(value))  # noqa: UP031 - a third faster than an f-string


class PrintParts(NamedTuple):
    """A fingerprint taken apart; a checksum is None where the record has null."""

    timestamp_ms: int
    key: int | None
    value: int | None

    def __str__(self) -> str:
        key = "~" if self.key is None else f"{self.key:08x}"
        value = "~" if self.value is None else f"{self.value:08x}"
        return f"{self.timestamp_ms:x}.{key}.{value}"

    @classmethod
    def parse(cls, text: str) -> "PrintParts":
        """Take a fingerprint apart. Raises ValueError for any text that `fingerprint` doesn't write."""
        found = _FINGERPRINT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:80]!r} is not the fingerprint of a record")
        timestamp, key, value = found.groups()
        number = int(timestamp, 16)
        if not -_INT64 <= number < _INT64:
            raise ValueError(f"{text[:80]!r} is not the fingerprint of a record: its timestamp has more than 64 bits")
        return cls(number, None if key == "~" else int(key, 16), None if value == "~" else int(value, 16))


class Witness(NamedTuple):
    """A record by which a log is known again: if another record is found at `offset`, it is another log.

    ``bytes(witness)`` is 25 bytes; `from_bytes` takes them back.
    """

    offset: int
    fingerprint: str

    def __bytes__(self) -> bytes:
        return self.to_bytes()

    def to_bytes(self) -> bytes:
        """Offset, flags, timestamp and both checksums, big-endian. Raises ValueError if `fingerprint` isn't one."""
        timestamp, key, value = PrintParts.parse(self.fingerprint)
        flags = (_NULL_KEY if key is None else 0) | (_NULL_VALUE if value is None else 0)
        return _PACKED_OFFSET.pack(self.offset) + _PACKED_PRINT.pack(flags, timestamp, key or 0, value or 0)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Witness":
        """Raises ValueError for bytes that `to_bytes` doesn't write."""
        if len(data) != _PACKED_OFFSET.size + _PACKED_PRINT.size:
            raise ValueError(f"a witness has {_PACKED_OFFSET.size + _PACKED_PRINT.size} bytes, not {len(data)}")
        (offset,) = _PACKED_OFFSET.unpack_from(data)
        flags, timestamp, key, value = _PACKED_PRINT.unpack_from(data, _PACKED_OFFSET.size)
        parts = PrintParts(timestamp, None if flags & _NULL_KEY else key, None if flags & _NULL_VALUE else value)
        witness = cls(offset, str(parts))
        if witness.to_bytes() != data:
            raise ValueError("not the bytes of a witness")
        return witness


def witness_bytes(raw: RawRecord) -> bytes:
    """As ``bytes(Witness(raw.offset, fingerprint(raw)))``, for those who need nothing else of it."""
    timestamp: int | None = raw.timestamp
    key, value = raw.key, raw.value
    flags = (_NULL_KEY if key is None else 0) | (_NULL_VALUE if value is None else 0)
    moment = -1 if timestamp is None else timestamp
    return _PACKED_OFFSET.pack(raw.offset) + _PACKED_PRINT.pack(flags, moment, crc32(key or b""), crc32(value or b""))


def _prefixed(parts: Sequence[str]) -> bytes:
    """Parts with their lengths before them, so that no two lists of parts give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def record_identity(cluster: str, group: str, topic: str, partition: int) -> bytes:
    """The 16 bytes that name a partition as a group sees it, in every key the store keeps for it."""
    return blake2b(_prefixed((cluster, group, topic, str(partition))), digest_size=16).digest()


@lru_cache(maxsize=1024)
def stream_digest(cluster: str, group: str, topic: str) -> str:
    """The ten characters that stand for (cluster, group, topic) in a run id."""
    digest = blake2b(_prefixed((cluster, group, topic)), digest_size=10).digest()
    return b32encode(digest).decode().lower()[:10]


def address_of(cluster: str, group: str, topic: str, partition: int) -> str:
    """What the ids of a partition's runs have between shard and offset."""
    return f"k{stream_digest(cluster, group, topic)}-{partition}"


def served_name(cluster: str, group: str, topic: str) -> str:
    """The name under which the runs of a topic's records are claimed: only a binding of theirs may execute them."""
    return f"@k{stream_digest(cluster, group, topic)}"


def run_id(shard: int, cluster: str, group: str, topic: str, partition: int, offset: int, incarnation: int = 1) -> str:
    """The id of the run of a record; the incarnation is written from the second on."""
    base = f"{shard:02x}-{address_of(cluster, group, topic, partition)}-{offset}"
    return base if incarnation == 1 else f"{base}.{incarnation}"


class RunAddress(NamedTuple):
    """A record's run id taken apart. `digest` is the ``stream_digest`` of its cluster, group and topic."""

    shard: int
    digest: str
    partition: int
    offset: int
    incarnation: int


def parse_run_id(text: str) -> RunAddress:
    """Take the id of a record's run apart. Raises ValueError for any text that `run_id` doesn't write."""
    found = _RUN_ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is not the id of a record's run")
    shard, digest, partition, offset, incarnation = found.groups()
    if incarnation == "1":
        raise ValueError(f"{text[:80]!r} is not the id of a record's run: the first incarnation is not written")
    return RunAddress(int(shard, 16), digest, int(partition), int(offset), int(incarnation or 1))
