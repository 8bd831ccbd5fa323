"""One partition of a backfill while this worker has its lease: opened, run, saved, let go.

A part is a `Partition` as a group's is, with the same lanes, journal and replayers; what differs is that its records
are read here, without a group, and that what is done goes to the store with `save` instead of to Kafka. Counts, done
offsets and position are taken in one turn of the loop, so that they are always of the same records. A part doesn't know
when to save or to let go: its backfill in this worker says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from aiokafka import TopicPartition

from pyrula.kafka.address_book import AddressBook
from pyrula.kafka.backfill.courtesy import Courtesy
from pyrula.kafka.backfill.definition import Job, group_of
from pyrula.kafka.backfill.pacing import Pacer
from pyrula.kafka.backfill.reading import RangeReading
from pyrula.kafka.backfill.redrive import journal_in
from pyrula.kafka.buffer import Bounds
from pyrula.kafka.client import BrokerError
from pyrula.kafka.deaths import read_marks
from pyrula.kafka.events import RecordEvent
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Partition
from pyrula.kafka.record import RawRecord, record_identity
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.standing import Standing
from pyrula.kafka.stores import WorkerStore
from pyrula.workflows.backfills import Progress
from pyrula.workflows.errors import LeaseLost, StaleToken, StoreError
from pyrula.workflows.group_commit import GroupCommit, SourceQueue
from pyrula.workflows.store.backfills import BackfillStatus, Hold, PartSave, PartState, Taken
from pyrula.workflows.store.port import Claim, Token

__all__ = ["Part", "Surroundings"]

log = logging.getLogger("pyrula.kafka")

# In memory beside what the live partitions have.
BUFFER_RECORDS, BUFFER_BYTES = 2_000, 8 * 1024 * 1024
# A cut body ends at once, unless it eats the cut.
SETTLE_SECONDS = 3.5

_COUNTED = {"completed": "completed", "dead_lettered": "failed", "skipped": "skipped", "cancelled": "skipped"}
_HELD = ("stopped", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts of one backfill in one worker share. `on_change` is called when one is to be looked at."""

    job: Job
    pool: Replayers
    standing: Standing
    store: WorkerStore
    commits: GroupCommit
    options: KafkaOptions
    pacer: Pacer
    courtesy: Courtesy | None
    book: AddressBook
    on_change: Callable[[], None]


