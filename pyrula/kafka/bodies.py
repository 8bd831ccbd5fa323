"""Running bodies: each from its beginning to where it waits, and from there on to its end.

A body runs as if in the task of a replayer (`Crew`), which is woken only if it waits for something else than its rows.
Of nearly all records nothing was journaled before, and nobody takes part in their runs. Such a run begins, and may end,
in `start`; one that has ended there with nothing to come but its rows, and that nobody holds, is the next record's run,
too.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable
from sys import getrefcount
from time import monotonic
from typing import Any, Final

from pyrula.kafka.beginnings import Beginnings
from pyrula.kafka.binding import Binding
from pyrula.kafka.completions import Completions, Endings
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.replayer import Crew, Replayer
from pyrula.kafka.serde import RecordError
from pyrula.kafka.shares import Shares
from pyrula.workflows.clock import Clock
from pyrula.workflows.context import Context
from pyrula.workflows.execution import COMPLETED, Outcome, makes_tasks

__all__ = ["Bodies"]


class Bodies:
    """Of one binding's records. `rest` is called for a body that can go on already, `wake` when a replayer is free."""

    def __init__(
        self,
        binding: Binding,
        shares: Shares,
        beginnings: Beginnings,
        completions: Completions,
        endings: Endings,
        clock: Clock,
        rest: Callable[[RecordRun], None],
        wake: Callable[[], None],
    ) -> None:
        self._workflow = binding.workflow
        self._arguments = binding.arguments
        self._run_timeout = binding.run_timeout
        self._shares = shares
        self._beginnings = beginnings
        self._completions = completions
        self._endings = endings
        self._clock = clock
        self._rest = rest
        self._crew = Crew(binding.name, self._begin, self._carry, wake)
        self._loop = asyncio.get_running_loop()

    def replayer(self) -> Replayer | None:
        """One that is free. None: there will be in the loop's next turn."""
        return self._crew.take(self._shares.limit + self._shares.resting)

    def start(self, partition: Partition, most: int, room: int, replayer: Replayer, deadline: float) -> int:
        """Take up to `most` heads of the partition, while fewer than `room` of them are in flight. How many it took."""
        loop, ready, beginnings = self._loop, partition.lanes.ready, self._beginnings
        busy, arguments, tp = beginnings.busy_lanes, self._arguments, partition.tp
        journal, with_tasks = partition.journal, makes_tasks(self._workflow)
        plain, telling = self._completions.plain, self._completions.told is not None
        done: list[RawRecord] = []
        told: list[RecordRun] = []
        taken = more = 0
        fresh: RecordRun | None = None
        present: Replayer | None = replayer
        _enter_task(loop, replayer.task)
        try:
            while taken < most and more < room and ready and present is not None:
                head = ready.popleft()
                taken += 1
                if partition.away is not None and partition.away.keeps(head):
                    continue
                more += 1
                try:
                    others = busy or partition.addressed or partition.marks is not None
                    if others and beginnings.must_wait(partition, head):
                        self._begin_later(partition, head, present)
                    elif type(head) is RecordRun or with_tasks or (journal and head.offset in journal):
                        self._begin_now(partition, head, present)
                    else:
                        if fresh is None:
                            fresh = self._new_run(partition)
                            context = Context(fresh)
                        else:
                            fresh.stopped, fresh.straight = None, True
                            if fresh.machine is not None:
                                fresh.machine = fresh.journal = fresh.flush = fresh.row_end = None
                        fresh.args, fresh.kwargs = arguments(head, tp)
                        fresh.origin = head
                        fresh.started = began = monotonic()
                        outcome = fresh.start_straight(context, present)
                        if outcome is COMPLETED and plain and (fresh.machine is None or fresh.only_rows_to_come):
                            if fresh.machine is None:
                                more -= 1
                                done.append(head)
                                if telling:
                                    told.append(fresh)
                            else:
                                self._completions.rides(fresh)
                            if not (
                                getrefcount(fresh) == _BY_CONTEXT_TOO
                                and getrefcount(context) == _BY_ONE_NAME
                                and fresh.alarms is None
                            ):
                                fresh = None
                        else:
                            run, fresh = fresh, None
                            self._begun(run, outcome, present)
                        if began > deadline:
                            most = taken
                except Exception as error:  # noqa: BLE001 - one record must not end the pass
                    fresh = None
                    self._failed_to_run(partition, head, error)
                if present.run is not None or present.called.done():
                    _leave_task(loop, present.task)
                    self._crew.give_back(present)
                    present = self.replayer()
                    if present is not None:
                        _enter_task(loop, present.task)
        finally:
            if present is not None:
                _leave_task(loop, present.task)
                self._crew.give_back(present)
            if more:
                self._shares.count(partition, more)
            if done:
                self._completions.completed(partition, done, told)
        return taken

    def _new_run(self, partition: Partition, record: Any = None) -> RecordRun:
        """The run of a record, or of records yet to come. Raises RecordError if it can't be turned into one."""
        args, kwargs = ((), None) if record is None else self._arguments(record, partition.tp)
        journal = partition.rows_of(record) if record is not None and partition.journal else None
        run = RecordRun(self._workflow, "", partition, args, kwargs, journal=journal, origin=record, clock=self._clock)
        run.partition = partition
        run.row_end = run.rides = None
        run.expired = False
        run.started = monotonic()
        run.resumable = self._run_timeout is None
        return run

    def _begin_now(self, partition: Partition, head: Any, replayer: Replayer) -> None:
        run = head if type(head) is RecordRun else self._new_run(partition, head)
        self._begun(run, run.start(replayer), replayer)

    def _begun(self, run: RecordRun, outcome: Outcome | None, replayer: Replayer) -> None:
        """The body has ended, or waits."""
        if outcome is not None:
            self._ended(run, outcome)
            return
        replayer.run = run
        run.partition.running[run.origin.offset] = run
        self._wait(run, replayer)

    def _begin_later(self, partition: Partition, head: Any, replayer: Replayer) -> None:
        """The replayer's task waits for what the head has to wait for."""
        partition.waiting += 1
        replayer.head = partition, head
        replayer.call()

    async def _begin(self, partition: Partition, head: Any, replayer: Replayer) -> None:
        try:
            if not await self._beginnings.admitted(partition, head):
                return
            run = head if type(head) is RecordRun else self._new_run(partition, head)
            attended = partition.addressed.get(run.origin.offset)
            if attended is not None and run.host is partition:
                attended.begin(run)
            run.resumable = False
            outcome = run.start(replayer)
            if outcome is not None:
                self._ended(run, outcome)
            else:
                replayer.run = run
                partition.running[run.origin.offset] = run
        except Exception as error:  # noqa: BLE001 - one record must not end the replayer
            self._failed_to_run(partition, head, error)
        except BaseException:
            self._shares.count(partition, -1)
            raise

    def _failed_to_run(self, partition: Partition, head: Any, error: Exception) -> None:
        record = head.origin if type(head) is RecordRun else head
        self._beginnings.unmark(partition, record)
        if type(error) is RecordError:
            self._endings.refuse(partition, record, error)
        else:
            self._endings.broken(partition, record, error)

    def _wait(self, run: RecordRun, replayer: Replayer) -> None:
        """The body waits: for its rows, or for something that its replayer's task has to wait for."""
        if run.awaits_rows:
            flush = run.flush
            assert flush is not None
            run.rides = flush
            if flush.done:
                self._rest(run)
            else:
                flush.riders.append(run)
            return
        run.resumable = False
        if run.crew is not None and run.drive is not None and run.unfinished is None:
            run.drive.mark()
        replayer.call()

    def go_on(self, run: RecordRun) -> bool:
        """Let a body go on whose rows are durable, or never will be. False if its replayer's task sees to it."""
        replayer = run.drive
        assert type(replayer) is Replayer or replayer is None
        if replayer is None or run.rides is None or run.stopped is not None or replayer.called.done():
            return False
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
        return True

    def _leaves(self, run: RecordRun, replayer: Replayer) -> None:
        """The body has ended."""
        run.partition.running.pop(run.origin.offset, None)
        replayer.run = None
        self._crew.give_back(replayer)

    def _broken(self, run: RecordRun, replayer: Replayer, error: Exception) -> None:
        self._beginnings.unmark(run.partition, run.origin)
        if replayer.run is run:
            self._leaves(run, replayer)
        self._endings.broken(run.partition, run.origin, error)

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
            self._shares.count(run.partition, -1)
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

    def _ended(self, run: RecordRun, outcome: Outcome) -> None:
        if run.partition.marked:
            self._beginnings.unmark(run.partition, run.origin)
        self._completions.ended(run, outcome)

    async def stop(self) -> None:
        """End the replayers; their runs must have ended before."""
        await self._crew.stop()


def _references() -> int:
    """How often an object that has one name only is referred to, as `getrefcount` counts."""
    one = object()
    return getrefcount(one)


_BY_ONE_NAME: Final = _references()
_BY_CONTEXT_TOO: Final = _BY_ONE_NAME + 1
