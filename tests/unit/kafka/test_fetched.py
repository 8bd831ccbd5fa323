"""What is taken of aiokafka's fetches is what its own `getmany` gives; and its private names are what they were."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher, FetchError, FetchResult, PartitionRecords
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException, OffsetOutOfRangeError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from pyrula.kafka.fetched import Unpacking, take

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
CONTROL, ABORT = 1 << 5, b"\0\0\0\0"


class Batch(NamedTuple):
    """A batch of a log: the offsets left of it, and its producer, if it is of a transaction."""

    base: int
    offsets: tuple[int, ...]
    last: int
    producer: int = -1
    marker: bool = False

    def encoded(self) -> bytes:
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=int(self.producer >= 0), producer_id=self.producer,
            producer_epoch=0, base_sequence=-1, batch_size=1 << 20,
        )  # fmt: skip
        for offset in self.offsets:
            key = ABORT if self.marker else b"%d" % offset
            builder.append(offset - self.base, 1_000 + offset, key, None if offset % 3 else b"v", [("h", b"1")])
        data = bytearray(builder.build())
        data[:8] = self.base.to_bytes(8, "big")
        if self.marker:
            data[22] |= CONTROL
        data[23:27] = (self.last - self.base).to_bytes(4, "big")
        return bytes(data)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    made, base = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 6))):
        span = draw(st.integers(1, 12))
        producer = draw(st.sampled_from([-1, -1, 7, 8]))
        if producer >= 0 and draw(st.booleans()):
            made.append(Batch(base, (base,), base, producer, marker=True))
            base += 1
            continue
        kept = draw(st.sets(st.integers(0, span - 1), min_size=1))
        made.append(Batch(base, tuple(base + at for at in sorted(kept)), base + span - 1, producer))
        base += span + draw(st.integers(0, 3))
    return made


def source_of(
    batches: Iterable[Batch],
    start: int = 0,
    *,
    level: str = "read_uncommitted",
    aborted: Iterable[tuple[int, int]] = (),
) -> PartitionRecords:
    data = b"".join(batch.encoded() for batch in batches)
    return PartitionRecords(TP, MemoryRecords(data), list(aborted), start, None, None, False, level)


def fields(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


@given(
    logs(),
    st.integers(0, 30),
    st.sampled_from(["read_committed", "read_uncommitted"]),
    st.lists(st.tuples(st.sampled_from([7, 8]), st.integers(0, 40)), max_size=3),
    st.integers(1, 7),
)
def test_it_unpacks_what_aiokafka_unpacks(
    log: list[Batch], start: int, level: str, aborted: list[tuple[int, int]], most: int
) -> None:
    theirs, ours = (source_of(log, start, level=level, aborted=aborted) for _ in range(2))
    expected = [fields(record) for record in theirs]
    unpacking, parts = Unpacking(ours), []
    while not unpacking.ended:
        parts.append(unpacking.take(most))
    assert [fields(record) for part in parts for record in part] == expected
    assert all(len(part) == most for part in parts[:-1])
    assert ours.next_fetch_offset == theirs.next_fetch_offset


def test_a_wrong_checksum_is_seen() -> None:
    good, bad = Batch(0, (0, 1), 1).encoded(), bytearray(Batch(2, (2, 3), 3).encoded())
    bad[-1] ^= 1
    source = PartitionRecords(TP, MemoryRecords(good + bytes(bad)), [], 0, None, None, True, "read_uncommitted")
    with pytest.raises(CorruptRecordException):
        Unpacking(source).take(10)
    assert source.next_fetch_offset == 2


class Rig:
    """A consumer that is connected to nothing, with aiokafka's own subscription and fetcher."""

    def __init__(self) -> None:
        self.subscription = SubscriptionState()
        self.subscription.assign_from_user({TP, OTHER})
        self.assignment: Any = self.subscription.subscription.assignment
        for tp in (TP, OTHER):
            self.assignment.state_value(tp).seek(0)
        client: Any = SimpleNamespace(_loop=asyncio.get_running_loop(), _metadata_max_age_ms=1000)
        self.fetcher: Any = object.__new__(Fetcher)
        self.fetcher._loop = client._loop
        self.fetcher._records = {}
        self.fetcher._fetch_waiters = set()
        self.fetcher._wait_consume_future = None
        self.fetcher._closed = False
        self.consumer: Any = SimpleNamespace(
            _closed=False,
            _fetcher=self.fetcher,
            _subscription=self.subscription,
            _coordinator=SimpleNamespace(check_errors=lambda: None),
        )

    def arrive(self, tp: TopicPartition, *batches: Batch) -> None:
        source = source_of(batches, self.assignment.state_value(tp).position)
        self.fetcher._records[tp] = FetchResult(tp, assignment=self.assignment, partition_records=source, backoff=0)
        for waiter in list(self.fetcher._fetch_waiters):
            waiter.set_result(None)

    async def take(self, most: int = 100, seconds: float = 0) -> dict[TopicPartition, list[int]]:
        taken = await take(self.consumer, seconds, most)
        return {tp: [record.offset for record in records] for tp, records in taken.items()}

    def position(self, tp: TopicPartition) -> int:
        position: int = self.assignment.state_value(tp).position
        return position


