"""Runs that were handed over or redriven, in this process: claimed for its bindings, within their max_concurrency, and
brought to their end.

Rules: a run that is executed here takes one of its binding's slots, so the pool that works on records has one less.
Where records take all of them one is claimed nevertheless, and begins with the next slot that gets free, or records
alone could take all for ever; if that lasts, it is given back for others to claim, and a slot is kept. One claim is on
its way at a time; wake-ups, timers and the end of a second are reasons to look.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Final

from pyrula.kafka.answering import answered
from pyrula.kafka.events import EventKind, Observer, RecordEvent, tell
from pyrula.kafka.handed_run import HandedRun
from pyrula.kafka.held_records import HeldRecords
from pyrula.kafka.outputs import Outputs
from pyrula.kafka.record import served_name
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.stored_record import StoredRecord
from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import LeaseLost, StoreError, StoreUnavailable
from pyrula.workflows.execution import LetGo, Output
from pyrula.workflows.store.messages import Wait, earliest
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.runs import ClaimedRun, Query, RunStore
from pyrula.workflows.worker.beats import Heartbeat
from pyrula.workflows.worker.claims import woken_within
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.questions import answer

__all__ = ["HandedOverRuns"]

log = logging.getLogger("pyrula.kafka")

POLL_SECONDS: Final = 1.0
QUERY_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 5.0
SLOT_SECONDS: Final = 1.0


class HandedOverRuns:
    """All that this process executes of what was handed over."""

    sends = True

    def __init__(self, store: RunStore, clock: Clock, observer: Callable[[], Observer | None]) -> None:
        self.store = store
        self.clock = clock
        self.park_after = 1.0
        self.id = f"kafka-{os.getpid()}-{secrets.token_hex(6)}"
        self.held: dict[str, HandedRun] = {}
        self._observer = observer
        self._pools: dict[str, tuple[Replayers, Outputs]] = {}
        self._tasks: dict[asyncio.Task[None], Replayers] = {}
        self.held_records = HeldRecords(store, lambda: dict.fromkeys(pool.binding for pool, _ in self._pools.values()))
        self._kept: set[Replayers] = set()
        self._wake = asyncio.Event()
        self._due: float | None = None
        self._stopping = False
        self._working: list[asyncio.Task[Any]] = []
        self._listening: list[Any] = []
        self._answering: set[asyncio.Task[None]] = set()

    def serve(self, pool: Replayers, outputs: Outputs) -> None:
        """Execute runs of this pool's binding, too."""
        binding = pool.binding
        for topic in binding.topics:
            self._pools[served_name(binding.cluster, binding.group, topic)] = pool, outputs

    def start(self) -> None:
        """Claim from now on."""
        loop, options = asyncio.get_running_loop(), WorkerOptions()
        heartbeat = Heartbeat(self.store, self.id, self, options, self.clock, self._wake.set)
        self._working = [
            loop.create_task(work, name=name)
            for work, name in (
                (self._claim_regularly(), "claim handed-over runs"),
                (self.held_records.run(), "look for held records"),
                (heartbeat.run(), "heartbeat of handed-over runs"),
                (heartbeat.watch_over(), "watch over the leases of handed-over runs"),
            )
        ]
        for task in self._working:
            task.add_done_callback(_ended)
        self._listening = [self.store.on_ready(self._wake.set), self.store.on_inbox(self.id, self._on_message)]

    async def stop(self, seconds: float) -> None:
        """Let the bodies end, so long; then they are cut, and go on elsewhere."""
        self._stopping = True
        self.park_after = 0.0
        self._wake.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            if late:
                self.cut()
                await asyncio.wait(late, timeout=GRACE_SECONDS)
        for subscription in self._listening:
            subscription.close()
        for task in (*self._working, *self._tasks, *self._answering):
            task.cancel()
        await asyncio.gather(*self._working, *self._tasks, *self._answering, return_exceptions=True)
        if self._working:
            try:
                async with asyncio.timeout(GRACE_SECONDS):
                    await self.store.leave(self.id)
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("the store can't be told that handed-over runs are let go: %s", error)

    def cut(self) -> None:
        """End all bodies promptly, uncharged."""
        for held in list(self.held.values()):
            if held.execution is not None:
                held.execution.cut()

    # claiming

    async def _claim_regularly(self) -> None:
        failing = False
        while not self._stopping:
            self._wake.clear()
            try:
                await self._claim()
                await self._take_questions()
                failing = False
            except StoreError as error:
                if not failing:
                    log.warning("handed-over runs can't be claimed: %s", error)
                failing = True
            await woken_within(self._wake, self._pause(failing))

    def _pause(self, failing: bool) -> float:
        if self._due is None or failing:
            return POLL_SECONDS
        return min(POLL_SECONDS, max(0.0, self._due - self.store.now()) + 0.002)

    async def _claim(self) -> None:
        self._due = None
        for pool in list(dict.fromkeys(pool for pool, _ in self._pools.values())):
            room = self._room(pool)
            if room <= 0 or self._stopping or any(held.claimed.alone for held in self.held.values()):
                continue
            served = [(name, pool.binding.workflow.version) for name, (one, _) in self._pools.items() if one is pool]
            sent = self.clock.monotonic()
            claims = await self.store.claim(self.id, served, room)
            if claims.next_due is not None and (self._due is None or claims.next_due < self._due):
                self._due = claims.next_due
            for claimed in claims.runs:
                self._begin(claimed, sent)
            if pool in self._kept:
                self._kept.discard(pool)
                self._fit(pool)

    def _room(self, pool: Replayers) -> int:
        """How many more of the binding's runs may be claimed here; the first of them always, unless a slot is kept."""
        mine = self._running(pool)
        free = pool.binding.max_concurrency - mine - pool.in_flight
        return free if mine or pool in self._kept else max(free, 1)

    def _fit(self, pool: Replayers) -> None:
        """Records get the slots that these runs leave."""
        taken = max(self._running(pool), pool in self._kept)
        pool.resize(max(0, pool.binding.max_concurrency - taken))

    def _running(self, pool: Replayers) -> int:
        return sum(one is pool for one in self._tasks.values())

    def _begin(self, claimed: ClaimedRun, sent: float) -> None:
        record = RecordId.parse(claimed.lease.run_id)
        stored = StoredRecord.decode(claimed.params)
        assert record is not None
        pool, outputs = self._pools[f"@{record.address.rpartition('-')[0]}"]
        held = HandedRun(claimed, self, pool.binding, outputs, self._told)
        if self.held_records.count(pool.binding):
            self.held_records.look_soon()
        former = self.held.get(claimed.lease.run_id)
        self.held[claimed.lease.run_id] = held
        living = self._live(held, former, pool, sent)
        task = asyncio.get_running_loop().create_task(living, name=f"run {held.lease.run_id}")
        self._tasks[task] = pool
        self._fit(pool)
        log.debug("run %s of offset %d goes on", claimed.lease.run_id, stored.offset)
        task.add_done_callback(self._gone)

    def _gone(self, task: "asyncio.Task[None]") -> None:
        pool = self._tasks.pop(task)
        self._fit(pool)
        if not task.cancelled() and task.exception() is not None:
            log.error("a handed-over run was dropped", exc_info=task.exception())
        self._wake.set()

    async def _gets_slot(self, pool: Replayers, held: HandedRun) -> bool:
        """Whether records have let go of the slot that was taken from them."""
        until = monotonic() + SLOT_SECONDS
        while pool.in_flight + self._running(pool) > pool.binding.max_concurrency:
            if self._stopping or held.lost is not None or monotonic() > until:
                return False
            await asyncio.sleep(SLOT_SECONDS / 50)
        return True

    async def _live(self, held: HandedRun, former: HandedRun | None, pool: Replayers, sent: float) -> None:
        if former is not None:
            former.lose(LeaseLost(f"run {held.lease.run_id} was claimed again, by this same process"))
        try:
            while held.claimed.alone and len(self.held) > 1 and not self._stopping and held.lost is None:
                await woken_within(self._wake, POLL_SECONDS)
            if await self._gets_slot(pool, held):
                await held.make_sure(sent, WorkerOptions().patience)
                await held.live()
            else:
                await held.release()
                self._kept.add(pool)
        except LeaseLost as error:
            log.info("run %s is dropped: %s", held.lease.run_id, error)
        finally:
            if self.held.get(held.lease.run_id) is held:
                del self.held[held.lease.run_id]
            await held.close_down()

    def _on_message(self, run_id: str) -> None:
        found: Iterable[HandedRun] = self.held.values()
        if run_id:
            found = [self.held[run_id]] if run_id in self.held else []
        for held in list(found):
            held.look_for_messages()

    # queries

    async def _take_questions(self) -> None:
        served = [(name, pool.binding.workflow.version) for name, (pool, _) in self._pools.items()]
        if not served or len(self._answering) >= 4:
            return
        for query in await self.store.questions(self.id, served, 4):
            task = asyncio.get_running_loop().create_task(
                answer(self.store, query, self._ask, QUERY_SECONDS), name=f"query {query.name}"
            )
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _ask(self, query: Query) -> bytes:
        held = self.held.get(query.run_id)
        if held is not None and held.execution is not None:
            try:
                return await held.execution.query(query.name, query.payload)
            except LetGo:
                pass  # then its journal tells
        record, history = RecordId.parse(query.run_id), await self.store.history(query.run_id)
        assert record is not None
        pool, _ = self._pools[f"@{record.address.rpartition('-')[0]}"]
        return await answered(pool.binding, history, query, self.clock)

    # what held runs tell

    def on_event(self, run_id: str, workflow: str, type: str, at: float, data: dict[str, Any]) -> None:  # noqa: A002
        """Events are in the store; what a worker's observer hears of a record is told by `_told`."""

    def on_outputs(self, run_id: str, outputs: Sequence[Output]) -> None:
        """`HandedRun` produces them."""

    def on_parked(self, run_id: str, waits: Sequence[Wait]) -> None:
        """A run waits in the store again."""
        deadline = earliest(waits)
        if deadline is not None and (self._due is None or deadline < self._due):
            self._due = deadline
            self._wake.set()

    def _told(self, kind: EventKind, record: StoredRecord, run_id: str, attempt: int, text: str | None) -> None:
        found = RecordId.parse(run_id)
        assert found is not None
        pool, _ = self._pools[f"@{found.address.rpartition('-')[0]}"]
        if kind == "retrying":
            pool.stats.retried += 1
        elif hasattr(pool.stats, kind):
            setattr(pool.stats, kind, getattr(pool.stats, kind) + 1)
        if kind == "blocked":
            pool.stats.dead_lettered += 1
        if kind in ("stopped", "dead_lettered", "blocked", "skipped"):
            pool.stats.failed += 1
        if kind in ("stopped", "paused", "blocked"):
            self.held_records.look_soon()
        if kind in ("stopped", "dead_lettered", "blocked"):
            log.warning("%s[%d] offset %d: %s: %s", record.topic, record.partition, record.offset, kind, text)
        observer = self._observer()
        if observer is not None:
            place = record.topic, record.partition, record.offset, record.key
            tell(observer, RecordEvent(kind, pool.binding.name, *place, run_id, attempt, text))


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("handed-over runs are not seen to any more: %s ended", task.get_name(), exc_info=error)
