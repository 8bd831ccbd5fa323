"""Rings of owners in memory: who is next in a place, and what is next of an owner.

The same algorithm as the scripts' ring, seat, own and q (docs/formats-runs.md, "The queue"), so that both stores claim
in one order. A class is a (name, version) pair, version None for runs without a stamp. A place is where items wait:
the ready runs of a class (`gate` None), or what a gate holds back of it. No I/O, no clock.
"""

from bisect import bisect_left, insort
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Class: TypeAlias = tuple[str, str | None]
SortKey: TypeAlias = tuple[int, int]
"""What is taken first of an owner's: a lower priority byte, then an older submission."""

I = TypeVar("I")  # noqa: E741


class Gate(NamedTuple):
    """`kind` is "l" (Limit) or "r" (Rate); the key is resolved."""

    kind: str
    workflow: str
    key: str


class Place(NamedTuple):
    """A ring's name."""

    cls: Class
    gate: Gate | None = None


class Rings(Generic[I]):
    """Items of owners, each in one place."""

    def __init__(self) -> None:
        self._tick = 0
        self._rings: dict[Place, list[tuple[int, int, str]]] = {}
        self._seats: dict[tuple[Place, str], tuple[int, int]] = {}
        self._items: dict[tuple[Place, str], list[tuple[SortKey, I]]] = {}
        self._served: dict[str, tuple[int, int]] = {}
        """Owner -> number of its seats, tick of its last serve."""

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    def add(self, place: Place, owner: str, key: SortKey, item: I, since: int | None = None) -> None:
        """`since` is None for what waits from now on."""
        items = self._items.setdefault((place, owner), [])
        insort(items, (key, item), key=lambda pair: pair[0])
        if (place, owner) not in self._seats:
            since = self.tick() if since is None else since
            self.sit(place, owner, since, since)
            seats, last = self._served.get(owner, (0, 0))
            self._served[owner] = (seats + 1, last)

    def remove(self, place: Place, owner: str, key: SortKey) -> None:
        items = self._items[place, owner]
        del items[bisect_left(items, key, key=lambda pair: pair[0])]
        if items:
            return
        del self._items[place, owner]
        self._rise(place, owner)
        del self._seats[place, owner]
        seats, last = self._served[owner]
        if seats == 1:
            del self._served[owner]
        else:
            self._served[owner] = (seats - 1, last)

    def rekey(self, place: Place, owner: str, old: SortKey, new: SortKey, item: I) -> None:
        """The same item, with another sort key; the owner keeps its seat."""
        items = self._items[place, owner]
        del items[bisect_left(items, old, key=lambda pair: pair[0])]
        insort(items, (new, item), key=lambda pair: pair[0])

    def sit(self, place: Place, owner: str, turn: int, since: int) -> None:
        """Take a seat, or another one than before."""
        if (place, owner) in self._seats:
            self._rise(place, owner)
        self._seats[place, owner] = (turn, since)
        insort(self._rings.setdefault(place, []), (turn, since, owner))

    def _rise(self, place: Place, owner: str) -> None:
        ring = self._rings[place]
        del ring[bisect_left(ring, (*self._seats[place, owner], owner))]
        if not ring:
            del self._rings[place]

    def head(self, place: Place) -> tuple[int, int, str] | None:
        """Turn, since and owner of who is next."""
        ring = self._rings.get(place)
        return ring[0] if ring else None

    def first(self, place: Place, owner: str) -> I:
        return self._items[place, owner][0][1]

    def seated(self, place: Place, owner: str) -> bool:
        return (place, owner) in self._seats

    def last_served(self, owner: str) -> int:
        return self._served[owner][1]

    def serve(self, owner: str, tick: int) -> None:
        self._served[owner] = (self._served[owner][0], tick)

    def ahead(self, place: Place, owner: str, key: SortKey) -> tuple[int, list[I]]:
        """How many owners are before this one, and its items before that of this key."""
        ring, items = self._rings[place], self._items[place, owner]
        owners = bisect_left(ring, (*self._seats[place, owner], owner))
        return owners, [item for _, item in items[: bisect_left(items, key, key=lambda pair: pair[0])]]

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))
