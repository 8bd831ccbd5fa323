"""The life of a claimed run in one process: its body, further rounds of it, further links of its chain, its end.

Rules: a run is let go in exactly one way: finished, parked, paused, released, or lost. What a body left running (a
thread can't be ended) is waited for first, so that no two bodies of a run ever overlap here. What is wrong with this
code, not with the body, pauses the run for a person to look at.
"""

import asyncio
import logging
from collections.abc import Callable
from math import inf
from random import random
from typing import Any

from pyrula.workflows.clock import Clock
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import LeaseLost, NoBrokerError, NonDeterminismError, SerializationError
from pyrula.workflows.execution import Execution, Outcome, without_end
from pyrula.workflows.params import Params
from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.payloads import encode_failure, failure_of
from pyrula.workflows.store.runs import ClaimedRun, Finished
from pyrula.workflows.worker.ended import EndedRuns
from pyrula.workflows.worker.endings import (
    WORKER_DIED,
    RunTimeout,
    checked,
    end_of,
    event_of,
    failed_end,
    reason_of,
)
from pyrula.workflows.worker.held import HeldRun, Surroundings
from pyrula.workflows.worker.patience import ask_until_answered
from pyrula.workflows.worker.rounds import run_round
from pyrula.workflows.worker.served import Served

__all__ = ["Lives"]

log = logging.getLogger("pyrula.worker")


