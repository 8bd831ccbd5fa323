"""One backfill in one worker: it takes partitions under leases, has them run, saves what is done, and lets go.

Every save is a heartbeat of its lease. A partition whose saves stand still for a lease, while this worker itself
reached the store, belongs to a dead one and is taken from it. Nothing starts here later than a lease (less one
interval) after the last saves that got through, since others may have taken the partitions by then.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

from pyrula.kafka.backfill.courtesy import Courtesy
from pyrula.kafka.backfill.definition import Job
from pyrula.kafka.backfill.household import Household
from pyrula.kafka.backfill.marked import MarkedOutputs
from pyrula.kafka.backfill.pacing import Pacer
from pyrula.kafka.backfill.part import SETTLE_SECONDS, Part, Surroundings
from pyrula.kafka.backfill.reader import find_ranges
from pyrula.kafka.backfill.sharing import Sharing
from pyrula.kafka.client import BrokerError
from pyrula.kafka.endings import RunEndings
from pyrula.kafka.events import BindingHealth, BindingStats, Observer, RecordEvent, tell
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.outputs import Producing
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.standing import Standing
from pyrula.kafka.stores import WorkerStore
from pyrula.workflows.backfills import Pace, Progress
from pyrula.workflows.clock import Clock
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.errors import ConfigurationError, LeaseLost, StoreError
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.store.backfills import (
    BackfillNotFoundError,
    BackfillStatus,
    Hold,
    StoredBackfill,
)
from pyrula.workflows.store.leases import Watch

__all__ = ["RunningBackfill"]

log = logging.getLogger("pyrula.kafka")

# Partitions of one backfill at once in one worker: enough to fill its slots, and some are left for the other workers.
MOST_PARTS = 4
# Between two takes, so that workers that begin together share.
TAKE_SECONDS = 0.2
RETRY_SECONDS = 1.0


class RunningBackfill:
    """A backfill that this worker takes part in, from `run`'s start to its end; `beside` live records or not."""

    def __init__(
        self,
        job: Job,
        worker: str,
        *,
        store: WorkerStore,
        commits: GroupCommit,
        outputs: Producing,
        options: KafkaOptions,
        household: Household,
        clock: Clock,
        observer: Observer | None,
        beside: bool,
    ) -> None:
        self.job = job
        self._worker = worker
        self._store = store
        self._commits = commits
        self._options = options
        self._observer = observer
        self._parts: dict[int, Part] = {}
        self._endings = RunEndings(MarkedOutputs(outputs, job.id), lambda: self._told)
        self._pool = Replayers(job.binding, self._endings, clock)
        self._pool.on_completed = self._endings.completed_at_once
        self._endings.pool = self._pool
        self._household = household
        self._pacer = Pacer(job.pace.rate)
        self._courtesy = Courtesy() if beside else None
        self._interval = min(options.commit_interval, options.heartbeat_interval)
        self._changed = asyncio.Event()
        self._stopping = False
        self._around: Surroundings | None = None
        self._watch: Watch[tuple[int, Hold]] = Watch(options.session_timeout)
        self._lease = options.session_timeout
        self._next_save = 0.0
        self._trouble = ""
        self._leaving: tuple[Part, float] | None = None
        self._sharing = Sharing(worker)

    def stop(self) -> None:
        """Let go of what this worker has; `run` returns within drain_timeout and a little."""
        self._stopping = True
        self._changed.set()

    def stats(self) -> BindingStats:
        """Counters and gauges of what it does here, as of now."""
        stats, parts = self._pool.stats, list(self._parts.values())
        stats.in_flight = self._pool.in_flight
        stats.buffered = sum(part.partition.buffer.records for part in parts if part.partition is not None)
        stats.partitions = len(parts)
        stats.lag = sum(part.left for part in parts)
        return stats

    def health(self) -> BindingHealth:
        """What of it waits for something to pass, or for a person. Live records don't suffer from that."""
        reasons = [self._trouble] if self._trouble else []
        if self._pool.halted:
            reasons.append(self._pool.halted)
        for part in self._parts.values():
            if part.partition is not None:
                reasons += list(part.partition.stopped.values())[:3]
        return BindingHealth(self.job.binding.name, "degraded" if reasons else "healthy", tuple(reasons))

    async def run(self) -> None:
        """Until the backfill is over, or `stop`. What may pass by itself is tried again, whatever it takes."""
        self._household.admit(self.job.binding, self._pool, self._endings)
        if self._courtesy is not None:
            self._courtesy.start()
        try:
            while not self._stopping:
                try:
                    if not await self._work():
                        return
                    self._trouble = ""
                except BackfillNotFoundError as error:
                    log.warning("%s any more: it was forgotten, or the store was emptied", error)
                    return
                except (BrokerError, StoreError) as error:
                    self._trouble = f"backfill {self.job.id}: {error}; it is tried again"
                    log.warning("%s", self._trouble)
                    self._watch.forget()
                    await self._wait(RETRY_SECONDS)
        finally:
            try:
                await self._let_go(list(self._parts.values()))
            finally:
                self._endings.close()
                await self._pool.stop()
                self._household.dismiss(self.job.binding, self._pool)
                if self._courtesy is not None:
                    self._courtesy.stop()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _work(self) -> bool:
        """One look at how it stands, and what follows from it. False when it is over."""
        stored = await self._store.read_backfill(self.job.id)
        if stored.status is BackfillStatus.REQUESTED:
            await self._plan()
            return True
        if stored.status is not BackfillStatus.RUNNING:
            await self._let_go(list(self._parts.values()))
            if stored.status is BackfillStatus.PAUSED:
                await self._wait(self._interval)
                return True
            return False
        self._read_plan(stored)
        await self._give_up_on([part for part in self._parts.values() if part.trouble is not None])
        await self._share(stored)
        took = await self._take_one(stored)
        self._share_rate(stored)
        await self._wait(TAKE_SECONDS if took else max(0.01, self._next_save - monotonic()))
        if monotonic() >= self._next_save or any(part.ripe for part in self._parts.values()):
            await self._save()
        return True

    async def _plan(self) -> None:
        """Find the ranges; the first worker that does so counts."""
        job = self.job
        try:
            ranges = await find_ranges(self._options, job.request, self._now())
        except ConfigurationError as error:
            log.error("backfill %s can't be run: %s", job.id, error)
            await self._store.refuse_backfill(job.id, str(error))
            return
        told = {
            "lease": self._options.session_timeout,
            "dead_letter_topic": job.binding.dead_letter_topic_of(job.request.topic),
            "output": job.binding.output,
        }
        parts = {number: Progress.over(*ends).encode() for number, ends in ranges.items()}
        if await self._store.plan_backfill(job.id, dumps([1, told]), parts):
            total = sum(end - start for start, end in ranges.values())
            log.info("backfill %s begins: %d partitions, %d offsets", job.id, len(parts), total)

    def _now(self) -> float:
        return self._store.now()

    def _read_plan(self, stored: StoredBackfill) -> None:
        pace = Pace.decode(stored.pace)
        self._pool.resize(pace.max_concurrency)
        if self._around is not None:
            return
        self._lease = self._sharing.lease = float(loads(stored.plan)[1]["lease"])
        self._interval = min(self._interval, self._lease / 6)
        self._watch = Watch(self._lease)
        # Later than this nothing starts: one interval before others may take the parts of whoever is silent.
        standing = self._pool.standing = Standing(self._lease - self._interval)
        self._around = Surroundings(
            job=self.job,
            pool=self._pool,
            standing=standing,
            store=self._store,
            commits=self._commits,
            options=self._options,
            pacer=self._pacer,
            courtesy=self._courtesy,
            book=self._household.book,
            on_change=self._changed.set,
        )

    def _share_rate(self, stored: StoredBackfill) -> None:
        """This worker's part of the rate: as many shares as it has partitions."""
        rate = Pace.decode(stored.pace).rate
        held = sum(1 for part in stored.parts if part.hold is not None and part.number not in self._parts)
        mine = len(self._parts)
        self._pacer.rate = rate if rate is None or not mine else rate * mine / (mine + held)

    async def _share(self, stored: StoredBackfill) -> None:
        """Let one partition go, as soon as what runs of it has ended, if a worker that has fewer asks for it."""
        now = monotonic()
        if self._leaving is None:
            number = self._sharing.to_give(stored, self._parts, now)
            if number is None:
                return
            self._parts[number].quiesce()
            log.info("backfill %s: partition %d is left to %s", self.job.id, number, stored.wish)
            self._leaving = self._parts[number], now + self._options.drain_timeout
        part, deadline = self._leaving
        if self._parts.get(part.number) is not part:
            self._leaving = None
        elif not part.busy or now > deadline:
            self._leaving = None
            self._sharing.on_given(part.number, now)
            part.cut()
            await self._let_go([part])

    async def _take_one(self, stored: StoredBackfill) -> bool:
        """Take a partition that nobody has, or a dead worker's."""
        others = [part for part in stored.parts if part.state == "open" and part.number not in self._parts]
        silent = self._watch.observe(
            ((part.number, part.hold) for part in others if part.hold is not None), monotonic()
        )
        enough = len(self._parts) >= min(MOST_PARTS, self.job.pace.max_concurrency)
        if enough or self._stopping or not self._sharing.may_take(stored, monotonic()):
            return False
        free = [part.number for part in others if part.hold is None or part.hold.worker == self._worker]
        if free:
            return await self._take(random.choice(free), None)
        if not silent:
            number = self._sharing.to_ask_for(stored, monotonic())
            return number is not None and await self._take(number, None)
        for number, hold in silent:
            log.warning("backfill %s: worker %s is dead; partition %d is taken over", self.job.id, hold.worker, number)
            return await self._take(number, hold)
        return False

    async def _take(self, number: int, replaces: Hold | None) -> bool:
        around = self._around
        assert around is not None
        sent = monotonic()
        taken = await self._store.take_part(self.job.id, number, self._worker, replaces=replaces)
        if taken is None:
            return False
        if not self._parts:
            around.standing.proved(sent)
            self._next_save = sent + self._interval
        part = self._parts[number] = Part(around, number, self._worker, taken)
        part.begin()
        return True

    async def _save(self) -> None:
        """Save every partition: its progress, its heartbeat, and its end if it has come to it."""
        sent = monotonic()
        self._next_save = sent + self._interval
        parts = list(self._parts.values())
        answers = await asyncio.gather(*(part.save() for part in parts), return_exceptions=True)
        troubles: list[BaseException] = []
        over: list[tuple[Part, bool]] = []
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, LeaseLost) or part.lost:
                log.warning("backfill %s: partition %d was taken over by another worker", self.job.id, part.number)
                part.lost = True
                over.append((part, False))
            elif isinstance(answer, BaseException):
                troubles.append(answer)
            elif answer[1] != "open":
                over.append((part, answer[1] == "done"))
        await self._close(over)
        if troubles:
            raise troubles[0]
        if self._around is not None:
            self._around.standing.proved(sent)

    async def _close(self, parts: Iterable[tuple[Part, bool]]) -> None:
        closing = []
        for part, done in parts:
            del self._parts[part.number]
            closing.append(part.close(over=done))
        await asyncio.gather(*closing)

    async def _give_up_on(self, parts: list[Part]) -> None:
        """What couldn't be opened here may be elsewhere, or later."""
        await self._let_go(parts)
        if parts:
            self._sharing.on_failed(monotonic())
        if parts and (trouble := parts[0].trouble) is not None:
            raise trouble

    async def _let_go(self, parts: list[Part]) -> None:
        """Drain, cut what is left, save, and let others have the partitions."""
        if not parts:
            return
        for part in parts:
            part.quiesce()
        log.info("backfill %s: %d partitions are let go when what runs has ended", self.job.id, len(parts))
        deadline = monotonic() + self._options.drain_timeout
        while any(part.busy and not part.lost for part in parts) and monotonic() < deadline:
            if monotonic() >= self._next_save:
                await self._beat([*parts, *(one for one in self._parts.values() if one not in parts and not one.ripe)])
            await asyncio.sleep(0.02)
        for part in parts:
            part.cut()
        await _bounded([flushed for part in parts if not part.lost and (flushed := part.flushed()) is not None])
        await _bounded([part.save(release=True) for part in parts if not part.lost])
        await self._close([(part, False) for part in parts if part.number in self._parts])

    async def _beat(self, parts: list[Part]) -> None:
        """The lease goes on while bodies are waited for."""
        self._next_save = monotonic() + self._interval
        for answer, part in zip(
            await asyncio.gather(*(part.save() for part in parts), return_exceptions=True), parts, strict=True
        ):
            part.lost = part.lost or isinstance(answer, LeaseLost)

    def _told(self, event: RecordEvent) -> None:
        part = self._parts.get(event.partition)
        if part is not None:
            part.told(event)
        if self._observer is not None:
            tell(self._observer, event)


async def _bounded(work: list[Awaitable[Any]]) -> None:
    """What can't be done in time is done by whoever has the partitions next."""
    tasks = [asyncio.ensure_future(one) for one in work]
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
    for task in late:
        task.cancel()
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, Exception) and not isinstance(answer, LeaseLost):
            log.warning("a backfill's partition was let go without a last word to the store: %s", answer)
