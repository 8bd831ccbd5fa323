"""How the slots of one binding are shared out among its partitions. Pure: no I/O, no clock.

At most so many runs are in flight, one a slot; a run whose rows or outputs still wait for an acknowledgement is in
flight too. So that records that block in one partition can't take every slot, each partition keeps a reserve of half an
equal share to itself: one partition alone may use all slots, among n each is sure of ``limit // (2 * n)`` (at least one
where there are as many slots as partitions).

A run that stands still holds no slot. When it comes back it needs one, and those that come back go before new ones.
"""

from collections import deque
from collections.abc import Callable

from pyrula.kafka.partition import Partition

__all__ = ["Shares"]


class Shares:
    """The slots of one binding. `in_flight` counts those taken, `resting` the runs that stand still."""

    __slots__ = ("_reserve", "_returning", "_unused_reserve", "in_flight", "limit", "partitions", "resting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.resting = 0
        self.partitions: set[Partition] = set()
        self._reserve = 0
        self._unused_reserve = 0
        self._returning: deque[tuple[Partition, Callable[[], bool]]] = deque()

    @property
    def bodies(self) -> int:
        """How many bodies are in progress, or have rows or outputs on their way."""
        return self.in_flight - sum(partition.waiting for partition in self.partitions)

    def resize(self, limit: int) -> None:
        """At most so many from now on; those that are in flight already go on."""
        self.limit = limit
        self._share_out()

    def add(self, partition: Partition) -> None:
        """The partition has its share from now on."""
        self.partitions.add(partition)
        self._share_out()

    def remove(self, partition: Partition) -> None:
        """What the partition has in flight still counts; its share is the others'."""
        self.partitions.discard(partition)
        self._share_out()

    def _share_out(self) -> None:
        count = len(self.partitions)
        self._reserve = 0 if count < 2 else self.limit // (2 * count) or int(self.limit >= count)
        self._unused_reserve = sum(max(0, self._reserve - partition.in_flight) for partition in self.partitions)

    def room(self, partition: Partition) -> int:
        """How many runs of the partition may be in flight beside those that are."""
        room = self.limit - self.in_flight
        if self._reserve:
            own = max(0, self._reserve - partition.in_flight)
            room = min(room, own + max(0, room - self._unused_reserve))
        return room if partition.marks is None else min(room, partition.marks.room(partition.in_flight))

    def count(self, partition: Partition, more: int) -> None:
        """So many more runs of the partition are in flight, or fewer."""
        before = partition.in_flight
        partition.in_flight = after = before + more
        self.in_flight += more
        reserve = self._reserve
        if reserve and partition in self.partitions:
            self._unused_reserve += max(0, reserve - after) - max(0, reserve - before)
        if more < 0 and self._returning:
            self._let_back()

    def rest(self, partition: Partition) -> None:
        """A run stands still: its slot is free."""
        self.resting += 1
        self.count(partition, -1)

    def come_back(self, partition: Partition, take: Callable[[], bool]) -> None:
        """A run that stands still wants its slot: `take` is called when there is one, and says if it still needs it."""
        self._returning.append((partition, take))
        self._let_back()

    def enter(self, partition: Partition, *, rested: bool) -> None:
        """A run takes a slot, be there one or not; `rested`: one that stood still."""
        self.count(partition, 1)
        self.resting -= rested

    def _let_back(self) -> None:
        while self._returning and self.in_flight < self.limit:
            partition, take = self._returning.popleft()
            if take():
                self.enter(partition, rested=True)
