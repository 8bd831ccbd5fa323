"""One partition of a backfill while this worker has its lease: read to the end of its range, run, and saved.

A part is a `Partition` as a group's is, with the same lanes, journal and replayers; what differs is that its records
are read here, without a group, and that what is done goes to the store with `save` instead of to Kafka. Counts, done
offsets and position are taken in one turn of the loop, so that they are always of the same records. A part doesn't know
when to save or to let go: its backfill in this worker says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Literal, TypeAlias

from aiokafka import ConsumerRecord, TopicPartition

from pyrula.kafka.addresses import AddressBook
from pyrula.kafka.backfill.courtesy import PORTION as COURTEOUS_PORTION
from pyrula.kafka.backfill.courtesy import Courtesy
from pyrula.kafka.backfill.definition import Job, Undecided, group_of
from pyrula.kafka.backfill.pacing import Pacer
from pyrula.kafka.backfill.reader import PartReader, existing_partitions
from pyrula.kafka.backfill.redrive import journal_in
from pyrula.kafka.client import BrokerError, OutOfRange, Unreadable
from pyrula.kafka.deaths import read_marks
from pyrula.kafka.events import RecordEvent
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Bounds, Partition
from pyrula.kafka.record import Witness, fingerprint, record_identity
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.standing import Standing
from pyrula.kafka.stores import WorkerStore
from pyrula.workflows.backfills import Progress
from pyrula.workflows.errors import LeaseLost, StaleToken, StoreError
from pyrula.workflows.group_commit import GroupCommit, SourceQueue
from pyrula.workflows.store.backfills import BackfillStatus, Hold, PartState, Taken
from pyrula.workflows.store.port import Claim, Token

__all__ = ["Part", "Surroundings"]

log = logging.getLogger("pyrula.kafka")

# Records handed over in one go where nothing else waits for its turn.
PORTION = 200
READ_SECONDS = 0.2
RETRY_SECONDS = 1.0
# Nothing read for so long though the end isn't reached: has the log been cut, or the topic deleted?
IDLE_SECONDS = 2.0
# A cut body ends at once, unless it eats the cut.
SETTLE_SECONDS = 3.5
# In memory beside what the live partitions have.
BUFFER_RECORDS, BUFFER_BYTES = 2_000, 8 * 1024 * 1024

_COUNTED = {"completed": "completed", "dead_lettered": "failed", "skipped": "skipped", "cancelled": "skipped"}
_HELD = ("stopped", "paused")

Ended: TypeAlias = Literal["", "done", "stuck"]


class Surroundings:
    """What the parts of one backfill in one worker share."""

    def __init__(
        self,
        job: Job,
        pool: Replayers,
        standing: Standing,
        *,
        store: WorkerStore,
        commits: GroupCommit,
        options: KafkaOptions,
        pacer: Pacer,
        courtesy: Courtesy | None,
        book: AddressBook,
        on_change: Callable[[], None],
    ) -> None:
        self.job = job
        self.pool = pool
        self.standing = standing
        self.store = store
        self.commits = commits
        self.options = options
        self.pacer = pacer
        self.courtesy = courtesy
        self.book = book
        self.on_change = on_change


class Part:
    """A partition from the moment its lease was taken until it is let go."""

    def __init__(self, around: Surroundings, number: int, worker: str, taken: Taken) -> None:
        self.number = number
        self.tp = TopicPartition(around.job.request.topic, number)
        self.progress = Progress.decode(taken.progress)
        self.partition: Partition | None = None
        self.lost = False
        self._around = around
        self._hold = Hold(worker, taken.token, 0)
        self._source = record_identity(around.job.request.cluster, group_of(around.job.id), *self.tp)
        self._token: Token | None = None
        self._reader: PartReader | None = None
        self._pump: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._read_all = False
        self._problem = ""
        self._retrying: set[int] = set()
        self._adopted: SourceQueue | None = None

    async def open(self) -> None:
        """Fence the journal and begin to read. BrokerError and StoreError: it may be tried again later."""
        progress = self.progress
        if progress.position >= progress.end:
            self._read_all = True
            return
        around = self._around
        claim = await self._claim()
        self._token = claim.token
        self._reader = PartReader(around.options, self.tp)
        await self._reader.__aenter__()
        await self._look_at_log()
        if self._problem or self._read_all:
            return
        # What was done of a log that has since lost its head stays done.
        tracker = OffsetTracker(progress.position, progress.done)
        bounds = Bounds(
            min(around.options.buffer_records, BUFFER_RECORDS),
            min(around.options.buffer_bytes, BUFFER_BYTES),
            around.options.window_offsets,
            around.options.window_bytes,
        )
        marks, rows = read_marks(claim)
        registered = await around.book.register(
            around.job.binding, self.tp.topic, self.number, self._source, claim.token, progress.position, "nothing"
        )
        self.partition = Partition(
            self.tp,
            around.job.binding,
            shard=around.store.shard_of(self._source),
            token=claim.token,
            source=self._source,
            tracker=tracker,
            rows=rows,
            marks=marks,
            known=self._witness(),
            commits=around.commits,
            bounds=bounds,
            fetch=self._fetch,
            fenced=self._fenced,
            standing=around.standing,
            triggers=around.store,
        )
        if around.job.request.failed_of is not None:
            self._adopted = around.commits.lane(self._source, claim.token)
        around.book.open(self.partition, registered, lambda: progress.end)
        around.pool.add(self.partition)
        await self._reader.begin(tracker.committable())
        self._pump = asyncio.get_running_loop().create_task(self._read_on(self.partition), name=f"backfill {self.tp}")

    async def _claim(self) -> Claim:
        store, token = self._around.store, self._hold.token
        try:
            return await store.claim_source(self._source, token)
        except StaleToken as stale:
            # A backfill of this id was forgotten and begun anew; the lease says that the journal is ours.
            return await store.claim_source(self._source, token, replaces=stale.stored)

    def _witness(self) -> Witness | None:
        return Witness.from_bytes(bytes.fromhex(self.progress.witness)) if self.progress.witness else None

    async def _look_at_log(self) -> None:
        """Whether it is still the log that the range and the progress are of."""
        assert self._reader is not None
        first, end = await self._reader.log()
        witness = self._witness()
        if witness is not None and first <= witness.offset < end:
            await self._reader.begin(witness.offset)
            found = await self._reader.read(1, IDLE_SECONDS)
            if found and found[0].offset == witness.offset and fingerprint(found[0]) != witness.fingerprint:
                self._problem = (
                    f"{self.tp.topic}[{self.number}] was made again since the backfill began: offset {witness.offset} "
                    "holds another record, so its range means nothing there; start another backfill"
                )
                return
        if first > self.progress.position:
            self._lose(self.progress.position, first)
            self.progress.position = min(first, self.progress.end)
        self._end_with(end)

    def _lose(self, start: int, stop: int) -> None:
        """The log doesn't have these offsets (any more)."""
        stop = min(stop, self.progress.end)
        start = max(start, self.progress.read_to)
        if start >= stop:
            return
        text = f"offsets {start} to {stop - 1} had been deleted by retention before they were read"
        log.warning("backfill %s: %s[%d]: %s", self._around.job.id, self.tp.topic, self.number, text)
        self.progress.lost += stop - start
        self.progress.read_to = stop
        self.progress.note = self.progress.note or text

    def _end_with(self, end: int) -> None:
        """The log ends at `end`: a range that goes further was of a log that has been cut."""
        progress = self.progress
        if end < progress.end:
            text = f"the log was cut: it ends at offset {end}, and the range at {progress.end}"
            log.warning("backfill %s: %s[%d]: %s", self._around.job.id, self.tp.topic, self.number, text)
            progress.lost += progress.end - max(end, progress.read_to)
            progress.note = progress.note or text
            progress.end = max(end, progress.start)
        if progress.position >= progress.end:
            self._read_all = True

    def _fetch(self, on: bool) -> None:
        if on:
            self._room.set()
        else:
            self._room.clear()

    def _fenced(self, _: Partition) -> None:
        self.lost = True
        self._around.on_change()

    async def _read_on(self, partition: Partition) -> None:
        """To the end of the range."""
        try:
            while not self._read_all and not self._problem:
                await self._room.wait()
                try:
                    await self._read_some(partition)
                except BrokerError as error:
                    log.warning("backfill %s: %s; it is tried again", self._around.job.id, error)
                    await self._look_for_topic()
                    await asyncio.sleep(RETRY_SECONDS)
                except Unreadable as error:
                    position = partition.tracker.position
                    self._problem = f"{self.tp.topic}[{self.number}] at offset {position}: {error}"
        except Exception as error:
            log.exception("backfill %s: %s[%d]", self._around.job.id, self.tp.topic, self.number)
            self._problem = f"{self.tp.topic}[{self.number}]: {error!r}"
        self._around.on_change()

    async def _read_some(self, partition: Partition) -> None:
        reader, pacer, courtesy = self._reader, self._around.pacer, self._around.courtesy
        portion = pacer.portion(PORTION if courtesy is None else COURTEOUS_PORTION)
        assert reader is not None
        idle = monotonic()
        while True:
            try:
                records = await reader.read(portion, READ_SECONDS)
                position = await reader.position()
            except OutOfRange:
                await self._out_of_range(partition)
                return
            matched = self._take(partition, records, min(position, self.progress.end))
            if records or self._read_all:
                break
            if monotonic() - idle > IDLE_SECONDS:
                _, end = await reader.log()
                if end < self.progress.end and position >= end:
                    self._end_with(end)
                    self._read_all = True
                return
        rest = 0.0 if courtesy is None else courtesy.rest()
        await asyncio.sleep(max(rest, pacer.spend(matched, monotonic())))

    def _take(self, partition: Partition, records: Sequence[ConsumerRecord[Any, Any]], position: int) -> int:
        """Hand over what is to be run; all else that reading has passed is done. How many are to be run."""
        progress, tracker, matches = self.progress, partition.tracker, self._around.job.matches
        chosen = []
        count = 0
        for record in records:
            offset = record.offset
            if offset >= progress.end:
                break
            new = offset >= progress.read_to
            if new:
                place = (offset, -1 if record.timestamp is None else record.timestamp)
                progress.read += 1
                progress.first = progress.first or place
                progress.last = place
            if matches is not None:
                try:
                    if not matches(record):
                        continue
                except Undecided as error:
                    if new:
                        progress.undecided += 1
                        progress.note = progress.note or f"offset {offset} was not run: {error}"
                    continue
            progress.matched += new
            # Those that are done already are noted by the tracker, too, or the next save would forget that they are.
            chosen.append(record)
            count += not tracker.is_done(offset)
        if chosen:
            if self._adopted is not None:
                self._adopt(partition, chosen, self._adopted)
            partition.receive(chosen)
        tracker.advance(position)
        progress.read_to = max(progress.read_to, position)
        if position >= progress.end:
            self._read_all = True
        if chosen:
            self._around.pool.offer(partition)
        return count

    def _adopt(self, partition: Partition, letters: Sequence[ConsumerRecord[Any, Any]], queue: SourceQueue) -> None:
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

    async def _out_of_range(self, partition: Partition) -> None:
        """Retention took what comes next, or the log was cut."""
        assert self._reader is not None
        position = partition.tracker.position
        first, end = await self._reader.log()
        if position < first:
            self._lose(position, first)
            reached = min(first, self.progress.end)
            partition.tracker.advance(reached)
            self._read_all = reached >= self.progress.end
            await self._reader.begin(reached)
        else:
            self._end_with(end)
            self._read_all = True

    async def _look_for_topic(self) -> None:
        try:
            numbers = await existing_partitions(self._around.options, self.tp.topic)
        except BrokerError:
            return
        if self.number not in (numbers or ()):
            self._problem = f"{self.tp.topic}[{self.number}] was deleted while the backfill ran"

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
        if event.kind in _HELD or (self._read_all and not partition.tracker.unfinished):
            self._around.on_change()

    @property
    def ripe(self) -> bool:
        """It has come to its end, which is yet to be saved."""
        return self.lost or self._state()[0] != "open"

    def _state(self) -> tuple[PartState, str]:
        """Whether anything is left to do that time alone will bring."""
        partition = self.partition
        if partition is None:
            return ("stuck", self._problem) if self._problem else ("done" if self._read_all else "open", "")
        if self._read_all and not partition.tracker.unfinished:
            return "done", ""
        if partition.in_flight:
            return "open", ""
        halted = self._around.pool.halted
        if halted:
            return "stuck", halted
        if partition.lanes.ready or self._retrying:
            return "open", ""
        if self._problem:
            return "stuck", self._problem
        if partition.stopped and (self._read_all or not self._room.is_set()):
            return "stuck", partition.stopped[min(partition.stopped)]
        return "open", ""

    def _snapshot(self) -> bytes:
        """Progress as of now; nothing is awaited between its parts."""
        partition, progress = self.partition, self.progress
        if partition is not None:
            tracker = partition.tracker
            witness = partition.witness()
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
        status = await around.store.save_part(
            around.job.id, self.number, self._hold, data, state=state, problem=problem, release=release
        )
        if self.partition is not None and state == "open":
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
                log.warning("backfill %s: %s: journal not pruned: %s", self._around.job.id, self.tp, error)
                return
        partition.pruned(below)
        if partition.addresses is not None:
            try:
                await partition.addresses.passed(below)
            except LeaseLost:
                self.lost = True
            except StoreError as error:
                log.warning("backfill %s: %s: its board is not cleared: %s", self._around.job.id, self.tp, error)

    def quiesce(self) -> None:
        """Start nothing more; what runs goes on."""
        if self._pump is not None:
            self._pump.cancel()
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
        if self._pump is not None:
            await asyncio.wait([self._pump])
        if partition is not None:
            self._around.standing.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await partition.emptied()
            partition.close()
        if self._adopted is not None:
            self._adopted.close()
        if self._reader is not None:
            await self._reader.__aexit__(None, None, None)
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
            log.warning("backfill %s: %s could not be released: %s", self._around.job.id, self.tp, error)

    def flushed(self) -> Awaitable[None] | None:
        """Done when every row so far is durable; None if there is none."""
        partition = self.partition
        return partition.flushed() if partition is not None and partition.journaled else None
