"""How a run ends: its rows durable, its outputs acknowledged, its record done; or retried, dead-lettered, held.

The order never changes: rows durable, then outputs acknowledged, then the record complete. Until then the run is in
flight, its lane waits and its offset can't pass.
"""

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import random
from time import monotonic

from aiokafka import TopicPartition

from pyrula.kafka.company import Ending
from pyrula.kafka.dead_letter import letter, without_extras
from pyrula.kafka.deaths import Mark
from pyrula.kafka.events import EventKind, Observer, RecordEvent, tell
from pyrula.kafka.outputs import Done, OutputRefused, Producing, TooLarge
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.serde import RecordError
from pyrula.kafka.tally import Tally
from pyrula.workflows.errors import PyrulaError, SerializationError
from pyrula.workflows.execution import Outcome, Output

log = logging.getLogger("pyrula.kafka")
# apart, for who shows held records in another way
log_held = logging.getLogger("pyrula.kafka.held")

# So many runs that don't match today's code within a minute mean a wrong deploy: the binding stops.
MISMATCHES = 20
MISMATCH_SECONDS = 60.0
# A run that a stranger cut begins again so often at most, after so many seconds and each time twice as many.
AGAIN_AT_MOST = 6
AGAIN_SECONDS = 0.1


class RunTimeout(PyrulaError):
    """A run took longer than its binding's run_timeout."""


class BodyCancelled(PyrulaError):
    """The task of a record's run was cancelled again and again, and not by the run."""


