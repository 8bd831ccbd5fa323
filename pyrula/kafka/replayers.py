"""The replayers of one binding: long-lived tasks that take the head of a free lane, run it, and say how it ended.

At most `max_concurrency` runs are in flight; a run whose rows or outputs still wait for an acknowledgement is in flight
too, though its replayer has gone on. Partitions are served in turn. So that records that block in one partition can't
take every slot, each partition keeps a reserve of half an equal share to itself: one partition alone may use all slots,
among n each is sure of ``max_concurrency // (2 * n)`` (at least one where there are as many slots as partitions).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Protocol

from aiokafka import TopicPartition

from pyrula.kafka.binding import Binding
from pyrula.kafka.events import BindingStats
from pyrula.kafka.partition import Partition, Raw, RecordRun
from pyrula.kafka.serde import RecordError
from pyrula.kafka.standing import Standing
from pyrula.workflows.clock import Clock
from pyrula.workflows.execution import Outcome

log = logging.getLogger("pyrula.kafka")

# After so many records in one go a replayer lets the loop's other tasks run (fetches, heartbeats, flushes).
BURST = 64
# Replayers on their way to work at once: one that is awake takes all there is, until its body waits and wakes others.
MOST_WAKING = 2
# Records of one partition served before the next partition's turn.
TURN = 16


class Endings(Protocol):
    """What becomes of a run that can't simply be counted as done."""

    def end(self, run: RecordRun, outcome: Outcome) -> None: ...

    def refuse(self, partition: Partition, record: Raw, error: RecordError) -> None: ...

    def broken(self, partition: Partition, record: Raw, error: Exception) -> None: ...


