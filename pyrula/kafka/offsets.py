"""Which records of a partition are done, and how far its offset may be committed.

Completion is out of order; what is committed is the contiguous prefix. Position, not counting, decides: an offset that
was never read though reading went past it (compacted away, a marker, an aborted batch) is a gap and holds nothing up.
A tracker belongs to one assignment and dies with it. Pure, and cheap per record: reading a batch and completing it are
operations of whole lists and sets, everything else is done once a commit.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]

# Offsets passed by the prefix stay in the list until they are this many and half of it.
_TRIM = 4096


class OffsetTracker:
    """The offsets of one partition: read, done, and committable.

    >>> tracker = OffsetTracker(10)
    >>> tracker.extend([10, 11, 13])
    >>> tracker.complete([11])
    >>> tracker.committable(), tracker.done_above()
    (10, [(11, 12)])
    >>> tracker.complete([10])
    >>> tracker.committable()
    13

    `position` is the committed offset that reading starts from; `done_ranges` are half-open ranges known to be done
    from the map of the last commit.
    """

    __slots__ = ("_added", "_ends", "_head", "_map_end", "_pending", "_position", "_starts")

    def __init__(self, position: int, done_ranges: Iterable[Range] = ()) -> None:
        # _added[_head:] are the offsets read and not yet passed by the prefix, ascending; _pending the undone of them.
        self._added: list[int] = []
        self._head = 0
        self._pending: set[int] = set()
        self._position = position
        ranges = _union((max(start, position), end) for start, end in done_ranges)
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]
        self._map_end = self._ends[-1] if ranges else position

    @property
    def has_map(self) -> bool:
        """True while offsets that the map at the start told of are still ahead of the position."""
        return self._map_end > self._position

    def is_done(self, offset: int) -> bool:
        """True if the map at the start told that this offset is done."""
        if offset >= self._map_end:
            return False
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def is_over(self, offset: int) -> bool:
        """True if the offset is known to need nothing more: done, or no record."""
        return self.is_done(offset) or (offset < self._position and offset not in self._pending)

    def add(self, offset: int) -> None:
        """One record was read. As `extend`."""
        self.extend((offset,))

    def extend(self, offsets: Sequence[int]) -> None:
        """Records were read, in ascending order. What the map told to be done counts as completed at once."""
        if not offsets:
            return
        first = offsets[0]
        if first < self._position:
            raise ValueError(f"offset {first} was read after position {self._position} had been reached")
        self._added.extend(offsets)
        self._position = offsets[-1] + 1
        if first >= self._map_end:
            self._pending.update(offsets)
        else:
            self._pending.update([offset for offset in offsets if not self.is_done(offset)])

    def complete(self, offsets: Iterable[int]) -> None:
        """The records need nothing more. Repeated, or for offsets this tracker never read, it changes nothing."""
        self._pending.difference_update(offsets)

    def advance(self, position: int) -> None:
        """Reading has reached `position`: what lies before it and was not read does not exist."""
        if position > self._position:
            self._position = position

    def committable(self) -> int:
        """Every record below this offset is done. Never goes back."""
        oldest = self.oldest()
        return self._position if oldest is None else oldest

    def oldest(self) -> int | None:
        """The lowest offset read that isn't done."""
        added, head, pending = self._added, self._head, self._pending
        if not pending:
            added.clear()
            self._head = 0
            return None
        while added[head] not in pending:
            head += 1
        if head >= _TRIM and head * 2 >= len(added):
            del added[:head]
            head = 0
        self._head = head
        return added[head]

    @property
    def unfinished(self) -> int:
        """How many records were read and aren't done."""
        return len(self._pending)

    @property
    def position(self) -> int:
        """The offset after the last one read or skipped."""
        return self._position

    @property
    def span(self) -> int:
        """Offsets between the committable one and the position: what a restart would have to read again."""
        return self._position - self.committable()

    def done_above(self) -> list[Range]:
        """The done offsets above the committable one, as ascending half-open ranges.

        A range runs over gaps, begins with a done record and ends after one. What the map at the start told
        of offsets that are yet to be read is part of it, so that a commit soon after a restart forgets nothing.
        """
        ranges = self._done_read() if self.oldest() is not None else []
        position = self._position
        if self._map_end > position:
            for start, end in zip(self._starts, self._ends, strict=True):
                if end > position:
                    ranges.append((max(start, position), end))
            # Only the seam at the position can need it, but the lists are short.
            ranges = _union(ranges)
        return ranges

    def _done_read(self) -> list[Range]:
        added, head, pending = self._added, self._head, self._pending
        last = len(added)
        if len(pending) == last - head:
            return []
        while added[last - 1] in pending:
            last -= 1
        ranges: list[Range] = []
        before = head
        # Neighbours in this list with nothing between them enclose no done record, only (perhaps) a gap.
        for at in [at for at, offset in enumerate(added[head:last], head) if offset in pending]:
            if at > before + 1:
                ranges.append((added[before + 1], added[at - 1] + 1))
            before = at
        if last > before + 1:
            ranges.append((added[before + 1], added[last - 1] + 1))
        return ranges


def _union(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets as ascending ranges that neither overlap nor touch; empty ones are left out."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
