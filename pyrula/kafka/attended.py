"""The run of one record that takes part in more than its journal: it is talked to, waits, or is to be kept.

Such a run has this as the engine's host in the partition's place, from its first need of it on. Rules: what is decided
in one stretch is written in one change, which travels with the partition's rows and comes after those that were queued.
A run that stands still until something durable happens rests: its body stays in memory and its lane is held, but its
slot is free; it takes one again before anything is delivered to it. What it waits for, and how it ended, stands in the
store.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from copy import copy
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pyrula.kafka.attending import AttendingStore, Leaving, Slots, Verdict
from pyrula.kafka.company import Ending
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.run_changes import Changes
from pyrula.kafka.stored_record import encode_record
from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.clock import Clock
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.engine.retry import rows_for_retry
from pyrula.workflows.errors import LeaseLost, SerializationError, StoreError
from pyrula.workflows.execution import ChildRequest, Execution, Outcome
from pyrula.workflows.replay.journal import Fields
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.lanes import HandedOver
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import (
    WAIT_STATUS,
    Applied,
    Child,
    Interrupt,
    Parent,
    Unread,
    Wait,
    earliest,
    wakes,
)
from pyrula.workflows.store.payloads import Failure, encode_failure, failure_of
from pyrula.workflows.store.record_changes import RecordEnd, RecordId
from pyrula.workflows.store.records import RecordState
from pyrula.workflows.store.redrive import KEPT_JOURNAL, KEPT_RECORD
from pyrula.workflows.store.runs import RETENTION_SECONDS, Submission
from pyrula.workflows.worker.patience import ask_until_answered

__all__ = ["PARK_AFTER", "AttendedRun", "Departure"]

log = logging.getLogger("pyrula.kafka")

PARK_AFTER: Final = 1.0
_ENDS: Final[dict[RunStatus, Ending]] = {RunStatus.FAILED: "failed", RunStatus.CANCELLED: "cancelled"}


# Hands a run that stands still over to the store.
Departure: TypeAlias = Callable[[Leaving], Awaitable[HandedOver]]


class AttendedRun:
    """The engine's host of one run, and what its partition knows of it before and after it is at work."""

    park_after = PARK_AFTER

    def __init__(
        self, partition: Partition, position: int, store: AttendingStore, slots: Slots, verdict: Verdict, clock: Clock
    ) -> None:
        self.partition = partition
        self.position = position
        run_id = RecordId.parse(partition.run_id(position))
        assert run_id is not None
        self.run_id = run_id
        self.run: RecordRun | None = None
        self.ended = False
        self.handed_over = False
        self.began = clock.now().timestamp()
        self._store = store
        self._slots = slots
        self._verdict = verdict
        self._clock = clock
        self._changes = Changes(partition, run_id, clock)
        self._open: set[str] = set()
        self._has_children = False
        self._hydrated = False
        self._began = False
        self._unread: dict[int, Unread] = {}
        self._given = 0
        self._restarts = 0
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self._known: asyncio.Future[None] | None = None
        self._resting = False
        self._returning = False
        self._timer: asyncio.TimerHandle | None = None
        self.departure: Departure | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._called = False
        self._held: tuple[RawRecord, RecordRun | None] | None = None
        self._outcome: Outcome | None = None
        self._last: RecordRun | None = None
        self._failure: Failure | None = None
        self._end: Ending | None = None
        self._params = b""
        self._rows: list[tuple[int, bytes]] = []

    # what the engine calls

    def append(self, run: Execution, index: int, entry: Fields | None) -> None:
        self._changes.rows.append((index, self.partition.row_of(run, entry)))
        self._changes.touch()

    def consume(self, run: Any, number: int) -> None:
        unread = self._unread.get(number)
        if unread is not None and unread.message.kind == "pause":
            return  # until it is taken back, whoever has the run
        self._unread.pop(number, None)
        if number > 0:
            self._changes.consumed.append(number)
            self._changes.touch()

    def apply(self, run: Any, applied: Applied) -> None:
        self._changes.applied.append(applied)
        self._changes.touch()

    def open(self, run: Any, interrupt: Interrupt) -> None:
        self._open.add(interrupt.wait_id)
        self._changes.opened.append(interrupt)
        self._changes.touch()

    def reopen(self, run: Any, interrupt: Interrupt) -> None:
        unread = (unread.message for unread in self._unread.values())
        answered = any(message.kind == "resume" and message.name == interrupt.wait_id for message in unread)
        if interrupt.wait_id not in self._open and not answered:
            self.open(run, interrupt)

    def close(self, run: Any, wait_id: str) -> None:
        if wait_id in self._open:
            self._open.discard(wait_id)
            self._changes.closed.append(wait_id)
            self._changes.touch()

    def adopt(self, run: Any, child: Child) -> None:
        self._has_children = True
        self._changes.children.append(child)
        self._changes.touch()

    def event(self, run: Any, type: str, **data: Any) -> None:  # noqa: A002 - the public name
        self._changes.event(type, **data)

    def durable(self, run: Execution) -> Awaitable[None] | None:
        return self.partition.durable(run)

    def record(self, run: Execution) -> object | None:
        return self.partition.record(run)

    async def trigger(self, run: Execution, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
        return await self.partition.trigger(run, definition, event)

    def triggered(self, run: Execution, event: TriggerEvent) -> None:
        self.partition.triggered(run, event)

    def tenant(self, run: Any) -> tuple[str, Any]:
        return "", None

    def new_child_id(self, run: Any, name: str, stamp: Stamp | None) -> str:
        return self._store.new_run_id(name=name, parent=str(self.run_id), stamp=stamp)

    async def submit(self, run: Any, request: ChildRequest) -> None:
        submission = Submission(
            request.run_id,
            request.name,
            request.params,
            version=request.version,
            stamp=request.stamp,
            parent=Parent(str(self.run_id), request.run_id),
        )
        await ask_until_answered(lambda: self._store.submit(submission))

    def idle(self, run: Any) -> None:
        if not self._resting:
            asyncio.get_running_loop().call_soon(self._rest, context=Context())

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
            self._verdict.over(self.partition, record, await self._ending())
            return False
        if self._cancels() and not self._began and record.offset not in self.partition.journal:
            self._cancel(record)
            return False
        return True

    async def _ending(self) -> Ending | None:
        """How it ended, here or in a former holder's hands; None if it went on elsewhere."""
        if self._end is None and not self.handed_over:
            state = await ask_until_answered(lambda: self._store.read_record(self.run_id, 0))
            # the end of one that isn't kept is forgotten after a while
            self._end = "completed" if state is None else _ENDS.get(state.status, "completed")
        return self._end

    def begin(self, run: RecordRun) -> None:
        """This executes the run from now on: a body that hasn't begun, or one that goes on."""
        if self.run is None:
            self.event(run, "started", worker="", attempt=run.attempt)
        self._began = True
        self.run = self._changes.run = run
        run.move(self)
        self._held = None
        self._changes.show(RunStatus.RUNNING)
        self._hand_over(run)

    def next_round(self, run: RecordRun) -> None:
        """The run failed and begins again, later."""
        run.desk = None
        run.flush = self._changes.flush
        self.run = self._changes.run = run
        self._changes.attempt = run.attempt
        self.event(run, "retried", attempt=run.attempt)
        self._changes.show(RunStatus.RETRYING)
        self._hand_over(run)

    def retry_later(self, run: RecordRun, delay: float) -> None:
        """The run failed, and its next round is due so late that the store may keep it until then."""
        if run.host is self.partition:
            run.move(self)
            self.next_round(run)
        due = self._store.now() + delay
        waits = (Wait("retry", "", due),)
        self._changes.show(RunStatus.RETRYING, waits)
        self._changes.touch()
        loop = asyncio.get_running_loop()
        self._leaving = Context().run(
            loop.create_task, self._leave_between(run, waits), name=f"hand over {self.run_id}"
        )

    async def _leave_between(self, run: RecordRun, waits: tuple[Wait, ...]) -> None:
        taken = False
        try:
            if (flush := self._changes.flush) is not None and not flush.done:
                await flush.wait()
            assert self.departure is not None
            told = any(wakes(waits, unread.message.kind, unread.message.name) for unread in self._unread.values())
            if told:
                waits = (waits[0]._replace(deadline=self._store.now()),)  # it needn't wait any longer
            elif not self.partition.closed:
                taken = (await self.departure(self._as_it_stands(run, waits))).taken
        except LeaseLost:
            return  # the partition is about to be dropped
        except StoreError as error:
            log.warning("run %s stays here: %s", self.run_id, error)
        finally:
            self._leaving = None
        if taken:
            self.ended = self.handed_over = self._changes.over = True
            self._verdict.left(run)
        elif not self.partition.closed:
            self._verdict.later(run, max(0.0, (waits[0].deadline or 0.0) - self._store.now()))

    def _as_it_stands(self, run: RecordRun, waits: tuple[Wait, ...]) -> Leaving:
        return Leaving(run.origin, run.attempt, self._given, run.journal, waits)

    def block(self, leaving: Leaving, then: Callable[[bool], None]) -> None:
        """It failed once and for all, and its lane is to wait. `then` is told whether the store has it; if it was to be
        cancelled meanwhile, it is."""
        assert leaving.failure is not None
        self.run = self._changes.run = None
        self._changes.show(RunStatus.PAUSED, reason=leaving.failure)
        self._changes.attempt = leaving.attempt
        self._changes.event("paused", reason=leaving.failure.decode())
        self._changes.touch()
        loop = asyncio.get_running_loop()
        leave = self._leave_blocked(replace(leaving, seen=self._given), then)
        self._leaving = Context().run(loop.create_task, leave, name=f"hand over {self.run_id}")

    async def _leave_blocked(self, leaving: Leaving, then: Callable[[bool], None]) -> None:
        answer = HandedOver(False)
        try:
            if (flush := self._changes.flush) is not None and not flush.done:
                await flush.wait()
            if self.departure is not None and not self.partition.closed:
                answer = await self.departure(leaving)
        except LeaseLost:
            pass  # the partition is about to be dropped
        except StoreError as error:
            log.warning("run %s stays here: %s", self.run_id, error)
        finally:
            self._leaving = None
        for unread in answer.messages:
            self._unread.setdefault(unread.number, unread)
        if answer.taken:
            self.leave()
        if self._cancels() and not (answer.taken or self.partition.closed):
            self._cancel(leaving.record)
        else:
            then(answer.taken)

    def _hand_over(self, run: RecordRun) -> None:
        if run.desk is None:
            run.desk = Desk()
        for number in sorted(self._unread):
            self._given = max(self._given, number)
            run.deliver(self._unread[number])
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
        seen = max(self._given, max(self._unread, default=0))
        state = await ask_until_answered(lambda: self._store.read_record(self.run_id, seen))
        self._hydrated = True
        if state is not None:
            self._take_in(state)

    def _take_in(self, state: RecordState) -> None:
        for unread in state.messages:
            if unread.number > self._given:
                self._unread.setdefault(unread.number, unread)
        self._open.update(interrupt.wait_id for interrupt in state.interrupts)
        if state.restarts > self._restarts:
            self._restarts = state.restarts
            self._forget_pauses()
            if self._held is not None:
                self._go_on()
        self._deliver()

    def _deliver(self) -> None:
        run = self.run
        if run is None or self.ended:
            return
        for number in sorted(number for number in self._unread if number > self._given):
            self._given = number
            unread = self._unread[number]
            run.deliver(unread)
            if self._resting and wakes(self._changes.waits, unread.message.kind, unread.message.name):
                self._wake()

    def _cancels(self) -> list[int]:
        return [number for number, unread in self._unread.items() if unread.message.kind == "cancel"]

    def _forget_pauses(self) -> list[int]:
        numbers = [number for number, unread in self._unread.items() if unread.message.kind == "pause"]
        for number in numbers:
            del self._unread[number]
        return numbers

    def _see_to_it(self) -> None:
        """A cancel of a run whose body isn't there. One that was paused goes on, so that it can clean up."""
        if not self._cancels() or self.ended or self.partition.closed:
            return
        if self._held is not None:
            record, run = self._held
            if run is not None and self._outcome is not None and self._outcome.status == "paused":
                self._changes.consumed += self._forget_pauses()
                self._go_on()
                return
            self._slots.enter(self.partition, rested=False)
            self._cancel(record)
        elif self.position not in self.partition.journal and self.partition.is_queued(self.position):
            # for everybody else it has ended; its offset completes when its turn comes
            self._changes.consumed += self._cancels()
            self.finish("cancelled", None)

    def _cancel(self, record: RawRecord) -> None:
        self._changes.consumed += self._cancels()
        self._held = None
        self._verdict.cancel(self.partition, record)

    # standing still

    def _rest(self) -> None:
        run = self.run
        if run is None or self._resting or self.ended or self.partition.closed or run.stopped is not None:
            return
        waits = run.hold()
        if waits is None:
            return
        self._resting = True
        changes, status = self._changes, WAIT_STATUS[waits[0].kind]
        if (status, waits) != (changes.status, changes.waits):
            changes.show(status, waits)
            self.event(run, "waiting", waits=[wait._asdict() for wait in waits])
            self._changes.touch()
        due = earliest(waits)
        if due is not None:
            loop = asyncio.get_running_loop()
            left = max(0.0, due - self._clock.now().timestamp())
            self._timer = loop.call_later(left, self._wake, context=Context())
        self._slots.rest(self.partition)
        if self.departure is not None:
            loop = asyncio.get_running_loop()
            self._leaving = Context().run(loop.create_task, self._leave(run, waits), name=f"hand over {self.run_id}")

    async def _leave(self, run: RecordRun, waits: tuple[Wait, ...]) -> None:
        """To the store, which keeps it while it waits; if that refuses, it goes on resting here."""
        taken = False
        try:
            if (flush := self._changes.flush) is not None and not flush.done:
                await flush.wait()
            assert self.departure is not None
            if self._resting and not (self._returning or self._called or self.partition.closed):
                answer = await self.departure(self._as_it_stands(run, waits))
                taken = answer.taken
                for unread in answer.messages:
                    self._unread.setdefault(unread.number, unread)
        except LeaseLost:
            pass  # the partition is about to be dropped
        except StoreError as error:
            log.warning("run %s stays here: %s", self.run_id, error)
        finally:
            self._leaving = None
        if self.partition.closed:
            return
        if taken:
            self.ended = self.handed_over = self._changes.over = True
            run.parked()
            self.run = self._changes.run = None
        else:
            self._deliver()
            if self._called:
                self._called = False
                self._wake()

    def _wake(self) -> None:
        if self._leaving is not None:
            self._called = True
        elif self._resting and not self._returning:
            self._returning = True
            self._slots.come_back(self.partition, self._back)

    def _back(self) -> bool:
        self._returning = False
        if not self._resting:
            return False
        self._awake()
        assert self.run is not None
        self.run.go_on()
        return True

    def _awake(self) -> None:
        self._resting = False
        self._changes.show(RunStatus.RUNNING)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # its end

    def on_outcome(self, run: RecordRun, outcome: Outcome) -> None:
        """Its body has ended, or was cut. If it stood still it takes its slot again, so that it can be given back."""
        if self.partition.binding.keep == "all":
            self._last = run
        if self._resting:
            self._awake()
            self._slots.enter(self.partition, rested=True)
        self._outcome = outcome

    def on_failure(self, record: RawRecord, error: BaseException, run: RecordRun | None) -> None:
        """What it failed with, once and for all; no run: it wasn't made one. What a redrive takes is kept with its end,
        up to a size."""
        self._failure = failure_of(error)
        params = encode_record(record, self.partition.tp)
        self._params = params if len(params) <= KEPT_RECORD else b""
        if run is not None:
            self._changes.attempt = run.attempt
            if run.journal is not None and run.journal.size <= KEPT_JOURNAL:
                self._rows = rows_for_retry(run.journal, error)

    def hold(self, record: RawRecord, text: str, run: RecordRun | None) -> None:
        """It can't go on until somebody says so, then by this run, or from its beginning if there is none."""
        outcome = self._outcome
        if outcome is not None and outcome.status == "paused" and outcome.error is None:
            reason: bytes = outcome.value
        else:
            reason = encode_failure(self._failure or Failure("", text))
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
        keep = self.partition.binding.keep
        kept = keep == "all" or (keep == "failed" and status == "failed")
        value, error = b"null", None
        if status == "completed" and self._outcome is not None:
            value = self._encoded(self._outcome.value)
        if status == "failed":
            error = encode_failure(self._failure or Failure("", "failed"))
        fields = {"error": self._failure._asdict()} if status == "failed" and self._failure is not None else {}
        self._changes.event(status, **fields)
        params, rows = (self._params, self._rows) if status == "failed" else self._journal(status)
        flush = self._changes.end(RecordEnd(status, value, error, int(RETENTION_SECONDS) if kept else 0, params, rows))
        self.ended, self._end = True, status
        if self._has_children:
            flush.on_done(self._tell_children)
        if then is not None:
            flush.on_done(then)

    def _journal(self, status: Ending) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What a query of it is answered from when it has ended so: its record with its journal, or neither."""
        run, outcome = self._last, self._outcome
        if run is None or outcome is None or outcome.status != status:
            return b"", []
        params, journal = encode_record(run.origin, self.partition.tp), run.journal
        if len(params) > KEPT_RECORD or (journal is not None and journal.size > KEPT_JOURNAL):
            return b"", []
        return params, [] if journal is None else journal.rows()

    def _encoded(self, value: Any) -> bytes:
        workflow = self.partition.binding.workflow
        try:
            return workflow.return_codec.encode(value, f"the result of run {self.run_id}")[0]
        except SerializationError as error:
            log.warning("run %s: its result isn't kept: %s", self.run_id, error)
            return b"null"

    def _tell_children(self, error: Exception | None) -> None:
        if error is None:
            loop = asyncio.get_running_loop()
            task = Context().run(loop.create_task, self._relay(), name="cancel children")
            self.partition.background.add(task)
            task.add_done_callback(self.partition.background.discard)

    async def _relay(self) -> None:
        try:
            await self._store.relay()
        except StoreError as error:
            log.warning("run %s: its children are not told yet: %s", self.run_id, error)

    async def query(self, name: str, payload: bytes) -> bytes | None:
        """The answer of the body; None if there is none yet."""
        return None if self.run is None else await self.run.query(name, payload)

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
        if self._timer is not None:
            self._timer.cancel()
        if self._leaving is not None:
            self._leaving.cancel()
        if self._reading is not None:
            self._reading.cancel()
