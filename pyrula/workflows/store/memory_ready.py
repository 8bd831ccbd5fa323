"""The queue of ready runs in memory: owners in turn within a class, runs in order within an owner.

The same algorithm as the scripts' ring, seat and own (docs/formats-runs.md), so that both stores claim in one order. A
class is a (name, version) pair, version None for runs without a stamp. No I/O, no clock.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

Class = tuple[str, str | None]


@dataclass(slots=True)
class _Seat:
    turn: int
    since: int
    runs: list[tuple[int, str]] = field(default_factory=list)


class ReadyQueue:
    """Runs that wait for a worker. A run stands in it once."""

    def __init__(self) -> None:
        self._tick = 0
        self._submits = 0
        self._rings: dict[Class, list[tuple[int, int, str]]] = {}
        self._seats: dict[tuple[Class, str], _Seat] = {}
        self._served: dict[str, tuple[int, int]] = {}
        """Owner -> number of its seats, tick of its last serve."""
        self._places: dict[str, tuple[Class, str, int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def next_order(self) -> int:
        self._submits += 1
        return self._submits

    def add(self, run: str, cls: Class, owner: str, order: int) -> None:
        seat = self._seats.get((cls, owner))
        if seat is None:
            self._tick += 1
            seat = self._seats[cls, owner] = _Seat(self._tick, self._tick)
            seats, last = self._served.get(owner, (0, 0))
            self._served[owner] = (seats + 1, last)
            heapq.heappush(self._rings.setdefault(cls, []), (seat.turn, seat.since, owner))
        heapq.heappush(seat.runs, (order, run))
        self._places[run] = (cls, owner, order)

    def remove(self, run: str) -> None:
        place = self._places.pop(run, None)
        if place is None:
            return
        cls, owner, order = place
        seat = self._seats[cls, owner]
        seat.runs.remove((order, run))
        heapq.heapify(seat.runs)
        if not seat.runs:
            self._stand_up(cls, owner)

    def _stand_up(self, cls: Class, owner: str) -> None:
        # its entry in the ring is dropped when it is met
        del self._seats[cls, owner]
        seats, last = self._served[owner]
        if seats == 1:
            del self._served[owner]
        else:
            self._served[owner] = (seats - 1, last)

    def take(self, classes: Sequence[Class]) -> tuple[str, Class] | None:
        """The next run in turn."""
        while True:
            heads = [(head, cls) for cls in classes if (head := self._head(cls)) is not None]
            if not heads:
                return None
            (turn, since, owner), cls = min(heads, key=lambda pair: pair[0][:2])
            seats, last = self._served[owner]
            seat, ring = self._seats[cls, owner], self._rings[cls]
            if turn < last:
                # the owner had its turn in another class
                seat.turn = last
                heapq.heapreplace(ring, (last, since, owner))
                continue
            heapq.heappop(ring)
            self._tick += 1
            self._served[owner] = (seats, self._tick)
            _, run = heapq.heappop(seat.runs)
            del self._places[run]
            if seat.runs:
                seat.turn = seat.since = self._tick
                heapq.heappush(ring, (seat.turn, seat.since, owner))
            else:
                self._stand_up(cls, owner)
            return run, cls

    def _head(self, cls: Class) -> tuple[int, int, str] | None:
        ring = self._rings.get(cls)
        while ring:
            turn, since, owner = ring[0]
            seat = self._seats.get((cls, owner))
            if seat is not None and (seat.turn, seat.since) == (turn, since):
                return ring[0]
            heapq.heappop(ring)
        self._rings.pop(cls, None)
        return None
