"""Reading partitions without a group: where a range begins and ends, and its records, one partition at a time.

Nothing is committed, and no group hears of it. Foreign exceptions become those of `pyrula.kafka.client`.
"""

import asyncio
import math
from collections.abc import Awaitable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, UnsupportedCodecError, for_code

from pyrula.kafka.client import BrokerError, OutOfRange, Unreadable
from pyrula.kafka.fetched import take
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.record import RawRecord
from pyrula.workflows.backfills import Bound, Request
from pyrula.workflows.errors import ConfigurationError

__all__ = ["PartReader", "existing_partitions", "find_ranges"]

T = TypeVar("T")

# What one fetch brings is in memory beside the live partitions' buffers, and is taken apart in the loop they share.
FETCH_BYTES = 256 * 1024


def _consumer(options: KafkaOptions) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **options.connection(),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=options.isolation_level,
        fetch_max_wait_ms=int(options.fetch_max_wait * 1000),
        fetch_min_bytes=options.fetch_min_bytes,
        fetch_max_bytes=options.fetch_max_bytes,
        max_partition_fetch_bytes=min(options.max_partition_fetch_bytes, FETCH_BYTES),
        request_timeout_ms=int(options.request_timeout * 1000),
        metadata_max_age_ms=int(options.metadata_max_age * 1000),
    )


class Reading:
    """A consumer without a group. `async with Reading(options) as reading`; BrokerError when no broker answers."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        # Made when it is to connect: one that never did is complained of when it goes.
        self._consumer: Any = None

    async def __aenter__(self) -> Self:
        self._consumer = _consumer(self._options)
        try:
            await self._consumer.start()
        except (KafkaError, OSError) as error:
            await self._consumer.stop()
            raise BrokerError(f"no Kafka broker answered at {self._options.bootstrap_servers} ({error})") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            await self._consumer.stop()

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """First offset still in the log and the offset after the last readable one, of each."""
        wanted = list(partitions)
        first = await self._bounded(self._consumer.beginning_offsets(wanted), "list offsets")
        end = await self._bounded(self._consumer.end_offsets(wanted), "list offsets")
        return {tp: (first[tp], end[tp]) for tp in wanted}

    async def first_at(self, partitions: Iterable[TopicPartition], seconds: float) -> dict[TopicPartition, int | None]:
        """The offset of the first record that isn't before this time; None where there is none."""
        wanted = dict.fromkeys(partitions, max(0, min(math.ceil(round(seconds * 1000, 3)), 2**63 - 1)))
        if not wanted:
            return {}
        found = await self._bounded(self._consumer.offsets_for_times(wanted), "list offsets by time")
        return {tp: None if place is None or place.offset < 0 else place.offset for tp, place in found.items()}

    async def _bounded(self, call: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._options.request_timeout):
                return await call
        except (KafkaError, TimeoutError, OSError) as error:
            raise BrokerError(f"{what} failed: {error!r}") from error


class PartReader(Reading):
    """Reads one partition from an offset on."""

    def __init__(self, options: KafkaOptions, tp: TopicPartition) -> None:
        super().__init__(options)
        self.tp = tp

    async def begin(self, offset: int) -> None:
        """The next record read is the first at or after `offset`."""
        if not self._consumer.assignment():
            self._consumer.assign([self.tp])
        self._consumer.seek(self.tp, offset)

    async def read(self, most: int, timeout: float) -> list[RawRecord]:
        """Up to `most` records; none after `timeout` seconds. OutOfRange, Unreadable, BrokerError."""
        try:
            batch = await take(self._consumer, timeout, most)
        except OffsetOutOfRangeError as error:
            raise OutOfRange(error.args[0]) from error
        except UnsupportedCodecError as error:
            raise Unreadable(self.tp, f"{error!r}; install pyrula[compression]") from error
        except KafkaError as error:
            if error.retriable or type(error).__name__ != "CorruptRecordException":
                raise BrokerError(f"{self.tp.topic}[{self.tp.partition}]: fetch failed: {error!r}") from error
            raise Unreadable(self.tp, repr(error)) from error
        return batch.get(self.tp, [])

    async def position(self) -> int:
        """Where reading stands, markers and compacted holes included."""
        position: int = await self._consumer.position(self.tp)
        return position

    async def log(self) -> tuple[int, int]:
        """First offset still in the log, and the offset after the last readable one."""
        return (await self.ends([self.tp]))[self.tp]


async def existing_partitions(options: KafkaOptions, topic: str) -> list[int] | None:
    """The partitions of a topic; None if there is no such topic. Asking makes none. BrokerError."""
    admin = AIOKafkaAdminClient(**options.connection())
    try:
        async with asyncio.timeout(options.request_timeout):
            await admin.start()
            if topic not in await admin.list_topics():
                return None
            (found,) = await admin.describe_topics([topic])
    except (KafkaError, TimeoutError, OSError) as error:
        raise BrokerError(f"topic {topic} can't be looked up at {options.bootstrap_servers}: {error!r}") from error
    finally:
        await admin.close()
    if found["error_code"]:
        raise BrokerError(f"topic {topic} can't be looked up: {for_code(found['error_code']).__name__}")
    return sorted(one["partition"] for one in found["partitions"])


async def find_ranges(options: KafkaOptions, request: Request, now: float) -> dict[int, tuple[int, int]]:
    """The range of each partition that is asked for, as the log is now: from an offset up to another one.

    An end is at most the log's end as of now, so that it is reached; a start may lie before the log's. Raises
    ConfigurationError for a topic or partition that doesn't exist, BrokerError."""
    topic = request.topic
    numbers = await existing_partitions(options, topic)
    if numbers is None:
        raise ConfigurationError(f"topic {topic} does not exist at {options.bootstrap_servers}")
    strange = sorted(set(request.partitions or ()) - set(numbers))
    if strange:
        has = f"partitions {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"partition {numbers[0]} only"
        raise ConfigurationError(f"topic {topic} has {has}, so there is no partition {', '.join(map(str, strange))}")
    tps = [TopicPartition(topic, number) for number in request.partitions or numbers]
    async with Reading(options) as reading:
        logs = await reading.ends(tps)
        starts = await _offsets(reading, request.start, logs, now)
        ends = await _offsets(reading, request.end, logs, now)
    ranges: dict[int, tuple[int, int]] = {}
    for tp in tps:
        last = logs[tp][1]
        start = min(starts[tp], last)
        ranges[tp.partition] = start, max(start, min(ends[tp], last))
    return ranges


async def _offsets(
    reading: Reading, bound: Bound, logs: Mapping[TopicPartition, tuple[int, int]], now: float
) -> dict[TopicPartition, int]:
    if bound.kind == "earliest":
        return {tp: first for tp, (first, _) in logs.items()}
    if bound.kind == "latest":
        return {tp: end for tp, (_, end) in logs.items()}
    if bound.kind == "offset":
        return dict.fromkeys(logs, int(bound.value))
    # a log that is empty is not asked: some brokers answer for it as for one that is unknown
    filled = [tp for tp, (first, end) in logs.items() if end > first]
    found = await reading.first_at(filled, bound.value if bound.kind == "time" else now - bound.value)
    return {tp: end if (at := found.get(tp)) is None else at for tp, (_, end) in logs.items()}
