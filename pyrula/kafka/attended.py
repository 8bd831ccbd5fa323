"""The run of one record that takes part in more than its journal: it is talked to, waits, or is to be kept.

This is what its partition knows of it, before, while and after it is at work. Rules: what is decided in one stretch is
written in one change (`run_changes`), which travels with the partition's rows and comes after those that were queued.
From its first need of it on the engine's host is the run's own (`run_host`). A run that stands still until something
durable happens rests (`resting`): its body stays in memory and its lane is held, but its slot is free. It may be handed
over then (`departing`). What it waits for, and how it ended (`run_end`), stands in the store; messages to it
(`run_inbox`) are delivered as they come.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from copy import copy
from dataclasses import replace

from pyrula.kafka.attending import AttendingStore, Leaving, Slots, Verdict
from pyrula.kafka.company import Ending
from pyrula.kafka.departing import Departing, Departure
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.resting import Rest
from pyrula.kafka.run_changes import Changes
from pyrula.kafka.run_end import RunEnd
from pyrula.kafka.run_host import RunHost
from pyrula.kafka.run_inbox import RunInbox
from pyrula.workflows.clock import Clock
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.execution import Outcome
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import RecordState
from pyrula.workflows.worker.patience import ask_until_answered

__all__ = ["AttendedRun"]

log = logging.getLogger("pyrula.kafka")


class AttendedRun:
    """One run, from the first that is heard of it to its end, or until its partition is let go.

    `departure` hands it over; without one it stays here whatever happens."""

    def __init__(
        self,
        partition: Partition,
        position: int,
        store: AttendingStore,
        slots: Slots,
        verdict: Verdict,
        clock: Clock,
        departure: Departure | None,
    ) -> None:
        self.partition = partition
        self.position = position
        run_id = RecordId.parse(partition.run_id(position))
        assert run_id is not None
        self.run_id = run_id
        self.run: RecordRun | None = None
        self.ended = False
        self.handed_over = False
        self._store = store
        self._slots = slots
        self._verdict = verdict
        self._changes = Changes(partition, run_id, clock)
        self._inbox = RunInbox()
        self._end = RunEnd(partition, run_id, store)
        self._departing = Departing(partition, run_id, store, verdict, self._changes, self._inbox, self, departure)
        self._rest = Rest(partition, self._changes, slots, self._departing, clock)
        self._host = RunHost(partition, run_id, store, self._changes, self._inbox, self._on_idle)
        self._hydrated = False
        self._began = False
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self._held: tuple[RawRecord, RecordRun | None] | None = None

    # its beginning

    async def admit(self, record: RawRecord) -> bool:
        """Before its run begins: whether it is to. If not, its record has been seen to."""
        if not (self.ended or self._hydrated):
            await self._read()
        if self.ended and self._changes.flush is not None:
            with suppress(StoreError):  # then the partition is about to be dropped
                await self._changes.flush.wait()
        if self.partition.closed:
            return True
        if self.ended:
            self._verdict.over(self.partition, record, self._end.status if self.handed_over else await self._end.read())
            return False
        if self._inbox.cancels() and not self._began and record.offset not in self.partition.journal:
            self.cancel(record)
            return False
        return True

    def begin(self, run: RecordRun) -> None:
        """This executes the run from now on: a body that hasn't begun, or one that goes on."""
        if self.run is None:
            self._changes.event("started", worker="", attempt=run.attempt)
        self._began = True
        self.run = self._changes.run = run
        run.move(self._host)
        self._held = None
        self._changes.show(RunStatus.RUNNING)
        self._hand_over(run)

    def next_round(self, run: RecordRun) -> None:
        """The run failed and begins again, later."""
        run.desk = None
        run.flush = self._changes.flush
        self.run = self._changes.run = run
        self._changes.attempt = run.attempt
        self._changes.event("retried", attempt=run.attempt)
        self._changes.show(RunStatus.RETRYING)
        self._hand_over(run)

    def retry_later(self, run: RecordRun, delay: float) -> None:
        """The run failed, and its next round is due so late that the store may keep it until then."""
        if run.host is self.partition:
            run.move(self._host)
            self.next_round(run)
        self._departing.between_rounds(run, delay)

    def block(self, leaving: Leaving, then: Callable[[bool], None]) -> None:
        """It failed once and for all, and its lane is to wait. `then` is told whether the store has it; if it was to be
        cancelled meanwhile, it is."""
        assert leaving.failure is not None
        self.run = self._changes.run = None
        self._changes.show(RunStatus.PAUSED, reason=leaving.failure)
        self._changes.attempt = leaving.attempt
        self._changes.event("paused", reason=leaving.failure.decode())
        self._changes.touch()
        self._departing.blocked(replace(leaving, seen=self._inbox.given), then)

    def _hand_over(self, run: RecordRun) -> None:
        if run.desk is None:
            run.desk = Desk()
        for unread in self._inbox.all():
            run.deliver(unread)
        self._changes.touch()

    # messages

    def look(self) -> None:
        """Somebody has done something to the run."""
        self._read_again = True
        if self._reading is None and not self.ended:
            loop = asyncio.get_running_loop()
            self._reading = Context().run(loop.create_task, self._look(), name=f"messages of {self.run_id}")

    async def _look(self) -> None:
        try:
            while self._read_again and not self.ended and not self.partition.closed:
                self._read_again = False
                await self._read()
                self._see_to_it()
        except StoreError as error:
            log.warning("run %s: its messages can't be read: %s", self.run_id, error)
        finally:
            self._reading = None

    async def _read(self) -> None:
        seen = self._inbox.latest
        state = await ask_until_answered(lambda: self._store.read_record(self.run_id, seen))
        self._hydrated = True
        if state is not None:
            self._take_in(state)

    def _take_in(self, state: RecordState) -> None:
        if self._inbox.take_in(state) and self._held is not None:
            self._go_on()
        self._deliver()

    def _deliver(self) -> None:
        run = self.run
        if run is None or self.ended:
            return
        for unread in self._inbox.new():
            run.deliver(unread)
            self._rest.hear(unread.message.kind, unread.message.name)

    def _see_to_it(self) -> None:
        """A cancel of a run whose body isn't there. One that was paused goes on, so that it can clean up."""
        if not self._inbox.cancels() or self.ended or self.partition.closed:
            return
        if self._held is not None:
            record, run = self._held
            if run is not None and self._end.was_paused:
                self._changes.consumed += self._inbox.forget_pauses()
                self._go_on()
                return
            self._slots.enter(self.partition, rested=False)
            self.cancel(record)
        elif self.position not in self.partition.journal and self.partition.is_queued(self.position):
            # for everybody else it has ended; its offset completes when its turn comes
            self._changes.consumed += self._inbox.cancels()
            self.finish("cancelled", None)

    def cancel(self, record: RawRecord) -> None:
        """It ends so, without a body."""
        self._changes.consumed += self._inbox.cancels()
        self._held = None
        self._verdict.cancel(self.partition, record)

    # standing still

    def _on_idle(self) -> None:
        if not self._rest.on:
            asyncio.get_running_loop().call_soon(self._stand_still, context=Context())

    def _stand_still(self) -> None:
        if self.run is not None and not self.ended:
            self._rest.begin(self.run)

    def parked(self, run: RecordRun) -> None:
        """It left while it rested: its body isn't needed any more."""
        run.parked()
        self.run = self._changes.run = None

    def stays(self) -> None:
        """It goes on resting here."""
        self._deliver()
        self._rest.stays()

    # its end

    def on_outcome(self, run: RecordRun, outcome: Outcome) -> None:
        """Its body has ended, or was cut."""
        self._rest.break_off()
        self._end.on_outcome(run, outcome)

    def on_failure(self, record: RawRecord, error: BaseException, run: RecordRun | None) -> None:
        """What it failed with, once and for all; no run: it wasn't made one."""
        self._end.on_failure(record, error, run)
        if run is not None:
            self._changes.attempt = run.attempt

    def hold(self, record: RawRecord, text: str, run: RecordRun | None) -> None:
        """It can't go on until somebody says so, then by this run, or from its beginning if there is none."""
        reason = self._end.reason(text)
        self._held = (record, run)
        self._changes.show(RunStatus.PAUSED, reason=reason)
        self._changes.event("paused", reason=reason.decode())
        self._changes.touch()
        self._see_to_it()

    def _go_on(self) -> None:
        assert self._held is not None
        record, former = self._held
        self._held = None
        self._changes.show(RunStatus.QUEUED)
        again: RecordRun | None = None
        if former is not None:
            again = copy(former)
            again.reset()
            again.desk = None
            again.flush = None
            again.expired = False
            again.journal = None if former.journal is None else former.journal.without(set())
            again.move(self.partition)
            self.run = self._changes.run = None
        self._verdict.again(self.partition, record, again)

    def finish(self, status: Ending, then: Callable[[Exception | None], None] | None) -> None:
        """Its last word; `then` is called when it is durable, with the error if it can't be."""
        if self.ended or self.partition.closed:
            if then is not None:
                then(LeaseLost(f"run {self.run_id} is not held any more") if self.partition.closed else None)
            return
        self._changes.event(status, **self._end.told(status))
        flush = self._changes.end(self._end.of(status))
        self.ended = True
        if self._host.has_children:
            flush.on_done(self._end.tell_children)
        if then is not None:
            flush.on_done(then)

    @property
    def status(self) -> RunStatus:
        """As it stands here."""
        return RunStatus.QUEUED if self.run is None and self._held is None else self._changes.status

    @property
    def untouched(self) -> bool:
        """Whether nothing of it has begun, and nothing is on its way."""
        flush = self._changes.flush
        busy = self.run is not None or self._held is not None or self._reading is not None
        return not busy and (flush is None or flush.done)

    def leave(self) -> None:
        """The store has it from now on."""
        self.ended = self.handed_over = self._changes.over = True

    def let_go(self) -> None:
        """The partition was let go."""
        self._changes.let_go()
        self._rest.let_go()
        self._departing.let_go()
        if self._reading is not None:
            self._reading.cancel()
