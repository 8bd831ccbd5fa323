"""Reading the range of one partition: is the log still the one it was, what is to be run, what is lost.

Reading hands records over and keeps the progress's side of it: what was read, matched, undecided or lost. It stops at
the end of the range, which it reaches whatever the log is like there, or at a problem that only a person can solve.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic

from aiokafka import TopicPartition

from pyrula.kafka.backfill.courtesy import PORTION as COURTEOUS_PORTION
from pyrula.kafka.backfill.courtesy import Courtesy
from pyrula.kafka.backfill.definition import Job, Undecided
from pyrula.kafka.backfill.pacing import Pacer
from pyrula.kafka.backfill.reader import PartReader, existing_partitions
from pyrula.kafka.client import BrokerError, OutOfRange, Unreadable
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Partition
from pyrula.kafka.record import RawRecord, Witness, fingerprint
from pyrula.workflows.backfills import Progress

__all__ = ["RangeReading"]

log = logging.getLogger("pyrula.kafka")

# Records handed over in one go where nothing else waits for its turn.
PORTION = 200
READ_SECONDS = 0.2
RETRY_SECONDS = 1.0
# Nothing read for so long though the end isn't reached: has the log been cut, or the topic deleted?
IDLE_SECONDS = 2.0


class RangeReading:
    """The range of one partition. `ended` when all of it was read, or there is a `problem`."""

    def __init__(
        self,
        job: Job,
        tp: TopicPartition,
        progress: Progress,
        options: KafkaOptions,
        *,
        pacer: Pacer,
        courtesy: Courtesy | None,
    ) -> None:
        self.progress = progress
        self.problem = ""
        self.read_all = progress.position >= progress.end
        self.room = asyncio.Event()
        self.room.set()
        self._job = job
        self._tp = tp
        self._options = options
        self._pacer = pacer
        self._courtesy = courtesy
        self._reader = PartReader(options, tp)

    async def start(self) -> None:
        """Connect, and look whether it is still the log that the range and the progress are of. BrokerError."""
        await self._reader.__aenter__()
        first, end = await self._reader.log()
        witness = self.witness
        if witness is not None and first <= witness.offset < end:
            await self._reader.begin(witness.offset)
            found = await self._reader.read(1, IDLE_SECONDS)
            if found and found[0].offset == witness.offset and fingerprint(found[0]) != witness.fingerprint:
                self.problem = (
                    f"{self._place} was made again since the backfill began: offset {witness.offset} holds another "
                    "record, so its range means nothing there; start another backfill"
                )
                return
        progress = self.progress
        if first > progress.position:
            if progress.read_to > progress.position:
                self._note(f"offsets up to {first - 1} were deleted by retention before all that was read had run")
            self._lose(progress.position, first)
            progress.position = min(first, progress.end)
        self._end_with(end)

    async def stop(self) -> None:
        """Disconnect."""
        await self._reader.__aexit__(None, None, None)

    @property
    def witness(self) -> Witness | None:
        """The highest record that was done when progress was saved."""
        return Witness.from_bytes(bytes.fromhex(self.progress.witness)) if self.progress.witness else None

    @property
    def ended(self) -> bool:
        return self.read_all or bool(self.problem)

    @property
    def _place(self) -> str:
        return f"{self._tp.topic}[{self._tp.partition}]"

    def _note(self, text: str) -> None:
        log.warning("backfill %s: %s: %s", self._job.id, self._place, text)
        self.progress.note = self.progress.note or text

    def _lose(self, start: int, stop: int) -> None:
        """The log doesn't have these offsets any more."""
        progress = self.progress
        start, stop = max(start, progress.read_to), min(stop, progress.end)
        if start < stop:
            self._note(f"offsets {start} to {stop - 1} had been deleted by retention before they were read")
            progress.lost += stop - start
            progress.read_to = stop

    def _end_with(self, end: int) -> None:
        """The log ends at `end`: a range that goes further was of a log that has been cut."""
        progress = self.progress
        if end < progress.end:
            self._note(f"the log was cut: it ends at offset {end}, and the range at {progress.end}")
            progress.lost += progress.end - max(end, progress.read_to)
            progress.end = max(end, progress.start)
        self.read_all = self.read_all or progress.position >= progress.end

    async def run(self, partition: Partition, hand_over: Callable[[Partition, list[RawRecord]], None]) -> None:
        """To the end of the range, or to a problem. What is to be run goes to `hand_over`."""
        try:
            await self._reader.begin(partition.tracker.committable())
            while not self.ended:
                await self.room.wait()
                try:
                    await self._read_some(partition, hand_over)
                except BrokerError as error:
                    log.warning("backfill %s: %s; it is tried again", self._job.id, error)
                    await self._look_for_topic()
                    await asyncio.sleep(RETRY_SECONDS)
                except Unreadable as error:
                    self.problem = f"{self._place} at offset {partition.tracker.position}: {error}"
        except Exception as error:
            log.exception("backfill %s: %s", self._job.id, self._place)
            self.problem = f"{self._place}: {error!r}"

    async def _read_some(self, partition: Partition, hand_over: Callable[[Partition, list[RawRecord]], None]) -> None:
        reader, pacer, courtesy = self._reader, self._pacer, self._courtesy
        portion = pacer.portion(PORTION if courtesy is None else COURTEOUS_PORTION)
        began = monotonic()
        while True:
            try:
                records = await reader.read(portion, READ_SECONDS)
                position = min(await reader.position(), self.progress.end)
            except OutOfRange:
                await self._out_of_range(partition)
                return
            matched = self._take(partition, records, position, hand_over)
            if records or self.read_all:
                break
            if monotonic() - began > IDLE_SECONDS:
                await self._look_for_topic()
                if self.problem:
                    return
                _, end = await reader.log()
                if end <= position:
                    self._cut(end)
                return
        rest = 0.0 if courtesy is None else courtesy.rest()
        await asyncio.sleep(max(rest, pacer.spend(matched, monotonic())))

    def _cut(self, end: int) -> None:
        self._end_with(end)
        self.read_all = True

    def _take(
        self,
        partition: Partition,
        records: Sequence[RawRecord],
        position: int,
        hand_over: Callable[[Partition, list[RawRecord]], None],
    ) -> int:
        """Hand over what is to be run; all else that reading has passed is done. How many are to be run."""
        progress, tracker = self.progress, partition.tracker
        chosen: list[RawRecord] = []
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
            if self._matches(record, new):
                progress.matched += new
                # Also if it is done already: a save tells of what the tracker was told of.
                chosen.append(record)
        count = sum(not tracker.is_done(record.offset) for record in chosen)
        if chosen:
            hand_over(partition, chosen)
        tracker.advance(position)
        progress.read_to = max(progress.read_to, position)
        self.read_all = position >= progress.end
        return count

    def _matches(self, record: RawRecord, new: bool) -> bool:
        matches = self._job.matches
        if matches is None:
            return True
        try:
            return matches(record, self._tp)
        except Undecided as error:
            if new:
                self.progress.undecided += 1
                self.progress.note = self.progress.note or f"offset {record.offset} was not run: {error}"
            return False

    async def _out_of_range(self, partition: Partition) -> None:
        """Retention took what comes next, or the log was cut; or so said a broker that is behind."""
        position = partition.tracker.position
        first, end = await self._reader.log()
        if position < first:
            self._lose(position, first)
            position = min(first, self.progress.end)
            partition.tracker.advance(position)
            self.read_all = position >= self.progress.end
        elif end <= position:
            self._cut(end)
            return
        else:
            await asyncio.sleep(RETRY_SECONDS)
        await self._reader.begin(position)

    async def _look_for_topic(self) -> None:
        try:
            numbers = await existing_partitions(self._options, self._tp.topic)
        except BrokerError:
            return
        if self._tp.partition not in (numbers or ()):
            self.problem = f"{self._place} was deleted while the backfill ran"
