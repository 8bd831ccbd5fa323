"""A dry run: how many records a backfill would run, of which offsets and times. Reads Kafka, and touches nothing."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from aiokafka import TopicPartition

from pyrula.kafka.backfill.definition import Job, Undecided
from pyrula.kafka.backfill.reader import PartReader, find_ranges
from pyrula.kafka.client import OutOfRange
from pyrula.kafka.options import KafkaOptions
from pyrula.workflows.backfills import Progress
from pyrula.workflows.client.backfill_report import BackfillReport, PartitionState, report_of_progress
from pyrula.workflows.store.backfills import BackfillStatus

__all__ = ["count_records"]

AT_ONCE = 4
PORTION = 500
READ_SECONDS = 0.2
IDLE_SECONDS = 2.0


async def count_records(
    job: Job, options: KafkaOptions, on_progress: Callable[[BackfillReport], None] | None = None
) -> BackfillReport:
    """Read the range to its end. ConfigurationError as for the backfill itself, BrokerError, Unreadable."""
    began = datetime.now(UTC)
    ranges = await find_ranges(options, job.request, began.timestamp())
    counts = {number: Progress.over(*ends) for number, ends in ranges.items()}

    def report(status: BackfillStatus, finished: datetime | None = None) -> BackfillReport:
        return _report(job, counts, status, began, finished)

    room = asyncio.Semaphore(AT_ONCE)

    async def count(number: int) -> None:
        async with room:
            await _count(job, options, number, counts[number], told)

    def told() -> None:
        if on_progress is not None:
            on_progress(report(BackfillStatus.RUNNING))

    async with asyncio.TaskGroup() as group:
        for number in counts:
            group.create_task(count(number), name=f"count {job.request.topic}[{number}]")
    return report(BackfillStatus.COMPLETED, datetime.now(UTC))


async def _count(job: Job, options: KafkaOptions, number: int, counts: Progress, told: Callable[[], None]) -> None:
    if counts.start >= counts.end:
        return
    async with PartReader(options, TopicPartition(job.request.topic, number)) as reader:
        await reader.begin(counts.start)
        idle = 0.0
        while counts.position < counts.end:
            try:
                records = await reader.read(PORTION, READ_SECONDS)
            except OutOfRange:
                first, _ = await reader.log()
                reached = max(min(first, counts.end), counts.position)
                if reached == counts.position:  # the log was cut below the range
                    reached = counts.end
                counts.lost += reached - counts.position
                counts.position = reached
                await reader.begin(reached)
                continue
            for record in records:
                if record.offset >= counts.end:
                    break
                counts.read += 1
                counts.last = (record.offset, -1 if record.timestamp is None else record.timestamp)
                counts.first = counts.first or counts.last
                try:
                    counts.matched += job.matches is None or job.matches(record, reader.tp)
                except Undecided as error:
                    counts.undecided += 1
                    counts.note = counts.note or f"offset {record.offset} would not be run: {error}"
            counts.position = min(await reader.position(), counts.end)
            idle = 0.0 if records else idle + READ_SECONDS
            if idle > IDLE_SECONDS and (await reader.log())[1] <= counts.position:
                counts.end = counts.position
            told()


def _report(
    job: Job, counts: dict[int, Progress], status: BackfillStatus, began: datetime, finished: datetime | None
) -> BackfillReport:
    def state(one: Progress) -> PartitionState:
        return "done" if one.position >= one.end else "running"

    request = job.request
    return BackfillReport(
        id=job.id,
        status=status,
        workflow=request.workflow,
        topic=request.topic,
        group=request.group,
        cluster=request.cluster,
        failed_of=request.failed_of,
        start=str(request.start),
        end=str(request.end),
        where=request.where,
        max_concurrency=job.pace.max_concurrency,
        rate=job.pace.rate,
        output=job.binding.output,
        dead_letter_topic=job.binding.dead_letter_topic_of(request.topic),
        dry_run=True,
        created_at=began,
        started_at=began,
        finished_at=finished,
        partitions=tuple(report_of_progress(number, one, state(one)) for number, one in counts.items()),
    )
