"""What has become of each record of a dev session: counts, what is unfinished, and how many bytes of that.

Told by acknowledged records (`on_sent`) and by the worker's events (`on_event`), in either order. No I/O, no clock.
A record counts once a binding, however often it is told of. It keeps one byte a record.
"""

from collections import Counter
from collections.abc import Mapping

from pyrula.kafka.events import RecordEvent

__all__ = ["FINISHED", "Tally"]

FINISHED = ("completed", "dead_lettered", "skipped", "cancelled")
_HELD = ("stopped", "paused", "blocked")
_CODES = {kind: code for code, kind in enumerate((*FINISHED, *_HELD, "retrying"), start=1)}
_FINISHED_CODES = frozenset(_CODES[kind] for kind in FINISHED)
_HELD_CODES = frozenset(_CODES[kind] for kind in _HELD)


class Tally:
    """Counts over the records of some bindings; `readers` says how many bindings read a topic."""

    def __init__(self, readers: Mapping[str, int]) -> None:
        self.counts: Counter[str] = Counter()
        self.finished = 0
        self.held = 0
        self.lost = 0
        self.sent = 0
        self.unfinished_bytes = 0
        self._readers = readers
        self._codes: dict[tuple[str, str, int], bytearray] = {}
        self._retried: set[tuple[str, str, int, int]] = set()
        self._open: dict[tuple[str, int, int], list[int]] = {}
        self._early: Counter[tuple[str, int, int]] = Counter()

    @property
    def retried(self) -> int:
        """Records whose run was tried more than once."""
        return len(self._retried)

    def unfinished(self) -> list[tuple[str, int, int]]:
        """Records of ours that some binding hasn't finished: topic, partition and offset."""
        return sorted(self._open)

    def on_sent(self, topic: str, partition: int, offset: int, size: int) -> None:
        """The broker has this record of ours."""
        self.sent += 1
        place = (topic, partition, offset)
        left = self._readers.get(topic, 0) - self._early.pop(place, 0)
        if left > 0:
            self._open[place] = [left, size]
            self.unfinished_bytes += size

    def on_event(self, event: RecordEvent) -> bool:
        """Take an event; True when it is the first of its kind for this record and binding."""
        if event.kind == "lost":
            self.lost += 1
            return True
        codes = self._codes.setdefault((event.binding, event.topic, event.partition), bytearray())
        if len(codes) <= event.offset:
            codes.extend(bytes(event.offset + 1 - len(codes)))
        before, code = codes[event.offset], _CODES[event.kind]
        if before in _FINISHED_CODES:
            return False
        if event.kind == "retrying":
            self._retried.add((event.binding, event.topic, event.partition, event.offset))
        self.held += (code in _HELD_CODES) - (before in _HELD_CODES)
        codes[event.offset] = code
        if code in _FINISHED_CODES:
            self.finished += 1
            self.counts[event.kind] += 1
            self._finish((event.topic, event.partition, event.offset))
        return before != code or event.kind == "retrying"

    def _finish(self, place: tuple[str, int, int]) -> None:
        entry = self._open.get(place)
        if entry is None:
            self._early[place] += 1
            return
        entry[0] -= 1
        if entry[0] == 0:
            del self._open[place]
            self.unfinished_bytes -= entry[1]