class Lives:
    """The runs that this process holds, by run id. `patience`: so many seconds after a claim left, unless it is known
    better, a run may be another's."""

    def __init__(
        self,
        served: Served,
        around: Surroundings,
        worker: str,
        on_free: Callable[[], None],
        *,
        patience: float = inf,
    ) -> None:
        self.served = served
        self.held: dict[str, HeldRun] = {}
        self.draining = False
        self.ended = EndedRuns()
        self._around = around
        self._worker = worker
        self._on_free = on_free
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_chain: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[HeldRun] = set()
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def crowded(self) -> bool:
        """A run that must be executed with nothing beside it is here: others had better not come."""
        return any(held.claimed.alone for held in self.held.values())

    @property
    def clock(self) -> Clock:
        return self._around.clock

    def begin(self, claimed: ClaimedRun, sent: float) -> None:
        """Take a run in hand, in a task of its own. `sent`: when its claim left, in monotonic seconds."""
        run_id = claimed.lease.run_id
        self.ended.claimed += 1
        former = self.held.get(run_id)
        held = self.held[run_id] = HeldRun(claimed, self._around)
        if claimed.alone:
            self._waiting.add(held)
        # the task ends with the chain's last link, so that what comes after it waits for all of them
        before = self._of_chain.get(run_id)
        if former is not None:
            former.lose(LeaseLost(f"run {run_id} was claimed again, by this same worker"))
        task = asyncio.get_running_loop().create_task(self._live(held, before, sent), name=f"run {run_id}")
        self._of_chain[run_id] = task
        self._tasks.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a run was dropped", exc_info=task.exception())
        self._on_free()

    def cut(self) -> None:
        """End all bodies promptly, uncharged."""
        for held in list(self.held.values()):
            if held.execution is not None:
                held.execution.cut()

    async def until_empty(self, seconds: float | None) -> bool:
        """Wait for the end of all runs."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        return not self._tasks

    async def drop(self) -> None:
        """Whatever is held is left to others."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _live(self, held: HeldRun, before: "asyncio.Task[None] | None", sent: float) -> None:
        if before is not None:
            await asyncio.wait([before])
        following: HeldRun | None = held
        while following is not None:
            held = following
            try:
                finished = await self._in_its_turn(held, sent)
            except LeaseLost as error:
                log.info("run %s (%s) is dropped: %s", held.lease.run_id, held.claimed.name, error)
                finished = None
            finally:
                self._waiting.discard(held)
                if self.held.get(held.lease.run_id) is held:
                    del self.held[held.lease.run_id]
                    del self._of_chain[held.lease.run_id]
                self._left.set()
                self.ended.counts[held.way_out or "lost"] += 1
                await held.close_down()
            following = await self._next_link(finished)
            # the finish was the claim of the next link
            sent = held.leaving_since

    async def _next_link(self, finished: Finished | None) -> HeldRun | None:
        if finished is None or finished.next is None:
            return None
        following = finished.next
        if self.draining:
            try:
                await ask_until_answered(lambda: self._around.store.release(following.lease))
            except LeaseLost as error:
                log.info("run %s is another worker's already: %s", following.lease.run_id, error)
            return None
        held = self.held[following.lease.run_id] = HeldRun(following, self._around)
        task = asyncio.current_task()
        assert task is not None
        self._of_chain[following.lease.run_id] = task
        return held

    async def _in_its_turn(self, held: HeldRun, sent: float) -> Finished | None:
        while held in self._waiting and len(self.held) > len(self._waiting) and not self.draining:
            if held.lost is not None:
                raise held.lost
            self._left.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._left.wait()
            except TimeoutError:
                pass
        if held in self._waiting and self.draining:
            await held.release()
            return None
        self._waiting.discard(held)
        await held.make_sure(sent, self._patience)
        return await self._hold(held)

    async def _hold(self, held: HeldRun) -> Finished | None:
        try:
            return await self._execute(held)
        except (LeaseLost, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("run %s (%s) is paused: it can't be executed here", held.lease.run_id, held.claimed.name)
            held.event(None, "paused", reason=failure_of(error)._asdict())
            await held.pause(encode_failure(failure_of(error)))
            return None

    async def _execute(self, held: HeldRun) -> Finished | None:
        claimed = held.claimed
        if claimed.doomed:
            held.event(None, "failed", error=WORKER_DIED._asdict())
            return await held.finish(failed_end(WORKER_DIED))
        definition = self.served.find(claimed.name, claimed.version)
        if definition is None:
            raise LookupError(f"workflow {claimed.name!r}, version {claimed.version!r}, isn't served here")
        held.event(None, "started", worker=self._worker, attempt=claimed.attempt)
        try:
            kwargs = Params.of(definition).decode(claimed.params)
        except (ValueError, SerializationError) as error:
            return await self._finish(held, definition, Outcome("failed", None, error))
        if claimed.alone:
            await held.write(alone=True)
        execution = self._first_round(held, definition, kwargs)
        if _between_rounds(execution.journal) and held.take_cancel():
            return await self._cancel(held, definition)
        while True:
            outcome = await self._round(held, execution, definition)
            await held.stand_still()
            if held.parked:
                return None
            again = await self._again(held, execution, definition, outcome)
            if again is None:
                return None if held.parked else await self._end(held, execution, outcome)
            if held.take_cancel():
                return await self._cancel(held, definition)
            # not the same object: messages that the last round didn't read are there for this one
            execution = self._execution(held, definition, kwargs, again.journal, again.attempt)

    def _first_round(
        self, held: HeldRun, definition: WorkflowDefinition[Any, Any], kwargs: dict[str, Any]
    ) -> Execution:
        claimed = held.claimed
        journal = Journal.load(claimed.rows) if claimed.rows else None
        if journal is not None and claimed.retried:
            journal, dropped = without_end(journal)
            held.queue_rows(dropped)
        return self._execution(held, definition, kwargs, journal, claimed.attempt)

    def _execution(
        self,
        held: HeldRun,
        definition: WorkflowDefinition[Any, Any],
        kwargs: dict[str, Any],
        journal: Journal | None,
        attempt: int,
    ) -> Execution:
        execution = Execution(
            definition,
            held.lease.run_id,
            held,
            (),
            kwargs,
            journal=journal,
            attempt=attempt,
            clock=self._around.clock,
        )
        execution.attempt = max(execution.attempt, attempt)
        held.hand_over(execution)
        return execution

    async def _round(self, held: HeldRun, execution: Execution, definition: WorkflowDefinition[Any, Any]) -> Outcome:
        if held.lost is not None:
            raise held.lost
        left = None
        if definition.timeout is not None:
            held.deadline = held.claimed.created_at + definition.timeout
            left = held.deadline - self._around.store.now()
            if left <= 0:
                return Outcome("failed", None, _too_long(definition))
        outcome, expired = await run_round(execution, left)
        if expired and held.lost is None:
            return Outcome("failed", None, _too_long(definition))
        return checked(outcome, execution)

    async def _again(
        self, held: HeldRun, execution: Execution, definition: WorkflowDefinition[Any, Any], outcome: Outcome
    ) -> Execution | None:
        """The next round of a run that failed, when its time has come. None if there is none, or not here."""
        retry, error = definition.retry, outcome.error
        if outcome.status != "failed" or retry is None or not isinstance(error, Exception):
            return None
        if isinstance(error, (RunTimeout, NoBrokerError)) or not retry.retryable(error):
            return None
        if execution.attempt >= retry.max_attempts:
            return None
        if execution.error is None:
            # it failed after its body had ended, so another round would give the same
            return None
        again = execution.retry()
        assert isinstance(again, Execution)
        held.note_attempt(again.attempt)
        held.event(None, "retried", attempt=again.attempt)
        delay = retry.delay_for(error, execution.attempt, random())
        if delay <= self._around.park_after and not self.draining:
            await asyncio.sleep(delay)
            return again
        reply = await held.park([Wait("retry", "", self._around.store.now() + delay)])
        held.receive(reply.messages)
        return None if reply.parked else again

    async def _end(self, held: HeldRun, execution: Execution, outcome: Outcome) -> Finished | None:
        if outcome.status == "cut":
            if held.lost is not None:
                raise held.lost
            await held.release()
            return None
        if outcome.status == "paused":
            reason = reason_of(outcome)
            log.warning("run %s (%s) is paused: %s", held.lease.run_id, held.claimed.name, outcome.error or "asked to")
            if isinstance(outcome.error, NonDeterminismError):
                self.ended.on_misfit(self._around.clock.monotonic(), held.lease.run_id, str(outcome.error))
            held.event(None, "paused", reason=reason.decode())
            await held.pause(reason)
            return None
        if execution.outputs and outcome.status in ("completed", "continued_as_new"):
            self._around.on_outputs(held.lease.run_id, execution.outputs)
        return await self._finish(held, execution.definition, outcome)

    async def _cancel(self, held: HeldRun, definition: WorkflowDefinition[Any, Any]) -> Finished:
        """Between two rounds there is no body that could clean up."""
        await held.stand_still()
        return await self._finish(held, definition, Outcome("cancelled"))

    async def _finish(self, held: HeldRun, definition: WorkflowDefinition[Any, Any], outcome: Outcome) -> Finished:
        held.event(None, outcome.status, **event_of(outcome, held.lease.run_id))
        return await held.finish(end_of(outcome, definition, held.lease.run_id))


def _between_rounds(journal: Journal | None) -> bool:
    """Whether a further round was decided on and has written nothing yet."""
    rows = [] if journal is None else journal.entries()
    return bool(rows) and rows[-1][1].kind == "attempt" and rows[-1][1].op == ""


def _too_long(definition: WorkflowDefinition[Any, Any]) -> RunTimeout:
    return RunTimeout(f"the run took longer than timeout={definition.timeout} s of workflow {definition.name!r}")
