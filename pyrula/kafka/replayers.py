"""The replayers of one binding: who runs the bodies of its records, and when.

All that can be done at once is done in one pass a turn of the loop, bounded so that fetches and heartbeats get their
turns: the runs whose rows have become durable end or go on, then heads of free lanes start. A replayer is a task. Every
body runs in one, so that it may ask for it and cancel it; the task itself is woken only for a body that waits for
something else than its rows.

At most `max_concurrency` runs are in flight; a run whose rows or outputs still wait for an acknowledgement is in flight
too. Partitions are served in turn. So that records that block in one partition can't take every slot, each partition
keeps a reserve of half an equal share to itself: one partition alone may use all slots, among n each is sure of
``max_concurrency // (2 * n)`` (at least one where there are as many slots as partitions).
"""

import asyncio
import logging
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

from aiokafka import TopicPartition

from pyrula.kafka.binding import Binding
from pyrula.kafka.deaths import Mark
from pyrula.kafka.events import BindingStats
from pyrula.kafka.partition import Partition, Raw, RecordRun
from pyrula.kafka.record import fingerprint
from pyrula.kafka.serde import RecordError
from pyrula.kafka.solitude import Solitude
from pyrula.kafka.standing import Standing
from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import StoreError
from pyrula.workflows.execution import Drive, Outcome
from pyrula.workflows.group_commit import Flush

log = logging.getLogger("pyrula.kafka")

# After so many bodies in one go, or so many seconds, the loop's other tasks run (fetches, heartbeats, flushes). With
# too few of them the cost of a flush is shared by few rows, with too many nothing is done while a flush is under way.
BURST = 128
PASS_SECONDS = 0.005
# Records of one partition served before the next partition's turn.
TURN = 16


class Endings(Protocol):
    """What becomes of a run that can't simply be counted as done."""

    def end(self, run: RecordRun, outcome: Outcome) -> None: ...

    def refuse(self, partition: Partition, record: Raw, error: RecordError) -> None: ...

    def broken(self, partition: Partition, record: Raw, error: Exception) -> None: ...

    def condemn(self, partition: Partition, record: Raw, mark: Mark) -> None: ...


class Replayer(Drive):
    """A task in which one body after the other runs.

    `called` is resolved when the task has to see to `run`, which waits for more than its rows, or to `head`, which
    can't begin yet; and cancelled when somebody cancels the task.
    """

    __slots__ = ("called", "head", "run")

    called: asyncio.Future[None]

    def __init__(self) -> None:
        super().__init__()
        self.run: RecordRun | None = None
        self.head: tuple[Partition, Any] | None = None


