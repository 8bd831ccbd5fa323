"""Lanes: which records of one partition may start, and in which order.

A lane is a queue of which only the head may run: one for each key (ordering ``"key"``), one for the whole partition
(``"partition"``), or none at all (``"unordered"``). With ``"key"`` a record whose key is null has no order and starts
whenever there is room; ``b""`` is a key like any other.

Pure: no I/O, no clock. Records are opaque here but for their ``key``. A lane exists only while one of its records runs
or waits, so memory follows the records, not the keys ever seen.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from pyrula.kafka.binding import Ordering

# The one lane of ordering="partition".
_WHOLE = object()


class Keyed(Protocol):
    """What lanes read of a record."""

    @property
    def key(self) -> bytes | None: ...


R = TypeVar("R", bound=Keyed)


class Lanes(Generic[R]):
    """The lanes of one partition during one assignment.

    ``ready`` holds the heads that may start, first come first served; who takes one from it owes a :meth:`leave` once
    the record has ended.
    """

    __slots__ = ("_lanes", "_ordering", "ready")

    def __init__(self, ordering: Ordering) -> None:
        self.ready: deque[R] = deque()
        self._ordering = ordering
        # A lane whose head runs and behind which nothing waits is None: most lanes never need a queue.
        self._lanes: dict[object, deque[R] | None] = {}

    def extend(self, records: Iterable[R]) -> None:
        """Put records at the end of their lanes, in the order given."""
        if self._ordering == "unordered":
            self.ready.extend(records)
            return
        whole = self._ordering == "partition"
        lanes, ready = self._lanes, self.ready
        for record in records:
            key: object | None = _WHOLE if whole else record.key
            if key is None:
                ready.append(record)
            elif key in lanes:
                queue = lanes[key]
                if queue is None:
                    lanes[key] = deque((record,))
                else:
                    queue.append(record)
            else:
                lanes[key] = None
                ready.append(record)

    def name(self, key: bytes | None) -> object | None:
        """The lane that a record with this key is in; None where it has no order."""
        if self._ordering == "key":
            return key
        return _WHOLE if self._ordering == "partition" else None

    def waiting(self) -> Iterator[R]:
        """All that haven't been let go, in no order that means anything. For rare questions only."""
        yield from self.ready
        for queue in self._lanes.values():
            yield from queue or ()

    def line(self, head: R) -> Iterator[R]:
        """A head that was let go, and what waits behind it, in order."""
        yield head
        name = self.name(head.key)
        yield from (name is not None and self._lanes.get(name)) or ()

    def advance(self, head: R, count: int) -> R | None:
        """The first `count` of a line are gone. The next counts as let go, like the head before it."""
        name = self.name(head.key)
        queue = self._lanes[name] if name is not None else None
        for _ in range(count - 1):
            assert queue is not None
            queue.popleft()
        if not queue:
            self._lanes.pop(name, None)
            return None
        following = queue.popleft()
        if not queue:
            self._lanes[name] = None
        return following

    def leave(self, records: Iterable[R]) -> None:
        """These records, heads of their lanes until now, have ended: those behind them become ready."""
        if self._ordering == "unordered":
            return
        whole = self._ordering == "partition"
        lanes, ready = self._lanes, self.ready
        for record in records:
            name: object | None = _WHOLE if whole else record.key
            if name is None:
                continue
            queue = lanes[name]
            if queue is None:
                del lanes[name]
                continue
            ready.append(queue.popleft())
            if not queue:
                lanes[name] = None

    def clear(self) -> None:
        """Forget everything that hasn't started."""
        self.ready.clear()
        self._lanes.clear()

    def __len__(self) -> int:
        """How many lanes have a record that runs or waits."""
        return len(self._lanes)
