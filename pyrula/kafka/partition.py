"""One partition during one assignment: what was read of it, what of that may start, what is done, what is journaled.

Owns the buffer's bounds, the lanes, the offset tracker and the partition's queue into the group commit. All of it dies
with the assignment, so a record fetched under an old generation can change nothing of a later one. It knows neither the
Kafka client (it asks for pause and resume through callables) nor who executes its records.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from time import monotonic
from typing import Any, cast

from aiokafka import TopicPartition

from pyrula.kafka.binding import Binding
from pyrula.kafka.buffer import Bounds, Buffer
from pyrula.kafka.company import Attended, Attending, Away, Transacting
from pyrula.kafka.deaths import MARK_INDEX, Mark, Marks
from pyrula.kafka.done_rows import DoneRows
from pyrula.kafka.lanes import Lanes
from pyrula.kafka.log_witness import LogWitness
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.record import RawRecord, Record, Witness, fingerprint, run_id, witness_bytes
from pyrula.kafka.standing import Standing
from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.client.trigger import TriggerStore, feed
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.execution import UNTIL_DURABLE, Execution
from pyrula.workflows.group_commit import Flush, GroupCommit
from pyrula.workflows.replay.journal import Fields, Journal, decode_row, encode_row, row_end
from pyrula.workflows.store.port import Row, Token
from pyrula.workflows.store.record_changes import RecordChange
from pyrula.workflows.worker.patience import ask_until_answered

log = logging.getLogger("pyrula.kafka")


class RecordRun(Execution):
    """The run of one record. `origin` is the record as the client gave it, `flush` the one its last row travels in.

    While the run waits for nothing but a flush, with its body suspended or ended, it `rides` on it.
    """

    __slots__ = ("cut_short", "expired", "offset", "partition", "rides", "row_end", "started")

    origin: RawRecord
    offset: int  # of the record, which takes longer to say it
    flush: Flush | None
    partition: "Partition"
    row_end: bytes | None  # with the record's fingerprint, which all rows of the run have in common
    rides: Flush | None
    started: float
    expired: bool
    cut_short: int  # how often, by a stranger

    @property
    def durable(self) -> bool:
        """Whether every row of the run is acknowledged."""
        flush = self.flush
        return flush is None or (flush.done and flush.error is None)

    @property
    def run_id(self) -> str:
        """Made from the record's place when asked for: most runs never are."""
        return self.partition.run_id(self.offset)


