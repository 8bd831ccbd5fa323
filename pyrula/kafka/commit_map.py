"""The text in an offset commit's metadata: which records above the committed offset are done, and of which log.

    pyrula1:<base64url of: checksum, flags, committed offset, store, witness, anchor, ranges>

A map is a promise not to run records again, so what can't be trusted is refused whole: text of others, damage, a newer
format, a map that was written for another committed offset, claims at or past the end of the log. Such metadata costs a
replay; a wrong map would cost records. Any part of a map is valid, so what doesn't fit is left out, highest first. Only
offsets up to the witness are claimed, since it is by the witness that the log is known again. If it isn't, the anchor,
a record below the committed offset, tells a log that was cut from one that was made again.

Pure. Time and memory of both ways grow with the length of the text only, never with the numbers written in it. The
bytes are described in docs/formats.md.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from zlib import crc32

from pyrula.kafka.offsets import Range
from pyrula.kafka.record import PrintParts, Witness

# What a broker takes unless offset.metadata.max.bytes says otherwise, and the longest text its protocol can carry.
DEFAULT_LIMIT = 4096
LONGEST = 32_767

_VERSION = 1
_MAGIC = f"pyrula{_VERSION}:"
_OURS = re.compile(r"pyrula([0-9]{1,9}):")

_KIND, _RUNS, _BITS = 0b11, 1, 2
_WITNESS, _NULL_KEY, _NULL_VALUE = 0b100, 0b1000, 0b10000
# The anchor's flags are those of the witness, three bits higher.
_ANCHOR_BITS = 3
_STORE_BYTES = 8


@dataclass(frozen=True, slots=True)
class CommitMap:
    """Metadata that Pyrula wrote: offsets in `ranges` (half-open, ascending) are done if `witness` is still there."""

    committed: int
    ranges: tuple[Range, ...]
    witness: Witness | None
    store: bytes
    anchor: Witness | None = None

    def written_with(self, instance: str) -> bool:
        """True if the journal was in the store with this instance id when the commit was made."""
        return self.store == _store_digest(instance)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Metadata that is not used, and why: "none" when there is no text at all, else words for a warning.

    `anchor` is that of a map of ours that tells of more than the log has.
    """

    reason: str
    anchor: Witness | None = None


def encode(
    committed: int,
    ranges: Sequence[Range],
    witness: Witness | None,
    instance: str,
    limit: int = DEFAULT_LIMIT,
    *,
    anchor: Witness | None = None,
) -> str:
    """The metadata for a commit at `committed`: ASCII, at most `limit` bytes, with as many of `ranges` as fit.

    `ranges` are ascending, half-open and do not touch, as ``OffsetTracker.done_above`` gives them. `witness` is a
    record at or above the last offset they cover; what lies above it is left out (without a witness, everything).
    `anchor` is a record below `committed` and the witness. Under some 40 bytes of limit nothing fits, and the text is
    empty.
    """
    room = (min(limit, LONGEST) - len(_MAGIC)) * 3 // 4
    store = _store_digest(instance)
    bare = _sealed(0, committed, store, b"", b"")
    if len(bare) > room:
        return ""
    body = bare
    if witness is not None:
        flags, packed = _pack_witness(witness)
        if anchor is not None and anchor.offset < min(committed, witness.offset):
            more, anchored = _pack_witness(anchor)
            if len(bare) + len(packed) + len(anchored) <= room:
                flags, packed = flags | more << _ANCHOR_BITS, packed + anchored
        head = _sealed(flags, committed, store, packed, b"")
        if len(head) <= room:
            kind, claims = _pack_ranges(committed, _within(ranges, committed, witness.offset + 1), room - len(head))
            body = _sealed(flags | kind, committed, store, packed, claims)
    return _MAGIC + urlsafe_b64encode(body).rstrip(b"=").decode()


