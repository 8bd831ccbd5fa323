"""How much of one partition is in memory, and whether more of it is read just now.

Records count from when they were read until they are complete, by number and by bytes. The partition is paused at the
high mark and read again at half of it, so that it doesn't flutter. It is paused, too, while the window is full of what
a restart would have to read again. Knows no client: what pauses and resumes is a callable.
"""

from collections.abc import Callable, Sequence

from pyrula.kafka.record import RawRecord

__all__ = ["Bounds", "Buffer"]

# A buffered record costs this much beside its key, value and headers.
RECORD_OVERHEAD = 400

# Why a partition isn't read just now.
BUFFER, WINDOW, HALTED = 1, 2, 4


class Bounds:
    """How much of one partition may be in memory; computed anew after each assignment."""

    __slots__ = ("bytes", "records", "window_bytes", "window_offsets")

    def __init__(self, records: int, size: int, window_offsets: int, window_bytes: int) -> None:
        self.records = records
        self.bytes = size
        self.window_offsets = window_offsets
        self.window_bytes = window_bytes


class Buffer:
    """What one partition has in memory. `records` and `bytes` count it; `bounds` may be set anew."""

    __slots__ = ("_fetch", "_holds", "bounds", "bytes", "records")

    def __init__(self, bounds: Bounds, fetch: Callable[[bool], None]) -> None:
        self.bounds = bounds
        self.records = 0
        self.bytes = 0
        self._holds = 0
        self._fetch = fetch

    def add(self, records: Sequence[RawRecord]) -> None:
        """They were read."""
        self.records += len(records)
        self.bytes += _size(records)

    def drop(self, records: Sequence[RawRecord]) -> bool:
        """They are complete. Whether it may be at its low mark now: `check`."""
        self.records -= len(records)
        self.bytes -= _size(records)
        return bool(self._holds & BUFFER) and self.records * 2 <= self.bounds.records

    def check(self, span: int, journaled: int) -> None:
        """Pause or resume reading. `span` offsets would be read again after a restart, with so many bytes of rows."""
        bounds, holds = self.bounds, self._holds
        size = self.bytes + self.records * RECORD_OVERHEAD
        if self.records >= bounds.records or size >= bounds.bytes:
            holds |= BUFFER
        elif self.records * 2 <= bounds.records and size * 2 <= bounds.bytes:
            holds &= ~BUFFER
        if span >= bounds.window_offsets or journaled >= bounds.window_bytes:
            holds |= WINDOW
        else:
            holds &= ~WINDOW
        self._set_holds(holds)

    def halt(self, halted: bool) -> None:
        """Stop or go on reading for a reason of the binding's own."""
        self._set_holds(self._holds | HALTED if halted else self._holds & ~HALTED)

    def _set_holds(self, holds: int) -> None:
        before, self._holds = self._holds, holds
        if bool(before) != bool(holds):
            self._fetch(not holds)

    @property
    def held_by_window(self) -> bool:
        """True while the window (offsets or live journal) keeps the partition from being read."""
        return bool(self._holds & WINDOW)


def _size(records: Sequence[RawRecord]) -> int:
    """The bytes of keys, values and headers."""
    try:
        size = sum([len(record.value) + len(record.key) for record in records])
    except TypeError:  # one of them is null
        size = sum([len(record.value or b"") + len(record.key or b"") for record in records])
    return size + sum([_header_bytes(record) for record in records if record.headers])


def _header_bytes(record: RawRecord) -> int:
    return sum(len(name) + len(value or b"") for name, value in record.headers)