class Replayers:
    """The pool of one binding in this process."""

    def __init__(self, binding: Binding, endings: Endings, clock: Clock) -> None:
        self.binding = binding
        self.stats = BindingStats(binding.name)
        self.in_flight = 0
        self.halted: str | None = None
        self.standing = Standing()
        self.solitude = Solitude(lambda: self.bodies, self.wake)
        self.on_completed: Callable[[RecordRun], None] | None = None
        self._endings = endings
        self._clock = clock
        self._limit = binding.max_concurrency
        self._arguments = binding.arguments
        self._run_timeout = binding.run_timeout
        self._plain = binding.output is None and binding.keep != "all"
        self._rotation: deque[Partition] = deque()
        self._partitions: set[Partition] = set()
        self._reserve = 0
        self._unused_reserve = 0
        self._settled: deque[tuple[Partition, Flush]] = deque()
        self._rested: deque[RecordRun] = deque()
        # Runs that stand still hold no slot, though their replayer waits for them; those that come back do need one.
        self._resting = 0
        self._returning: deque[tuple[Partition, Callable[[], bool]]] = deque()
        self._busy_lanes: dict[tuple[TopicPartition, object], asyncio.Future[Any]] = {}
        self._free: list[Replayer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        # Bodies see the variables of who made the pool, not of whoever happens to bring work.
        self._context = copy_context()
        self._scheduled = False
        self._watching = False

    def resize(self, limit: int) -> None:
        """At most so many runs in flight from now on; those that are already go on."""
        if limit != self._limit:
            self._limit = limit
            self._share_out()
            self.wake()

    def add(self, partition: Partition) -> None:
        """Serve a partition from now on."""
        partition.on_flushed = self._on_flushed
        self._partitions.add(partition)
        self._share_out()

    def remove(self, partition: Partition) -> None:
        """Start nothing more of a partition; what runs goes on."""
        self._partitions.discard(partition)
        if partition.in_rotation:
            self._rotation.remove(partition)
            partition.in_rotation = False
        self._share_out()

    @property
    def bodies(self) -> int:
        """How many bodies are in progress, or have rows or outputs on their way."""
        return self.in_flight - sum(partition.waiting for partition in self._partitions)

    def _share_out(self) -> None:
        count = len(self._partitions)
        self.stats.partitions = count
        if count < 2:
            self._reserve = 0
        else:
            self._reserve = self._limit // (2 * count) or int(self._limit >= count)
        self._unused_reserve = sum(max(0, self._reserve - partition.in_flight) for partition in self._partitions)

    def offer(self, partition: Partition) -> None:
        """The partition may have heads of lanes ready: see that they are taken."""
        if not partition.in_rotation and partition.lanes.ready and partition in self._partitions:
            partition.in_rotation = True
            self._rotation.append(partition)
        self.wake()

    def wake(self) -> None:
        """Start, in the loop's next turn, what may be started."""
        if self._rotation and not self.halted and self.in_flight < self._limit:
            self._schedule()

    def leave(self, partition: Partition) -> None:
        """A run of the partition is no longer in flight."""
        self._count(partition, -1)

    def _count(self, partition: Partition, more: int) -> None:
        """So many more runs of the partition are in flight, or fewer."""
        before = partition.in_flight
        partition.in_flight = after = before + more
        self.in_flight += more
        reserve = self._reserve
        if reserve and partition in self._partitions:
            self._unused_reserve += max(0, reserve - after) - max(0, reserve - before)
        if more < 0 and self._returning:
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
        self._count(partition, 1)
        self._resting -= rested

    def _let_back(self) -> None:
        while self._returning and self.in_flight < self._limit:
            partition, take = self._returning.popleft()
            if take():
                self.enter(partition, rested=True)

    def _room(self, partition: Partition) -> int:
        """How many runs of the partition may be in flight beside those that are."""
        free = self._limit - self.in_flight
        own = max(0, self._reserve - partition.in_flight)
        room = min(free, own + max(0, free - self._unused_reserve))
        return room if partition.marks is None else min(room, partition.marks.room(partition.in_flight))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pass, context=self._context)

    def _pass(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        while self._settled:
            self._end_riders(*self._settled.popleft())
        deadline = monotonic() + PASS_SECONDS
        left = self._start(self._go_on(BURST, deadline), deadline)
        if left <= 0:
            self._schedule()

    def _on_flushed(self, partition: Partition, flush: Flush) -> None:
        self._settled.append((partition, flush))
        self._schedule()

    def _end_riders(self, partition: Partition, flush: Flush) -> None:
        """A flush is settled: bodies that had ended before are done with, those that wait for it are to go on."""
        riders, flush.riders = flush.riders, []
        ended = []
        for run in riders:
            if run.rides is flush:
                if run.drive is None:
                    run.rides = None
                    ended.append(run)
                else:
                    self._rested.append(run)
        if ended:
            self._count(partition, -len(ended))
            if flush.error is None:
                self._completed(partition, ended)
            else:
                self.offer(partition)

    def _go_on(self, left: int, deadline: float) -> int:
        """Let bodies go on whose rows are durable, so many of them at most. Answers how many more there may be."""
        rested = self._rested
        while rested and left > 0:
            now = monotonic()
            if now > deadline:
                return 0
            if not self._may_act(now):
                break
            run = rested.popleft()
            replayer = run.drive
            assert type(replayer) is Replayer or replayer is None
            if replayer is None or run.rides is None or run.stopped is not None or replayer.called.done():
                continue  # its replayer's task sees to it
            left -= 1
            flush, run.rides = run.rides, None
            try:
                _enter_task(self._loop, replayer.task)
                try:
                    outcome = run.resume(flush.error)
                finally:
                    _leave_task(self._loop, replayer.task)
                if outcome is None:
                    self._wait(run, replayer)
                else:
                    self._leaves(run, replayer)
                    self._ended(run, outcome)
            except Exception as error:  # noqa: BLE001 - one record must not end the pass
                self._broken(run, replayer, error)
        return left

    def _may_act(self, now: float) -> bool:
        """Whether the group surely still has us; else all begins anew when it has answered."""
        if now <= self.standing.until:
            return True
        if not self._watching:
            self._watching = True
            self.standing.on_change(self._on_standing)
        return False

    def _on_standing(self) -> None:
        self._watching = False
        self._schedule()

    def _start(self, left: int, deadline: float) -> int:
        """Start heads of lanes, so many at most. Answers how many more there may be."""
        rotation, full = self._rotation, 0
        while full < len(rotation) and left > 0 and not self.halted and not self.solitude.wanted:
            partition = rotation[0]
            if not partition.lanes.ready:
                rotation.popleft()
                partition.in_rotation = False
                continue
            most = self._room(partition)
            if most <= 0:
                rotation.rotate(-1)
                full += 1
                continue
            now = monotonic()
            if now > deadline:
                return 0
            if not self._may_act(now):
                break
            replayer = self._replayer()
            if replayer is None:
                break
            full = 0
            left -= self._serve(partition, min(most, left, TURN), replayer)
            if rotation and rotation[0] is partition:
                rotation.rotate(-1)
        return left

    def _serve(self, partition: Partition, most: int, replayer: Replayer) -> int:
        """Take up to `most` heads of the partition. Answers how many were taken."""
        loop, ready = self._loop, partition.lanes.ready
        at_once: list[RecordRun] = []
        taken = more = 0
        present: Replayer | None = replayer
        _enter_task(loop, replayer.task)
        try:
            while taken < most and ready and present is not None:
                head = ready.popleft()
                taken += 1
                if partition.away is not None and partition.away.keeps(head):
                    continue
                more += 1
                try:
                    later = self._busy_lanes or partition.addressed or partition.marks is not None
                    if not (later and self._begin_later(partition, head, present)):
                        run = head if type(head) is RecordRun else self._new_run(partition, head)
                        outcome = run.start(present)
                        if outcome is None:
                            self._suspended(run, present)
                        elif run.flush is None and self._is_done(run, outcome):
                            more -= 1
                            at_once.append(run)
                        else:
                            self._ended(run, outcome)
                except Exception as error:  # noqa: BLE001 - one record must not end the pass
                    self._failed_to_run(partition, head, error)
                if present.run is not None or present.called.done():
                    _leave_task(loop, present.task)
                    self._give_back(present)
                    present = self._replayer()
                    if present is not None:
                        _enter_task(loop, present.task)
        finally:
            if present is not None:
                _leave_task(loop, present.task)
                self._give_back(present)
            if more:
                self._count(partition, more)
            if at_once:
                self._completed(partition, at_once)
        return taken

    def _new_run(self, partition: Partition, record: Raw) -> RecordRun:
        """The run of a record. Raises RecordError if it can't be turned into one."""
        args, kwargs = self._arguments(record)
        run = RecordRun(
            self.binding.workflow,
            "",
            partition,
            args,
            kwargs,
            journal=partition.rows_of(record) if partition.journal else None,
            origin=record,
            clock=self._clock,
        )
        run.partition = partition
        run.print = run.rides = None
        run.expired = False
        run.started = monotonic()
        run.resumable = self._run_timeout is None
        return run

    def _is_done(self, run: RecordRun, outcome: Outcome) -> bool:
        """Whether nothing but its rows is to come of a body that has ended."""
        return (
            outcome.status == "completed"
            and run.outputs is None
            and self._plain
            and run.host is run.partition
            and not run.leftovers
        )

    def _begin_later(self, partition: Partition, head: Any, replayer: Replayer) -> bool:
        """Whether the head has to wait before it begins, which it does in the replayer's task."""
        offset = head.origin.offset if type(head) is RecordRun else head.offset
        if (
            offset not in partition.addressed
            and (type(head) is RecordRun or self._former_body(partition, head) is None)
            and (partition.marks is None or not partition.marks.concerns(offset))
        ):
            return False
        partition.waiting += 1
        replayer.head = partition, head
        replayer.called.set_result(None)
        return True

    def _suspended(self, run: RecordRun, replayer: Replayer) -> None:
        replayer.run = run
        run.partition.running[run.origin.offset] = run
        self._wait(run, replayer)

    def _wait(self, run: RecordRun, replayer: Replayer) -> None:
        """The body waits: for its rows, or for something that its replayer's task has to wait for."""
        if run.awaits_rows:
            flush = run.flush
            assert flush is not None
            run.rides = flush
            if flush.done:
                self._rested.append(run)
                self._schedule()
            else:
                flush.riders.append(run)
            return
        run.resumable = False
        if run.crew is not None and run.drive is not None and run.unfinished is None:
            run.drive.mark()
        if not replayer.called.done():
            replayer.called.set_result(None)

    def _leaves(self, run: RecordRun, replayer: Replayer) -> None:
        """The body has ended."""
        run.partition.running.pop(run.origin.offset, None)
        replayer.run = None
        self._give_back(replayer)

    def _give_back(self, replayer: Replayer) -> None:
        """The replayer is free, unless it has a run now or its task is awake: then that says when it is."""
        if replayer.run is None and not replayer.called.done():
            self._free.append(replayer)

    def _broken(self, run: RecordRun, replayer: Replayer, error: Exception) -> None:
        self._unmark(run.partition, run.origin)
        if replayer.run is run:
            self._leaves(run, replayer)
        self._endings.broken(run.partition, run.origin, error)

    def _failed_to_run(self, partition: Partition, head: Any, error: Exception) -> None:
        self._unmark(partition, head.origin if type(head) is RecordRun else head)
        if type(error) is RecordError:
            self._endings.refuse(partition, head, error)
        else:
            self._endings.broken(partition, head.origin if type(head) is RecordRun else head, error)

    def _ended(self, run: RecordRun, outcome: Outcome) -> None:
        """A body has ended. If nothing but its rows is to come it is completed together with others; for the rest see
        the endings."""
        if run.partition.marked:
            self._unmark(run.partition, run.origin)
        if not self._is_done(run, outcome):
            self._endings.end(run, outcome)
        elif run.partition.closed or run.durable:
            self._count(run.partition, -1)
            self._completed(run.partition, [run])
        elif run.flush is not None and not run.flush.done:
            run.rides = run.flush
            run.flush.riders.append(run)
        else:
            self._count(run.partition, -1)
            self.offer(run.partition)

    def _completed(self, partition: Partition, runs: Sequence[RecordRun]) -> None:
        """Nothing is left to be done for the records of these runs."""
        if not partition.closed:
            partition.complete([run.origin for run in runs])
            self.stats.completed += len(runs)
            if self.on_completed is not None:
                for run in runs:
                    self.on_completed(run)
        self.offer(partition)

    def _replayer(self) -> Replayer | None:
        """One that is free. None: there will be in the next turn."""
        free = self._free
        while free:
            replayer = free.pop()
            if not replayer.called.done():
                return replayer
        for _ in range(max(1, min(len(self._tasks), self._limit + self._resting - len(self._tasks)))):
            task = self._loop.create_task(self._replay(), name=f"replayer {self.binding.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    async def _replay(self) -> None:
        replayer = Replayer()
        while True:
            while replayer.task.cancelling():
                replayer.task.uncancel()
            replayer.called = self._loop.create_future()
            self._free.append(replayer)
            self.wake()
            cancelled = None
            try:
                await replayer.called
            except asyncio.CancelledError as error:
                cancelled = error
                if replayer.run is None and replayer.head is None:
                    if self._stopped:
                        raise
                    if replayer in self._free:
                        self._free.remove(replayer)
            if replayer.head is not None:
                partition, head = replayer.head
                try:
                    await self._begin(partition, head, replayer)
                except Exception as error:  # noqa: BLE001 - one record must not end the replayer
                    self._failed_to_run(partition, head, error)
                except BaseException:
                    self.leave(partition)
                    raise
                finally:
                    replayer.head = cancelled = None
            if replayer.run is not None:
                await self._carry(replayer.run, replayer, cancelled)

    async def _begin(self, partition: Partition, head: Any, replayer: Replayer) -> None:
        """Begin with a head after what it has to wait for, unless that tells that nothing of it is to run here."""
        record = head.origin if type(head) is RecordRun else head
        try:
            if record is head and (former := self._former_body(partition, record)) is not None:
                log.warning(
                    "%s[%d]: offset %d waits for an earlier body of its lane that still runs",
                    *partition.tp,
                    record.offset,
                )
                await asyncio.wait([former])
            attended = partition.addressed.get(record.offset)
            if attended is not None and not await attended.admit(record):
                return
            if not await self._mark(partition, record):
                return
            await self._until_free(partition, record)
            if partition not in self._partitions:
                self._unmark(partition, record)
                self.leave(partition)
                return
        finally:
            partition.waiting -= 1
        run = head if type(head) is RecordRun else self._new_run(partition, head)
        attended = partition.addressed.get(record.offset)
        if attended is not None and run.host is partition:
            attended.begin(run)
        run.resumable = False
        outcome = run.start(replayer)
        if outcome is None:
            replayer.run = run
            partition.running[record.offset] = run
        else:
            self._ended(run, outcome)

    async def _mark(self, partition: Partition, record: Raw) -> bool:
        """Write down that the record is in progress, once nothing else is if it must run alone. False, and it has left,
        if it isn't to run here."""
        if partition.marks is None or not partition.marks.concerns(record.offset):
            return True
        mark = partition.marks.of(record.offset, fingerprint(record))
        if mark.condemned and partition in self._partitions:
            self._endings.condemn(partition, record, mark)
            return False
        if mark.needs_solitude:
            mark = replace(mark, running="alone")
            mine = await self.solitude.take(mark.alone, lambda: partition in self._partitions)
        else:
            mark = replace(mark, running="beside")
            await self._until_free(partition, record)
            mine = partition in self._partitions
        if mine:
            try:
                await partition.mark(record, mark)
                return True
            except StoreError:
                self._unmark(partition, record)
        self.leave(partition)
        return False

    def _unmark(self, partition: Partition, record: Raw) -> None:
        mark = partition.unmark(record)
        if mark is not None and mark.running == "alone":
            self.solitude.give_back()

    async def _until_free(self, partition: Partition, record: Raw) -> None:
        """Until the record may start as far as the group and its neighbours go, or its partition is let go."""
        mark = partition.marked.get(record.offset)
        alone = mark is not None and mark.running == "alone"
        while partition in self._partitions:
            if not self._may_act(monotonic()):
                await self.standing.changed()
            elif self.solitude.wanted and not alone:
                await self.solitude.open()
            else:
                return

    async def _carry(self, run: RecordRun, replayer: Replayer, cancelled: asyncio.CancelledError | None) -> None:
        """See a run to its end, by waiting for whatever it waits for."""
        run.rides = None
        try:
            outcome = await (run.finish(cancelled) if self._run_timeout is None else self._limited(run, cancelled))
            self._leaves(run, replayer)
            self._ended(run, outcome)
        except Exception as error:  # noqa: BLE001 - one record must not end the replayer
            self._broken(run, replayer, error)
        except BaseException:
            run.partition.running.pop(run.origin.offset, None)
            self.leave(run.partition)
            raise

    async def _limited(self, run: RecordRun, cancelled: asyncio.CancelledError | None) -> Outcome:
        assert self._run_timeout is not None

        def expire() -> None:
            run.expired = True
            run.cut()

        timer = self._loop.call_later(self._run_timeout, expire)
        try:
            return await run.finish(cancelled)
        finally:
            timer.cancel()

    def _former_body(self, partition: Partition, record: Raw) -> asyncio.Future[Any] | None:
        """A body of the lane that an earlier assignment could not end (a thread can't be cancelled)."""
        return self._busy_lanes.get(_lane_of(partition, record)) if self._busy_lanes else None

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
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _lane_of(partition: Partition, record: Raw) -> tuple[TopicPartition, object]:
    """What only one body at a time may run in: the lane, or the record alone where there is no order."""
    lane = partition.lanes.name(record.key)
    return partition.tp, record.offset if lane is None else lane