class NoNextLink(PyrulaError):
    """The run of a record asked to continue as new."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id} is of a record, whose offset can't wait for a chain of runs: instead of "
            "ctx.continue_as_new(params) start the next part by ctx.start_child(workflow, params, "
            'on_parent_close="abandon"), and let this run end'
        )

    def __reduce__(self) -> tuple[type["NoNextLink"], tuple[str]]:
        return type(self), (self.run_id,)


class WorkerDied(PyrulaError):
    """A record during which its process died again and again, also when nothing else ran."""


class RunEndings:
    """The endings of one binding's runs."""

    def __init__(self, outputs: Producing, observer: Callable[[], Observer | None]) -> None:
        self._outputs = outputs
        self._observer = observer
        self._mismatches: deque[float] = deque(maxlen=MISMATCHES)
        self._tallies = {
            "dead_lettered": Tally("records were copied to a dead-letter topic"),
            "skipped": Tally("failed records were skipped"),
            "retrying": Tally("runs failed and are tried again"),
        }
        self._held = Tally("records are held", logging.ERROR, log_held)
        self._refusals: dict[tuple[TopicPartition, int], OutputRefused] = {}
        self.pool: Replayers

    def end(self, run: RecordRun, outcome: Outcome) -> None:
        """Take over a run whose body has ended, been cut, or stands where today's code can't follow."""
        partition = run.partition
        if partition.addresses is not None:
            partition.addresses.on_outcome(run, outcome)
        if run.leftovers:
            self.pool.linger(partition, run.origin, run.leftovers)
            if not partition.closed:
                gone = asyncio.gather(*run.leftovers, return_exceptions=True)
                run.leftovers = ()
                gone.add_done_callback(lambda _: self.end(run, outcome))
                return
        if partition.closed:
            self.pool.leave(partition)
            self.pool.wake()
        elif outcome.status == "completed":
            self._completed(run, outcome)
        elif outcome.status == "failed":
            assert outcome.error is not None
            self._failed(run, outcome.error)
        elif outcome.status == "parked":
            partition.complete([run.origin], stored=True)
            self._tell("handed_over", partition, run.origin, run.attempt, None, run.started)
            self._release(partition)
        elif outcome.status == "cancelled":
            self._when_durable(run, partial(self._finish, run, "cancelled", None))
        elif outcome.status == "paused" and outcome.error is None:
            self._when_durable(run, partial(self._paused, run))
        elif outcome.status == "paused" and run.cancel_requested:
            self._finish(run, "cancelled", None)
        elif outcome.status == "paused":
            self._mismatch(run, outcome)
        elif outcome.status == "continued_as_new":
            self._when_durable(run, partial(self._dispose, partition, run.origin, NoNextLink(run.run_id), run))
        elif run.expired:
            self._failed(run, RunTimeout(f"the run took longer than run_timeout={self.pool.binding.run_timeout} s"))
        elif run.error is None:
            self._begin_again(run)
        else:
            # Cut although the partition is open: its token was superseded. The assignment is about to drop it.
            self._release(partition)

    def close(self) -> None:
        """Tell what was only counted."""
        for tally in (*self._tallies.values(), self._held):
            tally.flush()

    def broken(self, partition: Partition, record: RawRecord, error: Exception) -> None:
        """Neither the body's fault nor the record's: it is held for a person, and the others go on."""
        log.error("%s[%d] offset %d", *partition.tp, record.offset, exc_info=error)
        partition.running.pop(record.offset, None)
        if partition.closed:
            self._release(partition)
        else:
            self._hold("stopped", partition, record, 0, _one_line(error), monotonic())

    def refuse(self, partition: Partition, record: RawRecord, error: RecordError) -> None:
        """A record that can't be turned into a run: no attempt, no retry."""
        self._dispose(partition, record, error, None, reason="undecodable")

    def condemn(self, partition: Partition, record: RawRecord, mark: Mark) -> None:
        """A record that killed its worker too often is not run again."""
        error = WorkerDied(
            f"the worker process died {mark.deaths + mark.alone} times while this record was in progress, "
            f"{mark.alone} times with nothing else running"
        )
        self._dispose(partition, record, error, None, reason="worker died", attempts=mark.deaths + mark.alone)

    def completed_at_once(self, run: RecordRun) -> None:
        """Tell of a run that needed nothing but its body."""
        self._tell("completed", run.partition, run.origin, run.attempt, None, run.started)

    def _completed(self, run: RecordRun, outcome: Outcome) -> None:
        outputs = list(run.outputs or ())
        binding = self.pool.binding
        if binding.output is not None:
            try:
                value = binding.workflow.return_codec.encode_message(
                    outcome.value, f"the result of {binding.workflow.name}, for {binding.output!r}"
                )
            except SerializationError as error:
                self._failed(run, error)
                return
            outputs.append(Output(binding.output, value, run.origin.key, (), None, None))
        self._when_durable(run, partial(self._produce, run, outputs))

    def _when_durable(self, run: RecordRun, then: Callable[[], None]) -> None:
        if run.flush is None or run.durable:
            then()
        else:
            run.flush.on_done(partial(self._durable, run, then))

    def _durable(self, run: RecordRun, then: Callable[[], None], error: Exception | None) -> None:
        if error is not None or run.partition.closed:
            self._release(run.partition)
        else:
            then()

    def _produce(self, run: RecordRun, outputs: list[Output]) -> None:
        if outputs:
            self._send(run.partition, run.origin, outputs, partial(self._produced, run))
        else:
            self._finish(run, "completed", None)

    def _produced(self, run: RecordRun, refused: OutputRefused | None) -> None:
        if refused is None:
            self._finish(run, "completed", None)
        else:
            self._failed(run, refused)

    def _finish(self, run: RecordRun, kind: EventKind, error: str | None) -> None:
        self._settle(kind, run.partition, run.origin, run.attempt, error, run.started)

    def _release(self, partition: Partition) -> None:
        self.pool.leave(partition)
        self.pool.offer(partition)

    def _failed(self, run: RecordRun, error: BaseException) -> None:
        partition, pool = run.partition, self.pool
        retry = pool.binding.retry
        if run.attempt < retry.max_attempts and isinstance(error, Exception) and retry.retryable(error):
            again = run.retry()
            assert isinstance(again, RecordRun)
            again.started = run.started
            if again.host is not partition:
                partition.addressed[run.origin.offset].next_round(again)
            delay = retry.delay_for(error, run.attempt, random())
            pool.stats.retried += 1
            self._tell("retrying", partition, run.origin, run.attempt, _one_line(error), run.started)
            if partition.addresses is None or not partition.addresses.retry_later(again, delay):
                self.later(again, delay)
            self._release(partition)
            return
        self._when_durable(run, partial(self._dispose, partition, run.origin, error, run))

    def _begin_again(self, run: RecordRun) -> None:
        """Somebody cancelled the task that the body ran in: a record before it may have left a timer behind."""
        partition, times = run.partition, run.cut_short + 1
        if times > AGAIN_AT_MOST:
            self._failed(run, BodyCancelled(f"its task was cancelled from outside {times} times"))
            return
        again = run.again()
        again.cut_short = times
        if again.host is not partition:
            partition.addressed[run.offset].next_round(again)
        log.warning(
            "%s offset %d: the task of its run (%s) was cancelled from outside, perhaps by what an earlier body left "
            "behind: tasks are used again, so nothing may keep asyncio.current_task() or an asyncio.timeout() open "
            "after its body's end; the run begins again from its journal",
            partition.tp, run.offset, run.run_id,
        )  # fmt: skip
        self.later(again, AGAIN_SECONDS * 2**run.cut_short)
        self._release(partition)

    def later(self, run: RecordRun, delay: float) -> None:
        """The run begins its next round in so many seconds, its lane held."""
        asyncio.get_running_loop().call_later(delay, self._again, run)

    def left(self, run: RecordRun) -> None:
        """The run was handed over; it was not in flight."""
        partition = run.partition
        if not partition.closed:
            partition.complete([run.origin], stored=True)
            self._tell("handed_over", partition, run.origin, run.attempt, None, run.started)
            self.pool.offer(partition)

    def lined_up(self, partition: Partition, records: Sequence[RawRecord]) -> None:
        """The records are queued in the store, and have left their lane here."""
        if not partition.closed:
            partition.complete(records, left=True, stored=True)
            for record in records:
                self._tell("handed_over", partition, record, 0, None, monotonic())

    def _again(self, run: RecordRun) -> None:
        partition = run.partition
        if not partition.closed:
            partition.lanes.ready.appendleft(run)
            self.pool.offer(partition)

    def _dispose(
        self,
        partition: Partition,
        record: RawRecord,
        error: BaseException,
        run: RecordRun | None,
        *,
        reason: str = "failed",
        attempts: int = 0,
    ) -> None:
        """The last word on a record that failed, by the binding's on_failure. No run: it was not made one."""
        self.pool.stats.failed += 1
        if partition.addresses is not None:
            partition.addresses.on_failure(record, error, run)
        binding, text, since = self.pool.binding, _one_line(error), monotonic()
        if run is not None:
            attempts, since = run.attempt, run.started
        if binding.on_failure == "skip":
            self._settle("skipped", partition, record, attempts, text, since)
        elif binding.on_failure == "stop":
            # It goes on from its journal without the last error.
            again = None if run is None else run.retry()
            self._hold("stopped", partition, record, attempts, text, since, again)
        else:
            copy = letter(
                binding.dead_letter_topic_of(partition.tp.topic),
                record,
                partition.tp,
                group=binding.group,
                workflow=binding.workflow.name,
                run_id=partition.run_id(record.offset),
                reason=reason,
                message=text,
                attempts=attempts,
                trace="" if run is None else "".join(traceback.format_exception(error)),
                rows=None if run is None or run.journal is None else run.journal.rows(),
            )
            park = binding.parks_key(record.key)
            last = partial(self._block, error, run) if park else partial(self._settle, "dead_lettered")
            self._post(copy, partition, record, attempts, text, since, run, last)

    def _block(
        self,
        error: BaseException,
        run: RecordRun | None,
        partition: Partition,
        record: RawRecord,
        attempts: int,
        text: str,
        since: float,
    ) -> None:
        """The record's copy is written, and its key waits for a person: in the store, or here if that can't be."""
        again = None if run is None else run.retry()

        def handed(taken: bool) -> None:
            if partition.closed:
                self._release(partition)
            elif taken:
                self._settled("blocked", partition, record, attempts, text, since)
            else:
                self._hold("stopped", partition, record, attempts, text, since, again)

        self.pool.stats.dead_lettered += not partition.closed
        addresses = None if partition.closed else partition.addresses
        if addresses is None or not addresses.block(record, error, attempts, run, handed):
            handed(False)

    def _post(
        self,
        copy: Output,
        partition: Partition,
        record: RawRecord,
        attempts: int,
        text: str,
        since: float,
        run: RecordRun | None,
        last: Callable[[Partition, RawRecord, int, str, float], None],
    ) -> None:
        def posted(refused: OutputRefused | None) -> None:
            if refused is None:
                last(partition, record, attempts, text, since)
                return
            smaller = without_extras(copy)
            if isinstance(refused, TooLarge) and smaller != copy:
                self._post(smaller, partition, record, attempts, text, since, run, last)
            else:
                self._hold("stopped", partition, record, attempts, f"no dead letter: {refused}", since, run)

        self._send(partition, record, [copy], posted)

    def _send(self, partition: Partition, record: RawRecord, outputs: list[Output], done: Done) -> None:
        """Produce, unless the group may have gone on without us: then another process produces."""
        if partition.closed:
            self._release(partition)
        elif monotonic() > self.pool.standing.until:
            self.pool.standing.on_change(partial(self._send, partition, record, outputs, done))
        elif partition.transactor is None:
            self._outputs.produce(outputs, done)
        else:
            self._transact(partition, record, outputs, done)

    def _transact(self, partition: Partition, record: RawRecord, outputs: list[Output], done: Done) -> None:
        """Produce in a transaction. A topic's refusal may cost the partition, so it is kept for the record's return."""
        place = partition.tp, record.offset
        before = self._refusals.pop(place, None)
        if before is not None and any(output.topic == before.topic for output in outputs):
            done(before)
            return

        def settled(refused: OutputRefused | None) -> None:
            if not partition.closed:
                done(refused)
                return
            if refused is not None:
                self._refusals[place] = refused
            self._release(partition)

        assert partition.transactor is not None
        partition.transactor.put(record, outputs, settled)

    def _settle(
        self, kind: EventKind, partition: Partition, record: RawRecord, attempts: int, text: str | None, since: float
    ) -> None:
        """The record needs nothing more: if that is to be on record, first of all."""
        attended = partition.addressed.get(record.offset) if partition.addressed else None
        if attended is None:
            self._settled(kind, partition, record, attempts, text, since)
        else:
            end = partial(self._settled, kind, partition, record, attempts, text, since)
            attended.finish(kind if kind == "completed" or kind == "cancelled" else "failed", end)

    def _settled(
        self,
        kind: EventKind,
        partition: Partition,
        record: RawRecord,
        attempts: int,
        text: str | None,
        since: float,
        unwritten: Exception | None = None,
    ) -> None:
        if not partition.closed and unwritten is None:
            partition.complete([record], stored=kind == "blocked")
            stats = self.pool.stats
            if kind != "blocked":  # which counts as dead-lettered
                setattr(stats, kind, getattr(stats, kind) + 1)
            self._tell(kind, partition, record, attempts, text, since)
        self._release(partition)

    def _hold(
        self,
        kind: EventKind,
        partition: Partition,
        record: RawRecord,
        attempts: int,
        text: str,
        since: float,
        run: RecordRun | None = None,
        level: int = logging.ERROR,
    ) -> None:
        """The record stays unfinished and its lane with it; others go on until the window is full. `run` is what may
        go on."""
        place = _place(partition, record)
        partition.stopped[record.offset] = f"{place}: {text}"
        if level == logging.ERROR:
            first, _, advice = text.partition("\n")
            self._held.tell(f"{place} is held: {first}", monotonic(), advice)
        else:
            log_held.log(level, "%s is held: %s", place, text)
        if partition.addresses is not None and not partition.closed:
            partition.addresses.hold(record, text, run)
        self._tell(kind, partition, record, attempts, text, since)
        self._release(partition)

    def _mismatch(self, run: RecordRun, outcome: Outcome) -> None:
        pool, now = self.pool, monotonic()
        pool.stats.paused += 1
        self._mismatches.append(now)
        if len(self._mismatches) == MISMATCHES and now - self._mismatches[0] <= MISMATCH_SECONDS and not pool.halted:
            pool.halted = (
                f"{MISMATCHES} runs of {pool.binding.workflow.name} within a minute can't go on with today's code. "
                f"The last: {outcome.error}\nIf the last deploy changed the body, deploy the former one, or guard the "
                "change with ctx.patched(...); then restart"
            )
            log.error("binding %s is paused: %s", pool.binding.name, pool.halted)
        assert outcome.error is not None
        self._hold("paused", run.partition, run.origin, run.attempt, str(outcome.error), run.started, run)

    def over(self, partition: Partition, record: RawRecord, end: Ending | None) -> None:
        """The record's run had ended before, and only its offset was open. Who was to hear of it may have died."""
        if end is not None:
            failed: EventKind = "skipped" if self.pool.binding.on_failure == "skip" else "dead_lettered"
            kind = failed if end == "failed" else end
            self._settled(kind, partition, record, 0, "it had failed before" if end == "failed" else None, monotonic())
            return
        if not partition.closed:
            partition.complete([record], stored=True)
        self._release(partition)

    def cancel(self, partition: Partition, record: RawRecord) -> None:
        """The record's run was cancelled while it had no body."""
        partition.stopped.pop(record.offset, None)
        self._settle("cancelled", partition, record, 0, None, monotonic())

    def again(self, partition: Partition, record: RawRecord, run: RecordRun | None) -> None:
        """A held record is to go on: by this run, or from its beginning."""
        partition.stopped.pop(record.offset, None)
        if not partition.closed:
            partition.lanes.ready.appendleft(record if run is None else run)
            self.pool.offer(partition)

    def _paused(self, run: RecordRun) -> None:
        self.pool.stats.paused += 1
        text = "paused by a client"
        self._hold("paused", run.partition, run.origin, run.attempt, text, run.started, run, logging.INFO)

    def _tell(
        self,
        kind: EventKind,
        partition: Partition,
        record: RawRecord,
        attempt: int,
        error: str | None,
        since: float,
    ) -> None:
        if (tally := self._tallies.get(kind)) is not None:
            tally.tell(
                f"{_place(partition, record)}, attempt {attempt}: {kind.replace('_', '-')}: {error}", monotonic()
            )
        observer = self._observer()
        if observer is not None:
            tell(
                observer,
                RecordEvent(
                    kind,
                    self.pool.binding.name,
                    partition.tp.topic,
                    partition.tp.partition,
                    record.offset,
                    record.key,
                    partition.run_id(record.offset),
                    attempt,
                    error,
                    monotonic() - since,
                ),
            )


def _place(partition: Partition, record: RawRecord) -> str:
    return f"{partition.tp.topic}[{partition.tp.partition}] offset {record.offset}"


def _one_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