class Partition:
    """A partition that this process has been assigned, from the first record read to the last commit."""

    # The interpreter looks up faster what is in a slot, and gives up on instances with more than 30 attributes.
    __slots__ = (
        "_fenced", "_fetch", "_highest", "_journal_bytes", "_live_bytes", "_queue", "_spilled", "_standing",
        "_triggers", "addressed", "addresses", "away", "background", "binding", "buffer", "changed", "closed",
        "committed", "entrust", "in_flight", "in_rotation", "journal", "journaled", "lanes", "log_witness", "marked",
        "marks", "on_close", "on_flushed", "pruned_below", "running", "shard", "source", "stopped", "token", "tp",
        "tracker", "transactor", "waiting",
    )  # fmt: skip

    # As a host of runs: nobody talks to them here.
    park_after = None

    def __init__(
        self,
        tp: TopicPartition,
        binding: Binding,
        *,
        shard: int,
        token: Token,
        source: bytes,
        tracker: OffsetTracker,
        rows: Sequence[Row],
        known: Witness | None,
        anchor: Witness | None = None,
        commits: GroupCommit,
        bounds: Bounds,
        fetch: Callable[[bool], None],
        fenced: Callable[["Partition"], None],
        standing: Standing,
        triggers: TriggerStore,
        marks: Marks | None = None,
        spilled: DoneRows | None = None,
    ) -> None:
        self.tp = tp
        self.binding = binding
        self.shard = shard
        self.token = token
        self.source = source
        self.tracker = tracker
        self.lanes: Lanes[Any] = Lanes(binding.ordering)
        self.buffer = Buffer(bounds, self._fetch_on)
        self.closed = False
        self.in_flight = 0
        # Of those in flight, the ones that have not begun: they wait for a former body's end, or to be admitted.
        self.waiting = 0
        self.in_rotation = False
        self.changed = False
        self.committed = self.pruned_below = tracker.committable()
        self.background: set[asyncio.Task[None]] = set()
        self.stopped: dict[int, str] = {}
        self.running: dict[int, RecordRun] = {}
        self.journal: dict[int, list[tuple[int, bytes]]] = {}
        self.journaled = bool(rows)
        for row in rows:
            self.journal.setdefault(row.position, []).append((row.index, row.data))
        # Runs that others may take part in, or that are to be kept, by offset; who looks after them, if anybody does.
        self.addressed: dict[int, Attended[RecordRun]] = {}
        self.addresses: Attending[RecordRun] | None = None
        # Lanes of which a record was handed over, if there are any.
        self.away: Away | None = None
        self.on_close: Callable[[], None] | None = None
        self._journal_bytes: dict[int, int] = {}
        self._live_bytes = 0
        self._highest: RawRecord | None = None
        self.log_witness = LogWitness(known, anchor)
        self._fetch = fetch
        self._fenced = fenced
        self._standing = standing
        self._triggers = triggers
        self._queue = commits.lane(source, token, self._marks, self._flushed)
        self.on_flushed: Callable[[Partition, Flush], None] | None = None
        self.transactor: Transacting | None = None
        self.entrust: Callable[[Partition, Sequence[int]], None] = Partition.settled
        self._spilled = spilled or DoneRows()
        self.marked: dict[int, Mark] = {}
        self.marks: Marks | None = None
        if marks is not None:
            for position, index, data in marks.changed:
                self._queue.add(position, index, data)
            self.marks = marks if marks.careful or marks.charged else None

    def receive(self, records: list[RawRecord]) -> None:
        """Take records that were read, in offset order; those known to be done are dropped here."""
        tracker = self.tracker
        mapped = tracker.has_map
        self.log_witness.on_read(records[0])
        tracker.extend([record.offset for record in records])
        if mapped:
            records = [record for record in records if not tracker.is_done(record.offset)]
        if self.away is not None:
            records = self.away.fresh(records)
        self.buffer.add(records)
        self.lanes.extend(records)
        self.check_bounds()

    def complete(self, records: Sequence[RawRecord], *, left: bool = False, stored: bool = False) -> None:
        """These records need nothing more here: their offsets count, their lanes go on, which they may have `left`.
        Those that aren't done but `stored` count once that is sure."""
        if self.closed:
            return
        offsets = [record.offset for record in records]
        if stored:
            self.entrust(self, offsets)
        else:
            self.settled(offsets)
        low = self.buffer.drop(records)
        if not left:
            self.lanes.leave(records)
        if self.journal:
            for offset in offsets:
                self.journal.pop(offset, None)
        highest = max(offsets)
        if highest > self.log_witness.top:
            self.log_witness.on_done(records[offsets.index(highest)])
        if low:
            self.check_bounds()

    def settled(self, offsets: Iterable[int]) -> None:
        """These offsets count."""
        self.tracker.complete(offsets)
        self.changed = True

    def reopen(self) -> None:
        """What was known of the store is in doubt: drop what there is, and open the partition again."""
        if not self.closed:
            self._fenced(self)

    def reckon(self, records: Sequence[RawRecord]) -> None:
        """Count the offsets of these records as done in the commit that is about to be made; they are completed, or the
        partition dropped, when it is known what became of it."""
        if records:
            self.tracker.complete([record.offset for record in records])
            self.log_witness.on_done(max(records, key=attrgetter("offset")))

    def rows_of(self, record: RawRecord) -> Journal | None:
        """What the journal holds of this very record: rows of another log's record at its offset are ignored."""
        rows = self.journal.get(record.offset)
        if rows is None:
            return None
        _, witnessed = decode_row(rows[0][1])
        if witnessed != fingerprint(record):
            log.warning(
                "%s offset %d: its journal belongs to another record, so it is not used", self.tp, record.offset
            )
            del self.journal[record.offset]
            return None
        return Journal.load(rows)

    def run_id(self, offset: int) -> str:
        """The id of the run of the record at `offset`."""
        binding = self.binding
        return run_id(
            self.shard, binding.cluster, binding.group, self.tp.topic, self.tp.partition, offset, self.token.incarnation
        )

    def append(self, run: Execution, index: int, entry: Fields | None) -> None:
        """Host of runs: queue a row for the next group commit."""
        end = run.row_end or self._row_end(run)  # type: ignore[attr-defined, arg-type]
        data = b"" if entry is None else encode_row(entry, None, end)
        run.flush = self._queue.add(run.offset, index, data)  # type: ignore[attr-defined]

    def attend(self, run: Execution, seconds: float) -> None:
        """Host of runs: the body is about to do what others may take part in, or to wait for so long."""
        if self.addresses is not None:
            self.addresses.attend(run, seconds)

    def change(self, take: Callable[[], RecordChange]) -> Flush:
        """Queue a change of a run for the next group commit; it has rows of its own."""
        self.journaled = True
        return self._queue.change(take)

    def row_of(self, run: Execution, entry: Fields | None) -> bytes:
        """A row as it is stored. It counts as journaled."""
        assert isinstance(run, RecordRun)
        end = run.row_end or self._row_end(run)
        data = b"" if entry is None else encode_row(entry, None, end)
        self._count_journaled(run.offset, len(data))
        return data

    def _row_end(self, run: RecordRun) -> bytes:
        """The first row of a run is about to be written."""
        record = run.origin
        run.row_end = end = row_end(fingerprint(record))
        if self._highest is None or run.offset > self._highest.offset:
            self._highest = record
        self.journaled = True
        return end

    def _count_journaled(self, offset: int, size: int) -> None:
        bucket = offset >> 10
        self._journal_bytes[bucket] = self._journal_bytes.get(bucket, 0) + size
        self._live_bytes += size

    def _flushed(self, flush: Flush) -> None:
        if flush.error is not None and not self.closed:
            self._fenced(self)
        if flush.riders and self.on_flushed is not None:
            self.on_flushed(self, flush)

    def spill(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Offsets that are done and that the commit's metadata has no room for."""
        for position, index, data in self._spilled.write(ranges):
            self.journaled = True
            self._queue.add(position, index, data)

    async def mark(self, record: RawRecord, mark: Mark) -> None:
        """Write durably that the record is about to run. Raises LeaseLost if it is no longer ours to run."""
        rows = self.rows_of(record)
        marked = replace(mark, journaled=0 if rows is None else rows.next_index)
        self.marked[record.offset] = marked
        self.journaled = True
        await self._queue.add(record.offset, MARK_INDEX, marked.row(fingerprint(record))).wait()

    def unmark(self, record: RawRecord) -> Mark | None:
        """The record's body has ended, so no death can be its doing. What it was marked with, if it was."""
        mark = self.marked.pop(record.offset, None)
        if mark is not None and not self.closed:
            self._queue.add(record.offset, MARK_INDEX, replace(mark, running="", journaled=0).row(fingerprint(record)))
        return mark

    def durable(self, run: Execution) -> Awaitable[None] | None:
        """Host of runs: None when every row of the run is acknowledged, else what to await; raises LeaseLost there."""
        flush: Flush | None = run.flush
        if monotonic() > self._standing.until:
            return self._proved(flush)
        if flush is None or (flush.done and flush.error is None):
            return None
        if run.resumable and run.crew is None and not flush.done:
            run.rides = flush  # type: ignore[attr-defined]
            flush.riders.append(run)
            return UNTIL_DURABLE
        return self._acknowledged(flush)

    async def _acknowledged(self, flush: Flush) -> None:
        await flush.wait()
        if monotonic() > self._standing.until:
            await self._proved(None)

    def _proved(self, flush: Flush | None) -> Awaitable[None]:
        """The group may have gone on without us: no further effect until it has answered. Another process may be at
        this record, and the run has no row on its way by which the store would tell."""
        proved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: Exception | None) -> None:
            if proved.done():
                return
            if error is None:
                proved.set_result(None)
            else:
                proved.set_exception(error)
                proved.exception()  # who was cut meanwhile doesn't want to read of it in the log

        def look() -> None:
            if self.closed:
                settle(LeaseLost(f"{self.tp.topic}[{self.tp.partition}] was let go"))
            elif monotonic() > self._standing.until:
                self._standing.on_change(look)
            elif flush is None:
                settle(None)
            else:
                flush.on_done(settle)

        look()
        return proved

    def record(self, run: Execution) -> Record[Any] | None:
        """Host of runs: the record that ctx.record shows."""
        raw = cast(RawRecord, run.origin)
        return Record.of(raw, raw.value, self.tp)

    async def trigger(self, run: Execution, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
        """Host of runs: feed an event to another workflow's trigger."""
        return await ask_until_answered(lambda: feed(self._triggers, definition, event))

    def triggered(self, run: Execution, event: TriggerEvent) -> None:
        """Host of runs: the event's answer is in the row that was queued last."""

        def forget(error: Exception | None) -> None:
            if error is None:
                self._triggers.forget_event(event)

        cast(Flush, run.flush).on_done(forget)

    def is_over(self, offset: int) -> bool:
        """Whether no record at `offset` needs anything more."""
        return self.tracker.is_over(offset)

    def is_queued(self, offset: int) -> bool:
        """Whether the record at `offset` waits for its turn, and nothing of it has begun."""
        if self.away is not None and self.away.has(offset):
            return True
        return any(type(head) is not RecordRun and head.offset == offset for head in self.lanes.waiting())

    async def emptied(self) -> None:
        """Until none of its bodies runs any more."""
        while self.running:  # noqa: ASYNC110 - it takes some ms, and an event would cost every record
            await asyncio.sleep(0.01)

    def flushed(self) -> Awaitable[None]:
        """Done when every row so far is durable."""
        return self._queue.touch().wait()

    def _marks(self, size: int) -> tuple[int, bytes | None]:
        highest = self._highest
        if highest is None:
            return 0, None
        self._count_journaled(highest.offset, size)
        return highest.offset, witness_bytes(highest)

    def pruned(self, below: int) -> None:
        """The store dropped what it held under `below`."""
        self.pruned_below = below
        self._spilled.passed(below)
        if self.marks is not None:
            self.marks = self.marks.moved_on(below)
        if self._highest is not None and self._highest.offset < below:
            # The last bucket may be full of rows that are no longer needed, and no more records are read to pass it.
            self._journal_bytes.clear()
            self._live_bytes = 0
        for bucket in [bucket for bucket in self._journal_bytes if (bucket + 1) << 10 <= below]:
            self._live_bytes -= self._journal_bytes.pop(bucket)
        self.check_bounds()

    def check_bounds(self) -> None:
        """Pause or resume reading, by what is buffered and by the window."""
        self.buffer.check(self.tracker.span, self._live_bytes)

    def _fetch_on(self, on: bool) -> None:
        if not self.closed:
            self._fetch(on)

    def close(self) -> None:
        """End of the assignment: nothing of it starts, completes or is journaled from here on."""
        self.closed = True
        if self.on_close is not None:
            self.on_close()
        if self.transactor is not None:
            self.transactor.let_go()
        for task in self.background:
            task.cancel()
        self.lanes.clear()
        self._queue.close()
