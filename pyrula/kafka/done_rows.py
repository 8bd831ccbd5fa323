"""What a commit's metadata has no room for: which records above it are done, as rows of the partition's journal.

One row for each 1,024 offsets, a bitmap, written only while the map in the metadata is cut short, and only when the row
has changed. It stands at the last offset that it tells of, so it goes with the journal's bucket when the committed
offset has passed that. Any subset is valid, as of the map: what isn't told runs again.

Pure: no I/O.
"""

from collections.abc import Iterable, Sequence

from pyrula.kafka.offsets import Range
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.replay.journal import Entry, decode_row, encode_row
from pyrula.workflows.store.port import Row

# The index of such a row: below those of the run whose offset it stands at, and of its mark.
DONE_INDEX = -2

_BITS = 10
_OFFSETS = 1 << _BITS


class DoneRows:
    """The rows of one partition during one assignment, as far as they are known to be written."""

    __slots__ = ("_written",)

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._written = {row.position >> _BITS: _bitmap_of(row) for row in rows}

    def ranges(self) -> list[Range]:
        """What they tell, as ascending half-open ranges."""
        return [found for bucket, bitmap in sorted(self._written.items()) for found in _ranges(bucket, bitmap)]

    def write(self, ranges: Iterable[Range]) -> list[Row]:
        """The rows to be written so that these ranges are told, too."""
        bitmaps: dict[int, int] = {}
        for start, end in ranges:
            while start < end:
                bucket = start >> _BITS
                stop = min(end, (bucket + 1) << _BITS)
                bitmap = bitmaps.get(bucket, self._written.get(bucket, 0))
                bitmaps[bucket] = bitmap | ((1 << (stop - start)) - 1) << (start - (bucket << _BITS))
                start = stop
        changed = {bucket: bitmap for bucket, bitmap in bitmaps.items() if bitmap != self._written.get(bucket)}
        self._written.update(changed)
        return [_row(bucket, bitmap) for bucket, bitmap in changed.items()]

    def passed(self, below: int) -> None:
        """The journal under this offset is gone."""
        for bucket in [bucket for bucket in self._written if (bucket + 1) << _BITS <= below]:
            del self._written[bucket]


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows that tell what is done, and all others."""
    told = [row for row in rows if row.index == DONE_INDEX]
    return told, [row for row in rows if row.index != DONE_INDEX] if told else list(rows)


def _row(bucket: int, bitmap: int) -> Row:
    entry = Entry("done", "", "", "", None, None, dumps(f"{bitmap:x}"))
    return Row(((bucket + 1) << _BITS) - 1, DONE_INDEX, encode_row(entry, None))


def _bitmap_of(row: Row) -> int:
    entry, _ = decode_row(row.data)
    return int(loads(entry.value or b""), 16)


def _ranges(bucket: int, bitmap: int) -> list[Range]:
    found: list[Range] = []
    at = bucket << _BITS
    while bitmap:
        gap = (bitmap & -bitmap).bit_length() - 1
        bitmap >>= gap
        run = (~bitmap & (bitmap + 1)).bit_length() - 1
        bitmap >>= run
        found.append((at + gap, at + gap + run))
        at += gap + run
    return found