class Replayers:
    """The pool of one binding in this process."""

    def __init__(self, binding: Binding, endings: Endings, clock: Clock) -> None:
        self.binding = binding
        self.stats = BindingStats(binding.name)
        self.in_flight = 0
        self.halted: str | None = None
        self._endings = endings
        self._clock = clock
        self._limit = binding.max_concurrency
        self._arguments = binding.arguments
        self._rotation: deque[Partition] = deque()
        self._partitions: set[Partition] = set()
        self._reserve = 0
        self._unused_reserve = 0
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # Runs that stand still hold no slot, though their replayer waits for them; those that come back do need one.
        self._resting = 0
        self._returning: deque[tuple[Partition, Callable[[], bool]]] = deque()
        self._busy_lanes: dict[tuple[TopicPartition, object], asyncio.Future[Any]] = {}
        self._run_timeout = binding.run_timeout
        self._plain = binding.output is None and binding.keep != "all"
        self.standing = Standing()
        self.on_completed: Callable[[RecordRun], None] | None = None

    def resize(self, limit: int) -> None:
        """At most so many runs in flight from now on; those that are already go on."""
        if limit != self._limit:
            self._limit = limit
            self._share_out()
            self.wake()

    def add(self, partition: Partition) -> None:
        """Serve a partition from now on."""
        self._partitions.add(partition)
        self._share_out()

    def remove(self, partition: Partition) -> None:
        """Start nothing more of a partition; what runs goes on."""
        self._partitions.discard(partition)
        if partition.in_rotation:
            self._rotation.remove(partition)
            partition.in_rotation = False
        self._share_out()

    def _share_out(self) -> None:
        count = len(self._partitions)
        self.stats.partitions = count
        if count < 2:
            self._reserve = 0
        else:
            self._reserve = self._limit // (2 * count) or int(self._limit >= count)
        self._unused_reserve = sum(max(0, self._reserve - partition.in_flight) for partition in self._partitions)

    def offer(self, partition: Partition) -> None:
        """The partition may have heads of lanes ready: see that somebody takes them."""
        if not partition.in_rotation and partition.lanes.ready and partition in self._partitions:
            partition.in_rotation = True
            self._rotation.append(partition)
        self.wake()

    def wake(self) -> None:
        """Let one more replayer look for work, if there may be any."""
        if not self._rotation or self.halted or self.in_flight >= self._limit or self._waking >= MOST_WAKING:
            return
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                self._waking += 1
                waiter.set_result(None)
                return
        if len(self._tasks) < self._limit + self._resting:
            self._waking += 1
            task = asyncio.get_running_loop().create_task(self._replay(), name=f"replayer {self.binding.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _suspended(self) -> None:
        # The body really waits: others may run meanwhile. Two, so that a cold pool fills in a few turns.
        self.wake()
        self.wake()

    def _take(self) -> tuple[Partition, Any] | None:
        if self.halted:
            return None
        limit, rotation = self._limit, self._rotation
        free = limit - self.in_flight
        if free <= 0:
            return None
        for _ in range(len(rotation)):
            partition = rotation[0]
            ready = partition.lanes.ready
            if not ready:
                rotation.popleft()
                partition.in_rotation = False
                continue
            if partition.in_flight >= self._reserve and free <= self._unused_reserve:
                rotation.rotate(-1)
                continue
            partition.turn += 1
            if partition.turn >= TURN:
                partition.turn = 0
                rotation.rotate(-1)
            return partition, ready.popleft()
        return None

    def leave(self, partition: Partition) -> None:
        """A run of the partition is no longer in flight."""
        self.in_flight -= 1
        partition.in_flight -= 1
        if partition.in_flight < self._reserve and partition in self._partitions:
            self._unused_reserve += 1
        if self._returning:
            self._let_back()

    def rest(self, partition: Partition) -> None:
        """A run stands still: its slot is free."""
        self._resting += 1
        self.leave(partition)
        self.offer(partition)

    def come_back(self, partition: Partition, take: Callable[[], bool]) -> None:
        """A run that stands still wants its slot: `take` is called when there is one, and says if it still needs it."""
        self._returning.append((partition, take))
        self._let_back()

    def enter(self, partition: Partition, *, rested: bool) -> None:
        """A run takes a slot, be there one or not."""
        if partition.in_flight < self._reserve and partition in self._partitions:
            self._unused_reserve -= 1
        partition.in_flight += 1
        self.in_flight += 1
        self._resting -= rested

    def _let_back(self) -> None:
        while self._returning and self.in_flight < self._limit:
            partition, take = self._returning.popleft()
            if take():
                self.enter(partition, rested=True)

    async def _replay(self) -> None:
        loop = asyncio.get_running_loop()
        burst = 0
        self._waking -= 1
        while True:
            taken = self._take()
            if taken is None:
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
                self._waking -= 1
                burst = 0
                continue
            partition, head = taken
            if partition.in_flight < self._reserve:
                self._unused_reserve -= 1
            partition.in_flight += 1
            self.in_flight += 1
            try:
                now = monotonic()
                if now > self.standing.until or self._busy_lanes or type(head) is RecordRun or partition.addressed:
                    partition.waiting += 1
                    try:
                        run = await self._run_later(partition, head)
                    finally:
                        partition.waiting -= 1
                else:
                    run = self._new_run(partition, head, now)
                if run is not None:
                    partition.running[run.origin.offset] = run
                    outcome = run.start() or await (run.finish() if self._run_timeout is None else self._limited(run))
                    partition.running.pop(run.origin.offset, None)
                    self._ended(run, outcome)
            except Exception as error:  # noqa: BLE001 - one record must not end the replayer
                self._endings.broken(partition, head.origin if type(head) is RecordRun else head, error)
            except BaseException:
                self.leave(partition)
                raise
            burst += 1
            if burst >= BURST:
                burst = 0
                await asyncio.sleep(0)

    def _new_run(self, partition: Partition, record: Raw, now: float) -> RecordRun | None:
        """The run of a record; None if it can't be turned into one, and has been disposed of."""
        try:
            args, kwargs = self._arguments(record)
        except RecordError as error:
            self._endings.refuse(partition, record, error)
            return None
        run = RecordRun(
            self.binding.workflow,
            "",
            partition,
            args,
            kwargs,
            journal=partition.rows_of(record) if partition.journal else None,
            origin=record,
            clock=self._clock,
            on_suspend=self._suspended,
        )
        run.partition = partition
        run.print = None
        run.expired = False
        run.started = now
        return run

    async def _run_later(self, partition: Partition, head: Any) -> RecordRun | None:
        """The run of a head after what it has to wait for; None if nothing of it is to run here."""
        self._suspended()
        while monotonic() > self.standing.until:
            await self.standing.changed()
            if partition not in self._partitions:
                self.leave(partition)
                return None
        record = head.origin if type(head) is RecordRun else head
        if self._busy_lanes and record is head:
            await self._former_body(partition, head)
        attended = partition.addressed.get(record.offset)
        if attended is not None and not await attended.admit(record):
            return None
        if partition not in self._partitions:
            self.leave(partition)
            return None
        run = head if type(head) is RecordRun else self._new_run(partition, head, monotonic())
        attended = partition.addressed.get(record.offset)
        if attended is not None and run is not None and run.host is partition:
            attended.begin(run)
        return run

    def _ended(self, run: RecordRun, outcome: Outcome) -> None:
        """A body has ended. One that asked for nothing is done here; for the rest see the endings."""
        partition = run.partition
        plain = self._plain and run.host is partition
        if outcome.status == "completed" and run.flush is None and run.outputs is None and plain:
            partition.complete(run.origin)
            self.leave(partition)
            if not partition.in_rotation and partition.lanes.ready:
                self.offer(partition)
            self.stats.completed += 1
            if self.on_completed is not None:
                self.on_completed(run)
        else:
            self._endings.end(run, outcome)

    async def _limited(self, run: RecordRun) -> Outcome:
        assert self._run_timeout is not None

        def expire() -> None:
            run.expired = True
            run.cut()

        timer = asyncio.get_running_loop().call_later(self._run_timeout, expire)
        try:
            return await run.finish()
        finally:
            timer.cancel()

    async def _former_body(self, partition: Partition, record: Raw) -> None:
        """Wait for a body of the lane that an earlier assignment could not end (a thread can't be cancelled)."""
        former = self._busy_lanes.get(_lane_of(partition, record))
        if former is not None:
            log.warning(
                "%s: offset %d waits for an earlier body of its lane that still runs", partition.tp, record.offset
            )
            await asyncio.wait([former])

    def linger(self, partition: Partition, record: Raw, leftovers: Iterable[asyncio.Future[Any]]) -> None:
        """A cut run left these behind: the next record of its lane waits for them."""
        name = _lane_of(partition, record)
        former = self._busy_lanes.get(name)
        waiting = [*leftovers] if former is None else [former, *leftovers]
        gone: asyncio.Future[Any] = asyncio.gather(*waiting, return_exceptions=True)
        self._busy_lanes[name] = gone

        def forget(_: asyncio.Future[Any]) -> None:
            if self._busy_lanes.get(name) is gone:
                del self._busy_lanes[name]

        gone.add_done_callback(forget)

    async def stop(self) -> None:
        """End the replayers; their runs must have ended before."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _lane_of(partition: Partition, record: Raw) -> tuple[TopicPartition, object]:
    """What only one body at a time may run in: the lane, or the record alone where there is no order."""
    lane = partition.lanes.name(record.key)
    return partition.tp, record.offset if lane is None else lane