class Part:
    """A partition from the moment its lease was taken until it is let go."""

    def __init__(self, around: Surroundings, number: int, worker: str, taken: Taken) -> None:
        job = around.job
        self.number = number
        self.tp = TopicPartition(job.request.topic, number)
        self.progress = Progress.decode(taken.progress)
        self.partition: Partition | None = None
        self.lost = False
        # Why it couldn't be opened, though it may be later or elsewhere.
        self.trouble: BrokerError | StoreError | None = None
        self._around = around
        self._hold = Hold(worker, taken.token, 0)
        self._source = record_identity(job.request.cluster, group_of(job.id), *self.tp)
        self._token: Token | None = None
        self._reading = RangeReading(
            job, self.tp, self.progress, around.options, pacer=around.pacer, courtesy=around.courtesy
        )
        self._working: asyncio.Task[None] | None = None
        self._retrying: set[int] = set()
        self._adopted: SourceQueue | None = None

    def begin(self) -> None:
        """Open and read on, in a task: the lease is kept up meanwhile, however long a broker takes."""
        if not self._reading.ended:
            self._working = asyncio.get_running_loop().create_task(self._work(), name=f"backfill {self.tp}")

    async def _work(self) -> None:
        try:
            partition = await self._open()
        except (BrokerError, StoreError) as error:
            self.trouble = error
        else:
            if partition is not None:
                self._around.pool.add(partition)
                await self._reading.run(partition, self._hand_over)
        self._around.on_change()

    async def _open(self) -> Partition | None:
        """Fence the journal, look at the log; None if nothing of it is to be run. BrokerError, StoreError."""
        around, progress = self._around, self.progress
        claim = await self._claim()
        self._token = claim.token
        await self._reading.start()
        if self._reading.ended:
            return None
        marks, rows = read_marks(claim)
        registered = await around.book.register(
            around.job.binding, self.tp.topic, self.number, self._source, claim.token, progress.position, "nothing"
        )
        partition = self.partition = Partition(
            self.tp,
            around.job.binding,
            shard=around.store.shard_of(self._source),
            token=claim.token,
            source=self._source,
            tracker=OffsetTracker(progress.position, progress.done),
            rows=rows,
            marks=marks,
            known=self._reading.witness,
            commits=around.commits,
            bounds=_bounds(around.options),
            fetch=self._fetch,
            fenced=self._fenced,
            standing=around.standing,
            triggers=around.store,
        )
        if around.job.request.failed_of is not None:
            self._adopted = around.commits.lane(self._source, claim.token)
        # Nobody serves the backfill's binding when it is over, so its runs end here, and are waited for.
        around.book.open(partition, registered, lambda: progress.end, hands_over=False)
        return partition

    async def _claim(self) -> Claim:
        store, token = self._around.store, self._hold.token
        try:
            return await store.claim_source(self._source, token)
        except StaleToken as stale:
            # A backfill of this id was forgotten and begun anew; the lease says that the journal is ours.
            return await store.claim_source(self._source, token, replaces=stale.stored)

    def _fetch(self, on: bool) -> None:
        if on:
            self._reading.room.set()
        else:
            self._reading.room.clear()

    def _fenced(self, _: Partition) -> None:
        self.lost = True
        self._around.on_change()

    def _hand_over(self, partition: Partition, records: list[RawRecord]) -> None:
        if self._adopted is not None:
            self._adopt(partition, records, self._adopted)
        partition.receive(records)
        self._around.pool.offer(partition)

    def _adopt(self, partition: Partition, letters: list[RawRecord], queue: SourceQueue) -> None:
        """Dead letters go on from the journals in them, unless they have begun here before."""
        for letter in letters:
            if letter.offset in partition.journal or partition.tracker.is_done(letter.offset):
                continue
            rows = journal_in(letter)
            if rows:
                partition.journal[letter.offset] = rows
                partition.journaled = True
                for index, data in rows:
                    queue.add(letter.offset, index, data)

    def told(self, event: RecordEvent) -> None:
        """Something became of a record; in the same turn as its completion, so that both are saved together."""
        partition = self.partition
        if partition is None or partition.closed:
            return
        if event.kind == "retrying":
            self._retrying.add(event.offset)
            return
        self._retrying.discard(event.offset)
        counted = _COUNTED.get(event.kind)
        if counted is not None:
            setattr(self.progress, counted, getattr(self.progress, counted) + 1)
        if event.kind in _HELD or (self._reading.read_all and not partition.tracker.unfinished):
            self._around.on_change()

    @property
    def left(self) -> int:
        """Offsets from the first that isn't done to the end of the range."""
        position = self.progress.position if self.partition is None else self.partition.tracker.committable()
        return max(0, self.progress.end - position)

    @property
    def ripe(self) -> bool:
        """It has come to its end, which is yet to be saved, or to nothing."""
        return self.lost or self.trouble is not None or self._state()[0] != "open"

    def _state(self) -> tuple[PartState, str]:
        """Whether anything is left to do that time alone will bring."""
        partition, reading = self.partition, self._reading
        if partition is None:
            return ("stuck", reading.problem) if reading.problem else ("done" if reading.read_all else "open", "")
        if reading.read_all and not partition.tracker.unfinished:
            return "done", ""
        if partition.in_flight or partition.running:
            return "open", ""
        if self._around.pool.halted:
            return "stuck", self._around.pool.halted
        if partition.lanes.ready or self._retrying:
            return "open", ""
        if reading.problem:
            return "stuck", reading.problem
        if partition.stopped and (reading.read_all or not reading.room.is_set()):
            return "stuck", partition.stopped[min(partition.stopped)]
        return "open", ""

    def _snapshot(self) -> bytes:
        """Progress as of now; nothing is awaited between its parts."""
        partition, progress = self.partition, self.progress
        if partition is not None:
            tracker = partition.tracker
            witness = partition.log_witness.witness()
            progress.position = min(tracker.committable(), progress.end)
            progress.done = tuple(tracker.done_above())
            progress.witness = "" if witness is None else bytes(witness).hex()
        return progress.encode()

    async def save(self, *, release: bool = False) -> tuple[BackfillStatus, PartState]:
        """Tell the store how far it is. The backfill's status, and whether the part has ended with it. LeaseLost."""
        state, problem = self._state()
        self._hold = self._hold._replace(beat=self._hold.beat + 1)
        data = self._snapshot()
        position, around = self.progress.position, self._around
        saved = PartSave(data, state, problem, release)
        status = await around.store.save_part(around.job.id, self.number, self._hold, saved)
        if self.partition is not None:
            await self._prune(self.partition, position)
        return status, state

    async def _prune(self, partition: Partition, below: int) -> None:
        """Rows of what is saved as done can go."""
        if below <= partition.pruned_below:
            return
        if partition.journaled:
            try:
                await self._around.store.prune_source(self._source, partition.token, below, None)
            except LeaseLost:
                self.lost = True
                return
            except StoreError as error:
                log.warning("backfill %s: %s[%d]: journal not pruned: %s", self._around.job.id, *self.tp, error)
                return
        partition.pruned(below)
        if partition.addresses is not None:
            try:
                await partition.addresses.passed(below)
            except LeaseLost:
                self.lost = True
            except StoreError as error:
                log.warning("backfill %s: %s[%d]: its board is not cleared: %s", self._around.job.id, *self.tp, error)

    def quiesce(self) -> None:
        """Start nothing more; what runs goes on."""
        if self._working is not None:
            self._working.cancel()
        if self.partition is not None:
            self._around.pool.remove(self.partition)
            self.partition.lanes.ready.clear()

    @property
    def busy(self) -> bool:
        """Bodies of it have begun and not ended."""
        return self.partition is not None and self.partition.in_flight > self.partition.waiting

    def cut(self) -> None:
        """End what still runs, uncharged: it is replayed wherever the part goes. Nothing completes after this."""
        if self.partition is not None:
            self.partition.closed = True
            for run in list(self.partition.running.values()):
                run.cut()

    async def close(self, *, over: bool = False) -> None:
        """Let go of all there is in this process, the journal's claim too. `over`: the journal isn't needed again."""
        self.quiesce()
        self.cut()
        partition = self.partition
        if self._working is not None:
            await asyncio.wait([self._working])
        if partition is not None:
            self._around.standing.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await partition.emptied()
            partition.close()
        if self._adopted is not None:
            self._adopted.close()
        await self._reading.stop()
        if self._token is not None and not self.lost:
            await self._release(self._token, over)

    async def _release(self, token: Token, over: bool) -> None:
        store = self._around.store
        try:
            if over:
                await store.lower_source(self._source, token, self.progress.end, forget=True)
            await store.release_source(self._source, token)
        except LeaseLost:
            pass
        except StoreError as error:
            log.warning("backfill %s: %s[%d] could not be released: %s", self._around.job.id, *self.tp, error)

    def flushed(self) -> Awaitable[None] | None:
        """Done when every row so far is durable; None if there is none."""
        partition = self.partition
        return partition.flushed() if partition is not None and partition.journaled else None


def _bounds(options: KafkaOptions) -> Bounds:
    return Bounds(
        min(options.buffer_records, BUFFER_RECORDS),
        min(options.buffer_bytes, BUFFER_BYTES),
        options.window_offsets,
        options.window_bytes,
    )
