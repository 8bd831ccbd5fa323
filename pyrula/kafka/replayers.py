"""The replayers of one binding: which of its records are run, and when.

All that can be done at once is done in one pass a turn of the loop, bounded so that fetches and heartbeats get their
turns: the runs whose rows have become durable end or go on, then heads of free lanes start, as many as `Shares` has
room for. Partitions are served in turn. How a body is started and brought to its end is in `bodies`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from time import monotonic
from typing import Any

from pyrula.kafka.beginnings import Beginnings
from pyrula.kafka.binding import Binding
from pyrula.kafka.bodies import Bodies
from pyrula.kafka.completions import Completions, Endings
from pyrula.kafka.events import BindingStats
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.shares import Shares
from pyrula.kafka.solitude import Solitude
from pyrula.kafka.standing import Standing
from pyrula.workflows.clock import Clock
from pyrula.workflows.group_commit import Flush

# After so many bodies in one go, or so many seconds, the loop's other tasks run (fetches, heartbeats, flushes). With
# too few of them the cost of a flush is shared by few rows. With too many, most of the slots' rows leave in one flush:
# few slots are left for what could be done while it is under way.
BURST = 64
PASS_SECONDS = 0.005
# Records of one partition served before the next partition's turn.
TURN = 64


class Replayers:
    """The pool of one binding in this process."""

    def __init__(self, binding: Binding, endings: Endings, clock: Clock) -> None:
        self.binding = binding
        self.stats = BindingStats(binding.name)
        self.halted: str | None = None
        self._shares = Shares(binding.max_concurrency)
        self._beginnings = Beginnings(
            self._shares.partitions, self.leave, endings.condemn, Solitude(lambda: self.bodies, self.wake)
        )
        self._completions = Completions(binding, self.stats, self._shares, endings, self.offer)
        self._bodies = Bodies(binding, self._shares, self._beginnings, self._completions, endings, clock, self.wake)
        self._rotation: deque[Partition] = deque()
        self._settled: deque[tuple[Partition, Flush]] = deque()
        self._rested: deque[RecordRun] = deque()
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        # Bodies see the variables of who made the pool, not of whoever happens to bring work.
        self._context = copy_context()
        self._scheduled = False
        self._watching = False

    @property
    def standing(self) -> Standing:
        """Until when anything may start."""
        return self._beginnings.standing

    @standing.setter
    def standing(self, standing: Standing) -> None:
        self._beginnings.standing = standing

    @property
    def solitude(self) -> Solitude:
        """Who may have the process to itself."""
        return self._beginnings.solitude

    @solitude.setter
    def solitude(self, solitude: Solitude) -> None:
        self._beginnings.solitude = solitude

    @property
    def on_completed(self) -> Callable[[RecordRun], None] | None:
        """Who is told of each run that needed nothing but its rows."""
        return self._completions.told

    @on_completed.setter
    def on_completed(self, told: Callable[[RecordRun], None] | None) -> None:
        self._completions.told = told

    @property
    def in_flight(self) -> int:
        """How many runs have a slot."""
        return self._shares.in_flight

    @property
    def bodies(self) -> int:
        """How many bodies are in progress, or have rows or outputs on their way."""
        return self._shares.bodies

    def resize(self, limit: int) -> None:
        """At most so many runs in flight from now on; those that are already go on."""
        if limit != self._shares.limit:
            self._shares.resize(limit)
            self._tell_shares()
            self.wake()

    def add(self, partition: Partition) -> None:
        """Serve a partition from now on."""
        partition.on_flushed = self._on_flushed
        self._shares.add(partition)
        self._tell_shares()

    def remove(self, partition: Partition) -> None:
        """Start nothing more of a partition; what runs goes on."""
        if partition.in_rotation:
            self._rotation.remove(partition)
            partition.in_rotation = False
        self._shares.remove(partition)
        self._tell_shares()

    def _tell_shares(self) -> None:
        self.stats.partitions = len(self._shares.partitions)

    def offer(self, partition: Partition) -> None:
        """The partition may have heads of lanes ready: see that they are taken."""
        if not partition.in_rotation and partition.lanes.ready and partition in self._shares.partitions:
            partition.in_rotation = True
            self._rotation.append(partition)
        self.wake()

    def wake(self) -> None:
        """Start, in the loop's next turn, what may be started."""
        if self._rotation and not self.halted and self._shares.in_flight < self._shares.limit:
            self._schedule()

    def leave(self, partition: Partition) -> None:
        """A run of the partition is no longer in flight."""
        self._shares.count(partition, -1)

    def rest(self, partition: Partition) -> None:
        """A run stands still: its slot is free."""
        self._shares.rest(partition)
        self.offer(partition)

    def come_back(self, partition: Partition, take: Callable[[], bool]) -> None:
        """A run that stands still wants its slot: `take` is called when there is one, and says if it still needs it."""
        self._shares.come_back(partition, take)

    def enter(self, partition: Partition, *, rested: bool) -> None:
        """A run takes a slot, be there one or not."""
        self._shares.enter(partition, rested=rested)

    def linger(self, partition: Partition, record: RawRecord, leftovers: Iterable[asyncio.Future[Any]]) -> None:
        """A cut run left these behind: the next record of its lane waits for them."""
        self._beginnings.linger(partition, record, leftovers)

    async def stop(self) -> None:
        """End the replayers; their runs must have ended before."""
        self._stopped = True
        await self._bodies.stop()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pass, context=self._context)

    def _pass(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        while self._settled:
            self._rested += self._completions.settled(*self._settled.popleft())
        until = min(monotonic() + PASS_SECONDS, self.standing.until)
        left = BURST - self._bodies.go_on(self._rested, BURST, until)
        left = self._start(left, until)
        if left <= 0 or monotonic() > until:
            self._go_on()
        elif not self._shares.in_flight:
            self._bodies.forget()

    def _go_on(self) -> None:
        """In the loop's next turn; or if the group may have gone on without us, when it has answered."""
        if monotonic() <= self.standing.until:
            self._schedule()
        elif not self._watching:
            self._watching = True
            self.standing.on_change(self._on_standing)

    def _on_standing(self) -> None:
        self._watching = False
        self._schedule()

    def _start(self, left: int, until: float) -> int:
        """Start heads of lanes, so many at most, and none after `until`. Answers how many more there may be."""
        rotation, full = self._rotation, 0
        while full < len(rotation) and left > 0 and not self.halted and not self.solitude.wanted:
            partition = rotation[0]
            if not partition.lanes.ready:
                rotation.popleft()
                partition.in_rotation = False
                continue
            room = self._shares.room(partition)
            if room <= 0:
                rotation.rotate(-1)
                full += 1
                continue
            if monotonic() > until:
                break
            replayer = self._bodies.replayer()
            if replayer is None:
                break
            full = 0
            left -= self._bodies.start(partition, min(left, TURN), room, replayer, until)
            if rotation and rotation[0] is partition:
                rotation.rotate(-1)
        return left

    def _on_flushed(self, partition: Partition, flush: Flush) -> None:
        self._settled.append((partition, flush))
        self._schedule()