async def test_it_takes_what_has_arrived_and_moves_the_positions_on() -> None:
    rig = Rig()
    rig.arrive(TP, Batch(0, (0, 2), 4), Batch(5, (5,), 5))
    rig.arrive(OTHER, Batch(0, (0,), 0))
    assert await rig.take() == {TP: [0, 2, 5], OTHER: [0]}
    assert (rig.position(TP), rig.position(OTHER)) == (6, 1)
    assert not rig.fetcher._records, "so that more is fetched"
    assert await rig.take() == {}


async def test_it_takes_as_many_as_were_asked_for() -> None:
    rig = Rig()
    rig.arrive(TP, Batch(0, tuple(range(5)), 4))
    rig.arrive(OTHER, Batch(0, (0,), 0))
    assert await rig.take(3) == {TP: [0, 1, 2]}
    assert rig.position(TP) == 3
    assert await rig.take(3) == {TP: [3, 4], OTHER: [0]}


async def test_what_a_pause_or_a_seek_has_made_void_is_dropped() -> None:
    rig = Rig()
    rig.arrive(TP, Batch(0, (0,), 0))
    rig.arrive(OTHER, Batch(0, (0,), 0))
    rig.assignment.state_value(TP).pause()
    rig.assignment.state_value(OTHER).seek(7)
    assert await rig.take() == {}
    assert (rig.position(TP), rig.position(OTHER)) == (0, 7)
    assert not rig.fetcher._records


async def test_an_error_is_raised_when_nothing_else_is_left_to_take() -> None:
    rig = Rig()
    rig.arrive(TP, Batch(0, (0,), 0))
    rig.fetcher._records[OTHER] = FetchError(error=OffsetOutOfRangeError({OTHER: 5}), backoff=0)
    assert await rig.take() == {TP: [0]}
    with pytest.raises(OffsetOutOfRangeError):
        await rig.take()
    assert await rig.take() == {}


async def test_it_waits_for_what_arrives() -> None:
    rig = Rig()
    waiting = asyncio.create_task(rig.take(seconds=60))
    while not rig.fetcher._fetch_waiters:  # noqa: ASYNC110 - a turn of the loop is what it waits for
        await asyncio.sleep(0)
    assert rig.subscription.fetcher_idle_time == 0, "the group is told that it polls"
    rig.arrive(TP, Batch(0, (0,), 0))
    assert await waiting == {TP: [0]}
    assert await rig.take(seconds=0.001) == {}
    await asyncio.sleep(0)
    assert not rig.fetcher._fetch_waiters


async def test_a_consumer_that_was_stopped_gives_nothing() -> None:
    rig = Rig()
    rig.consumer._closed = True
    with pytest.raises(ConsumerStoppedError):
        await rig.take()


def test_a_consumer_and_a_fetcher_have_the_private_names() -> None:
    consumer = AIOKafkaConsumer.__init__.__code__.co_names + AIOKafkaConsumer.start.__code__.co_names
    assert {"_closed", "_coordinator", "_fetcher", "_subscription"} <= set(consumer)
    assert {"_records", "_wait_consume_future", "_fetch_waiters", "_closed"} <= set(Fetcher.__init__.__code__.co_names)