def decode(text: str | None, committed: int, end: int) -> CommitMap | Foreign:
    """Read a commit's metadata. `committed` is the offset it came with, `end` the log's end offset at assignment."""
    if not text:
        return Foreign("none")
    found = _OURS.match(text)
    if found is None:
        return Foreign("it was not written by Pyrula")
    if found[1] != str(_VERSION):
        return Foreign(f"its format is version {found[1]}, and this Pyrula reads version {_VERSION}")
    if len(text) > LONGEST:
        return Foreign("it is longer than any commit's metadata")
    try:
        read = _read(text)
    except (ValueError, IndexError):
        return Foreign("it is damaged")
    if read.committed != committed:
        return Foreign(f"it was written for a commit at offset {read.committed}, and this one is at {committed}")
    highest = max(read.ranges[-1][1] if read.ranges else 0, 0 if read.witness is None else read.witness.offset + 1)
    if highest > end:
        return Foreign(f"it tells of offset {highest - 1}, and the log ends at {end}", read.anchor)
    return read


def _read(text: str) -> CommitMap:
    """Raises ValueError or IndexError for anything `encode` doesn't write."""
    coded = text[len(_MAGIC) :].encode("ascii")
    body = urlsafe_b64decode(coded + b"=" * (-len(coded) % 4))
    # The decoder skips what is no base64 and ignores spare bits; a text has one spelling only.
    if urlsafe_b64encode(body).rstrip(b"=") != coded:
        raise Base64Error
    if int.from_bytes(body[:4], "big") != _checksum(body[4:]):
        raise ValueError
    flags = body[4]
    committed, at = _number(body, 5)
    store, at = body[at : at + _STORE_BYTES], at + _STORE_BYTES
    if len(store) != _STORE_BYTES:
        raise ValueError
    witness, at = _unpack_witness(body, at, flags)
    anchor, at = _unpack_witness(body, at, flags >> _ANCHOR_BITS)
    if anchor is not None and (witness is None or anchor.offset >= min(committed, witness.offset)):
        raise ValueError
    ranges: tuple[Range, ...] = ()
    kind = flags & _KIND
    if kind == _RUNS:
        ranges = tuple(_unpack_runs(body, at, committed))
    elif kind == _BITS:
        ranges = tuple(_unpack_bits(body, at, committed))
    elif kind or at != len(body):
        raise ValueError
    if ranges and (witness is None or ranges[-1][1] > witness.offset + 1):
        raise ValueError
    return CommitMap(committed, ranges, witness, store, anchor)


def _sealed(flags: int, committed: int, store: bytes, witness: bytes, claims: bytes) -> bytes:
    body = bytes((flags,)) + _varint(committed) + store + witness + claims
    return _checksum(body).to_bytes(4, "big") + body


def _checksum(body: bytes) -> int:
    return crc32(body, crc32(_MAGIC.encode()))


def _store_digest(instance: str) -> bytes:
    return blake2b(instance.encode("utf-8", "surrogatepass"), digest_size=_STORE_BYTES).digest()


def _varint(number: int) -> bytes:
    """Seven bits a byte, lowest first, the high bit set on all but the last."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(body: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. Raises for more than 64 bits and for a second spelling of a number."""
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError
    if (byte == 0 and shift) or number >> 64:
        raise ValueError
    return number, at


def _pack_witness(witness: Witness) -> tuple[int, bytes]:
    timestamp, key, value = PrintParts.parse(witness.fingerprint)
    flags = _WITNESS | (_NULL_KEY if key is None else 0) | (_NULL_VALUE if value is None else 0)
    zigzag = timestamp << 1 if timestamp >= 0 else (-timestamp << 1) - 1
    packed = _varint(witness.offset) + _varint(zigzag)
    return flags, packed + b"".join(crc.to_bytes(4, "big") for crc in (key, value) if crc is not None)


