"""The life of one run that was handed over, in the hands of a process that serves its binding.

It is a run like those that were submitted, so its rows, messages and waits go to the store by its lease. What is of the
record goes on as it would from the partition: outputs are acknowledged before the run ends, and so is the dead letter
of one that failed. A crash between repeats the outputs, which say so by their id.
"""

import asyncio
import logging
from collections.abc import Callable
from random import random
from typing import Any, Final

from pyrula.kafka.binding import Binding
from pyrula.kafka.dead_letter import letter, without_extras
from pyrula.kafka.events import EventKind
from pyrula.kafka.outputs import OutputRefused, Producing, TooLarge
from pyrula.kafka.record import Record
from pyrula.kafka.serde import RecordError
from pyrula.kafka.stored_record import StoredRecord
from pyrula.workflows.codec import loads
from pyrula.workflows.errors import LeaseLost, PyrulaError, SerializationError
from pyrula.workflows.execution import Execution, Outcome, Output, without_end
from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.store.messages import End, Wait
from pyrula.workflows.store.payloads import Failure, encode_failure, failure_of
from pyrula.workflows.store.records import TOLD_SECONDS
from pyrula.workflows.store.runs import ClaimedRun
from pyrula.workflows.worker.endings import WORKER_DIED, reason_of
from pyrula.workflows.worker.held import HeldRun, Surroundings
from pyrula.workflows.worker.patience import ask_until_answered
from pyrula.workflows.worker.rounds import run_round

__all__ = ["HandedRun", "Told"]

log = logging.getLogger("pyrula.kafka")

OUTPUT_ID: Final = "pyrula-output-id"

# Of a record, its attempt, and why; None if all is well.
Told = Callable[[EventKind, StoredRecord, str, int, str | None], None]


class RunTimeout(PyrulaError):
    """A run took longer than its binding's run_timeout."""


