"""Running bodies: each from its beginning to where it waits, and from there on to its end.

A body runs as if in the task of a replayer (`Crew`), which is woken only if it waits for something else than its rows.
Of nearly all records nothing was journaled before, and nobody takes part in their runs. Such a run begins, and may end,
in `start`; `go_on` resumes one that waited for its rows. When it has ended with nothing to come but its rows, and
nobody holds it, it is the run of the next record that its replayer gets, too.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
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
from pyrula.workflows.execution import COMPLETED, UNTIL_DURABLE, Outcome, makes_tasks

__all__ = ["Bodies"]


class Bodies:
    """Of one binding's records. `wake` is called when a replayer is free."""

    def __init__(
        self,
        binding: Binding,
        shares: Shares,
        beginnings: Beginnings,
        completions: Completions,
        endings: Endings,
        clock: Clock,
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
        self._crew = Crew(binding.name, self._begin, self._carry, wake)
        self._loop = asyncio.get_running_loop()

    def replayer(self) -> Replayer | None:
        """One that is free. None: there will be in the loop's next turn."""
        return self._crew.take(self._shares.limit + self._shares.resting)

    def forget(self) -> None:
        """Nothing is in flight: let go of what the last runs had."""
        self._crew.forget()

    def start(self, partition: Partition, most: int, room: int, replayer: Replayer, until: float) -> int:
        """Take up to `most` heads of the partition, while fewer than `room` of them are in flight, and none after
        `until`. How many it took."""
        loop, ready, beginnings = self._loop, partition.lanes.ready, self._beginnings
        busy, arguments, tp = beginnings.busy_lanes, self._arguments, partition.tp
        running, journal, with_tasks = partition.running, partition.journal, makes_tasks(self._workflow)
        plain, telling, rides = self._completions.plain, self._completions.told is not None, self._completions.rides
        take, replayers = self._crew.take, self._shares.limit + self._shares.resting
        done: list[RawRecord] = []
        told: list[RecordRun] = []
        taken = more = 0
        run: RecordRun
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
                        context = present.context
                        if (
                            context is None
                            or getrefcount(context) != _KEPT_BY_NOBODY
                            or getrefcount(run := present.run) != _KEPT_BY_ITS_CONTEXT
                        ):
                            run = present.run = self._new_run(partition)
                            context = present.context = Context(run)
                        else:
                            run.begin_again()
                            run.row_end = None
                            if run.partition is not partition:
                                run.host = run.partition = partition
                        run.args, run.kwargs = arguments(head, tp)
                        run.origin = head
                        run.offset = head.offset
                        run.started = began = monotonic()
                        outcome = run.start_straight(context, present)
                        if outcome is None and present.yielded is UNTIL_DURABLE and run.stopped is None:
                            present.busy = True
                            running[run.offset] = run
                        elif outcome is not COMPLETED:
                            self._begun(run, outcome, present)
                        elif run.flush is None and run.outputs is None and plain:
                            more -= 1
                            done.append(head)
                            if telling:
                                told.append(run)
                        elif not rides(run):
                            self._begun(run, outcome, present)
                        if run.alarms is not None:
                            present.context = None
                        if began > until:
                            most = taken
                except Exception as error:  # noqa: BLE001 - one record must not end the pass
                    present.context = None
                    self._failed_to_run(partition, head, error)
                if present.busy or present.called.done():
                    _leave_task(loop, present.task)
                    present = take(replayers)
                    if present is not None:
                        _enter_task(loop, present.task)
        finally:
            if present is not None:
                _leave_task(loop, present.task)
                if not present.busy:
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
        run.offset = -1 if record is None else record.offset
        run.row_end = run.rides = None
        run.expired = False
        run.cut_short = 0
        run.started = monotonic()
        run.resumable = self._run_timeout is None
        return run

    def _begin_now(self, partition: Partition, head: Any, replayer: Replayer) -> None:
        run = head if type(head) is RecordRun else self._new_run(partition, head)
        replayer.context = None  # which is not this run's
        self._begun(run, run.start(replayer), replayer)

    def _begun(self, run: RecordRun, outcome: Outcome | None, replayer: Replayer) -> None:
        """The body has ended, or waits."""
        if outcome is None:
            replayer.run = run
            replayer.busy = True
            run.partition.running[run.offset] = run
            self._waits(run, replayer)
        else:
            replayer.context = None
            self._ended(run, outcome)

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
            attended = partition.addressed.get(run.offset)
            if attended is not None and run.host is partition:
                attended.begin(run)
            run.resumable = False
            self._begun(run, run.start(replayer), replayer)
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

    def _waits(self, run: RecordRun, replayer: Replayer) -> None:
        """The body waits: for its rows alone, so that it rides on their flush, or its replayer's task has to wait."""
        if replayer.yielded is UNTIL_DURABLE and run.stopped is None:
            return
        replayer.context = run.rides = None
        run.resumable = False
        if run.crew is not None and run.drive is not None and run.unfinished is None:
            run.drive.mark()
        replayer.call()

    def go_on(self, rested: deque[RecordRun], most: int, until: float) -> int:
        """Let bodies go on whose rows are durable, or never will be: up to `most`, and none after `until`. How many
        did."""
        loop, rides, give_back, went = self._loop, self._completions.rides, self._crew.give_back, 0
        while rested and went < most and monotonic() <= until:
            run = rested.popleft()
            replayer: Any = run.drive
            if replayer is None or run.rides is None or run.stopped is not None or replayer.called.done():
                continue  # the replayer's task sees to it
            went += 1
            flush, run.rides = run.rides, None
            try:
                _enter_task(loop, replayer.task)
                try:
                    outcome = run.resume(flush.error)
                finally:
                    _leave_task(loop, replayer.task)
                if outcome is None:
                    if replayer.yielded is not UNTIL_DURABLE or run.stopped is not None:
                        self._waits(run, replayer)
                elif outcome is COMPLETED and run.alarms is None and not run.partition.marked and rides(run):
                    run.partition.running.pop(run.offset, None)
                    give_back(replayer)
                else:
                    self._leaves(run, replayer)
                    self._begun(run, outcome, replayer)
            except Exception as error:  # noqa: BLE001 - one record must not end the pass
                self._broken(run, replayer, error)
        return went

    def _leaves(self, run: RecordRun, replayer: Replayer) -> None:
        """The body has ended."""
        run.partition.running.pop(run.offset, None)
        self._crew.give_back(replayer)

    def _broken(self, run: RecordRun, replayer: Replayer, error: Exception) -> None:
        replayer.context = None
        self._beginnings.unmark(run.partition, run.origin)
        if replayer.busy and replayer.run is run:
            self._leaves(run, replayer)
        self._endings.broken(run.partition, run.origin, error)

    async def _carry(self, run: RecordRun, replayer: Replayer, cancelled: asyncio.CancelledError | None) -> None:
        """See a run to its end, by waiting for whatever it waits for."""
        replayer.context = run.rides = None
        try:
            outcome = await (run.finish(cancelled) if self._run_timeout is None else self._limited(run, cancelled))
            self._leaves(run, replayer)
            self._ended(run, outcome)
        except Exception as error:  # noqa: BLE001 - one record must not end the replayer
            self._broken(run, replayer, error)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or self._crew.stopped:
                run.partition.running.pop(run.offset, None)
                self._shares.count(run.partition, -1)
                raise
            # By somebody who knew this task from a record before; it is cut.
            self._leaves(run, replayer)
            self._ended(run, Outcome("cut"))

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


# A replayer has them, and they have a name where they are counted.
_KEPT_BY_NOBODY: Final = _references() + 1
_KEPT_BY_ITS_CONTEXT: Final = _KEPT_BY_NOBODY + 1
