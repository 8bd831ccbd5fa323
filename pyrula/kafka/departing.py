"""Handing the run of one record that stands still over to the store: what leaves, and what becomes of one that stays.

Rules: what was decided about the run is durable first, and then it must still be so that it may leave. If the store
refuses, or can't be reached, it stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Protocol, TypeAlias

from pyrula.kafka.attending import AttendingStore, Leaving, Verdict
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.run_changes import Changes
from pyrula.kafka.run_inbox import RunInbox
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.store.lanes import HandedOver
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.record_changes import RecordId

__all__ = ["Departing", "Departure", "Traveller"]

log = logging.getLogger("pyrula.kafka")

# Hands a run that stands still over to the store.
Departure: TypeAlias = Callable[[Leaving], Awaitable[HandedOver]]


class Traveller(Protocol):
    """Whose run it is."""

    def leave(self) -> None:
        """The store has it from now on."""

    def cancel(self, record: RawRecord) -> None:
        """It stays, and was to be cancelled meanwhile."""

    def parked(self, run: RecordRun) -> None:
        """It left while it rested: this body isn't needed any more."""

    def stays(self) -> None:
        """It goes on resting here."""


class Departing:
    """One run's departures, one after the other. Without a `departure` it stays here."""

    def __init__(
        self,
        partition: Partition,
        run_id: RecordId,
        store: AttendingStore,
        verdict: Verdict,
        changes: Changes,
        inbox: RunInbox,
        traveller: Traveller,
        departure: Departure | None,
    ) -> None:
        self._partition = partition
        self._run_id = run_id
        self._store = store
        self._verdict = verdict
        self._changes = changes
        self._inbox = inbox
        self._traveller = traveller
        self._departure = departure
        self._task: asyncio.Task[None] | None = None

    @property
    def possible(self) -> bool:
        """Whether it may ever leave."""
        return self._departure is not None

    @property
    def under_way(self) -> bool:
        """Whether it is about to leave, or being handed over."""
        return self._task is not None

    def at_rest(self, run: RecordRun, waits: tuple[Wait, ...], undisturbed: Callable[[], bool]) -> None:
        """To the store, which keeps it while it waits, unless something wakes it; else it goes on resting here."""

        def then(answer: HandedOver | None) -> None:
            answer = answer or HandedOver(False)
            self._inbox.put(answer.messages)
            if self._partition.closed:
                return
            if answer.taken:
                self._traveller.leave()
                self._traveller.parked(run)
            else:
                self._traveller.stays()

        self._begin(lambda: self._as_it_stands(run, waits) if undisturbed() else None, then)

    def between_rounds(self, run: RecordRun, delay: float) -> None:
        """It failed, and its next round is due in so many seconds."""
        due = self._store.now() + delay
        waits = (Wait("retry", "", due),)
        self._changes.show(RunStatus.RETRYING, waits)
        self._changes.touch()
        told = False

        def leaving() -> Leaving | None:
            nonlocal told
            told = self._inbox.wakes(waits)
            return None if told or self._partition.closed else self._as_it_stands(run, waits)

        def then(answer: HandedOver | None) -> None:
            if answer is None:
                return
            if answer.taken:
                self._traveller.leave()
                self._verdict.left(run)
            elif not self._partition.closed:
                # one that was told something needn't wait any longer
                self._verdict.later(run, 0.0 if told else max(0.0, due - self._store.now()))

        self._begin(leaving, then)

    def blocked(self, leaving: Leaving, then: Callable[[bool], None]) -> None:
        """It failed once and for all, and its lane is to wait. `then` is told whether the store has it; if it was to be
        cancelled meanwhile, it is."""

        def answered(answer: HandedOver | None) -> None:
            answer = answer or HandedOver(False)
            self._inbox.put(answer.messages)
            if answer.taken:
                self._traveller.leave()
            if self._inbox.cancels() and not (answer.taken or self._partition.closed):
                self._traveller.cancel(leaving.record)
            else:
                then(answer.taken)

        self._begin(lambda: None if self._partition.closed else leaving, answered)

    def _as_it_stands(self, run: RecordRun, waits: tuple[Wait, ...]) -> Leaving:
        return Leaving(run.origin, run.attempt, self._inbox.given, run.journal, waits)

    def _begin(self, leaving: Callable[[], Leaving | None], then: Callable[[HandedOver | None], None]) -> None:
        """Hand it over as `leaving` says when the time has come, None if it had better stay; then call `then`, with
        None if the partition is about to be dropped."""
        loop = asyncio.get_running_loop()
        self._task = Context().run(loop.create_task, self._leave(leaving, then), name=f"hand over {self._run_id}")

    async def _leave(self, leaving: Callable[[], Leaving | None], then: Callable[[HandedOver | None], None]) -> None:
        answer: HandedOver | None = HandedOver(False)
        try:
            if (flush := self._changes.flush) is not None and not flush.done:
                await flush.wait()
            asked = leaving()
            if asked is not None and self._departure is not None:
                answer = await self._departure(asked)
        except LeaseLost:
            answer = None
        except StoreError as error:
            log.warning("run %s stays here: %s", self._run_id, error)
        finally:
            self._task = None
        then(answer)

    def let_go(self) -> None:
        """The partition was let go."""
        if self._task is not None:
            self._task.cancel()