def _unpack_witness(body: bytes, at: int, flags: int) -> tuple[Witness | None, int]:
    if not flags & _WITNESS:
        if flags & (_NULL_KEY | _NULL_VALUE):
            raise ValueError
        return None, at
    offset, at = _number(body, at)
    zigzag, at = _number(body, at)
    crcs: list[int | None] = []
    for null in (_NULL_KEY, _NULL_VALUE):
        if flags & null:
            crcs.append(None)
        else:
            if at + 4 > len(body):
                raise ValueError
            crcs.append(int.from_bytes(body[at : at + 4], "big"))
            at += 4
    timestamp = zigzag >> 1 if not zigzag & 1 else -((zigzag + 1) >> 1)
    return Witness(offset, str(PrintParts(timestamp, crcs[0], crcs[1]))), at


def _within(ranges: Sequence[Range], low: int, high: int) -> Sequence[Range]:
    """The part of the ranges from `low` up to `high`."""
    if not ranges or (ranges[0][0] >= low and ranges[-1][1] <= high):
        return ranges
    clipped = ((max(start, low), min(end, high)) for start, end in ranges)
    return [(start, end) for start, end in clipped if start < end]


def _pack_ranges(committed: int, ranges: Sequence[Range], room: int) -> tuple[int, bytes]:
    """The form that covers more of `ranges` in `room` bytes, else the shorter one; kind 0 when nothing fits."""
    runs, covered_by_runs = _pack_runs(committed, ranges, room)
    bits, covered_by_bits = _pack_bits(committed, ranges, room)
    if not covered_by_runs and not covered_by_bits:
        return 0, b""
    if (covered_by_bits, -len(bits)) > (covered_by_runs, -len(runs)):
        return _BITS, bits
    return _RUNS, runs


def _pack_runs(committed: int, ranges: Sequence[Range], room: int) -> tuple[bytes, int]:
    """Pairs of varints: distance from the end of the range before (from `committed` at first), and length."""
    out = bytearray()
    covered, before = 0, committed
    for start, end in ranges:
        gap, length = start - before, end - start
        # Nearly always both are below 128, and then they are their own varints.
        pair = bytes((gap, length)) if gap < 0x80 and length < 0x80 else _varint(gap) + _varint(length)
        if len(out) + len(pair) > room:
            break
        out += pair
        covered += length
        before = end
    return bytes(out), covered


def _unpack_runs(body: bytes, at: int, committed: int) -> Iterator[Range]:
    before = committed
    while at < len(body):
        gap, at = _number(body, at)
        length, at = _number(body, at)
        start, end = before + gap, before + gap + length
        if not length or (not gap and before != committed):
            raise ValueError
        yield start, end
        before = end


def _pack_bits(committed: int, ranges: Sequence[Range], room: int) -> tuple[bytes, int]:
    """A varint, the distance from `committed` to the first range; then a bit for each offset, highest bit first."""
    if not ranges:
        return b"", 0
    first = ranges[0][0]
    head = _varint(first - committed)
    last = first + max(room - len(head), 0) * 8
    pieces: list[str] = []
    covered, before = 0, first
    for start, end in ranges:
        if start >= last:
            break
        end = min(end, last)
        pieces.append("0" * (start - before))
        pieces.append("1" * (end - start))
        covered += end - start
        before = end
    if not covered:
        return b"", 0
    size = -(-(before - first) // 8)
    pieces.append("0" * (size * 8 - (before - first)))
    return head + int("".join(pieces), 2).to_bytes(size, "big"), covered


def _unpack_bits(body: bytes, at: int, committed: int) -> Iterator[Range]:
    distance, at = _number(body, at)
    data = body[at:]
    # The first offset is done and the last byte holds a done one, else there would be a shorter spelling.
    if not data or data[0] < 0x80 or not data[-1]:
        raise ValueError
    first = committed + distance
    for run in re.finditer("1+", f"{int.from_bytes(data, 'big'):b}"):
        yield first + run.start(), first + run.end()