class HandedRun(HeldRun):
    """The engine's host of one such run, and what is done with it from its claim to its end."""

    def __init__(
        self, claimed: ClaimedRun, around: Surroundings, binding: Binding, outputs: Producing, told: Told
    ) -> None:
        super().__init__(claimed, around)
        self.binding = binding
        self.stored = StoredRecord.decode(claimed.params)
        self._clock = around.clock
        self._now = around.store.now
        self._outputs = outputs
        self._told = told

    def record(self, run: Any) -> Record[Any]:
        return Record.of(self.stored, self.stored.value, self.stored.place)

    async def live(self) -> None:
        """Until it is let go in one way or another. Raises LeaseLost if others have it."""
        try:
            await self._execute()
        except (LeaseLost, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("run %s is paused: it can't be executed here", self.lease.run_id)
            self.event(None, "paused", reason=failure_of(error)._asdict())
            await self.pause(encode_failure(failure_of(error)))

    async def _execute(self) -> None:
        claimed = self.claimed
        if claimed.doomed:
            await self._failed(WORKER_DIED, claimed.attempt, None)
            return
        self.event(None, "started", worker=self.lease.worker, attempt=claimed.attempt)
        try:
            args, kwargs = self.binding.arguments(self.stored, self.stored.place)
        except RecordError as error:
            await self._failed(failure_of(error), claimed.attempt, None)
            return
        if claimed.alone:
            await self.write(alone=True)
        journal = Journal.load(claimed.rows) if claimed.rows else None
        if journal is not None and claimed.retried:
            journal, dropped = without_end(journal)
            self.queue_rows(dropped)
        attempt = claimed.attempt
        # one that was queued has not begun before its first claim
        begun = claimed.lease.epoch > 1
        if (_between_rounds(journal) or not begun) and self.take_cancel():
            await self._cancelled(attempt)
            return
        while True:
            execution = self._execution(args, kwargs, journal, attempt)
            outcome = await self._round(execution)
            await self.stand_still()
            if self.parked:
                return
            again = await self._again(execution, outcome)
            if again is None:
                if not self.parked:
                    await self._end(execution, outcome)
                return
            if self.take_cancel():
                await self._cancelled(again.attempt)
                return
            journal, attempt = again.journal, again.attempt

    def _execution(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, journal: Journal | None, attempt: int
    ) -> Execution:
        run_id, workflow = self.lease.run_id, self.binding.workflow
        execution = Execution(workflow, run_id, self, args, kwargs, journal=journal, attempt=attempt, clock=self._clock)
        execution.attempt = max(execution.attempt, attempt)
        self.hand_over(execution)
        return execution

    async def _round(self, execution: Execution) -> Outcome:
        if self.lost is not None:
            raise self.lost
        left, limit = None, self.binding.run_timeout
        if limit is not None:
            self.deadline = await self._began() + limit
            left = self.deadline - self._now()
        outcome, expired = await run_round(execution, left)
        if expired and self.lost is None:
            return Outcome("failed", None, RunTimeout(f"the run took longer than run_timeout={limit} s"))
        return outcome

    async def _began(self) -> float:
        """When the run was started first: it may have been queued long before."""
        if self.lease.epoch > 1:
            events = await ask_until_answered(lambda: self._store.events_of(self.lease.run_id, 0))
            for kind, at, _ in map(loads, events):
                if kind == "started":
                    return float(at)
        return self._now()

    async def _again(self, execution: Execution, outcome: Outcome) -> Execution | None:
        """The next round of a run that failed, when its time has come. None if there is none, or not here."""
        retry, error = self.binding.retry, outcome.error
        if outcome.status != "failed" or not isinstance(error, Exception) or execution.error is None:
            return None
        if isinstance(error, RunTimeout) or execution.attempt >= retry.max_attempts or not retry.retryable(error):
            return None
        again = execution.retry()
        self.note_attempt(again.attempt)
        self.event(None, "retried", attempt=again.attempt)
        self._tell("retrying", execution.attempt, _one_line(failure_of(error)))
        delay = retry.delay_for(error, execution.attempt, random())
        if delay <= self.park_after:
            await asyncio.sleep(delay)
            return again
        reply = await self.park([Wait("retry", "", self._now() + delay)])
        self.receive(reply.messages)
        return None if reply.parked else again

    async def _end(self, execution: Execution, outcome: Outcome) -> None:
        attempt = execution.attempt
        if outcome.status == "cut":
            if self.lost is not None:
                raise self.lost
            await self.release()
        elif outcome.status == "paused" and execution.cancel_requested and outcome.error is not None:
            await self._cancelled(attempt)
        elif outcome.status == "paused":
            reason = reason_of(outcome)
            self.event(None, "paused", reason=reason.decode())
            self._tell("paused", attempt, reason.decode())
            await self.pause(reason)
        elif outcome.status == "cancelled":
            await self._cancelled(attempt)
        elif outcome.status == "completed":
            await self._completed(execution, outcome)
        elif outcome.status == "continued_as_new":
            text = "the run of a record can't continue as new; start the next part by ctx.start_child"
            await self._failed(Failure("pyrula.kafka.endings.NoNextLink", text), attempt, execution)
        else:
            assert outcome.error is not None
            await self._failed(failure_of(outcome.error), attempt, execution)

    async def _completed(self, execution: Execution, outcome: Outcome) -> None:
        binding, attempt = self.binding, execution.attempt
        codec, outputs = binding.workflow.return_codec, list(execution.outputs or ())
        try:
            value = codec.encode(outcome.value, f"the result of run {self.lease.run_id}")[0]
            if binding.output is not None:
                what = f"the result of {binding.workflow.name}, for {binding.output!r}"
                encoded = codec.encode_message(outcome.value, what)
                outputs.append(Output(binding.output, encoded, self.stored.key, (), None, None))
        except SerializationError as error:
            await self._failed(failure_of(error), attempt, execution)
            return
        for number, output in enumerate(outputs):
            named = (OUTPUT_ID, f"{self.lease.run_id}:{number}".encode())
            outputs[number] = output._replace(headers=(*output.headers, named))
        refused = await self._produced(outputs)
        if refused is not None:
            await self._failed(failure_of(refused), attempt, execution)
            return
        self.event(None, "completed")
        await self.finish(End("completed", value, seconds=self._kept_seconds("completed")))
        self._tell("completed", attempt, None)

    async def _cancelled(self, attempt: int) -> None:
        await self.stand_still()
        self.event(None, "cancelled")
        await self.finish(End("cancelled", seconds=self._kept_seconds("cancelled")))
        self._tell("cancelled", attempt, None)

    async def _failed(self, failure: Failure, attempt: int, execution: Execution | None) -> None:
        """The last word on it, by the binding's on_failure."""
        binding, text = self.binding, _one_line(failure)
        if binding.on_failure == "stop":
            self._tell("stopped", attempt, text)
            self.event(None, "paused", reason=failure._asdict())
            await self.pause(encode_failure(failure), failed=True)
            return
        if binding.dead_letters:
            copy = letter(
                binding.dead_letter_topic_of(self.stored.topic),
                self.stored,
                self.stored.place,
                group=binding.group,
                workflow=binding.workflow.name,
                run_id=self.lease.run_id,
                reason="failed",
                message=text,
                attempts=attempt,
                trace=failure.trace,
                rows=None if execution is None or execution.journal is None else execution.journal.rows(),
            )
            refused = await self._produced([copy])
            if isinstance(refused, TooLarge) and (smaller := without_extras(copy)) != copy:
                refused = await self._produced([smaller])
            if refused is not None:
                self._tell("stopped", attempt, f"no dead letter: {refused}")
                await self.pause(encode_failure(failure_of(refused)), failed=True)
                return
        if binding.parks_key(self.stored.key):
            self.event(None, "paused", reason=failure._asdict())
            await self.pause(encode_failure(failure), failed=True)
            self._tell("blocked", attempt, text)
            return
        self.event(None, "failed", error=failure._asdict())
        await self.finish(End("failed", error=encode_failure(failure), seconds=self._kept_seconds("failed")))
        self._tell("dead_lettered" if binding.dead_letters else "skipped", attempt, text)

    def _kept_seconds(self, status: str) -> int | None:
        """As the binding says; a redrive's end is kept in any case, so that it isn't redriven once more."""
        keep = self.binding.keep
        kept = keep == "all" or (keep == "failed" and status == "failed") or "redrive" in loads(self.claimed.metadata)
        return None if kept else TOLD_SECONDS

    async def _produced(self, outputs: list[Output]) -> OutputRefused | None:
        """Until all is acknowledged, or why it won't be."""
        if not outputs:
            return None
        done: asyncio.Future[OutputRefused | None] = asyncio.get_running_loop().create_future()

        def settle(refused: OutputRefused | None) -> None:
            if not done.done():
                done.set_result(refused)

        self._outputs.produce(outputs, settle)
        return await done

    def _tell(self, kind: EventKind, attempt: int, text: str | None) -> None:
        self._told(kind, self.stored, self.lease.run_id, attempt, text)


def _between_rounds(journal: Journal | None) -> bool:
    """Whether a further round was decided on and has written nothing yet."""
    rows = [] if journal is None else journal.entries()
    return bool(rows) and rows[-1][1].kind == "attempt" and rows[-1][1].op == ""


def _one_line(failure: Failure) -> str:
    name = failure.type.rpartition(".")[2]
    text = failure.message.strip()
    return f"{name}: {text}" if name and text else text or name
