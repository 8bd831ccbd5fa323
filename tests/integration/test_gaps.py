"""Logs with holes, with markers at their end, or new under an old name: read to the end, nothing believed wrongly."""

import asyncio
import logging
from collections import Counter

import pytest
from confluent_kafka import Producer

from pyrula.kafka import Record
from pyrula.workflows import Context, step, workflow
from tests.integration.rig import Rig
from tests.services.topics import COMPACTED, Message

seen: list[int] = []
results: list[tuple[int, list[int]]] = []
release: asyncio.Event

FILLER = b""


@pytest.fixture(autouse=True)
def fresh() -> None:
    global release
    release = asyncio.Event()  # it belongs to the test's loop
    seen.clear()
    results.clear()


@workflow(name="gaps.note")
async def note(ctx: Context, value: bytes) -> None:
    if value.startswith(b"block"):
        await release.wait()
    assert ctx.record is not None
    if value != FILLER:
        seen.append(ctx.record.offset)


def keyed(count: int, keys: int = 7) -> list[Message]:
    return [Message(b"k%d" % (n % keys), b"%d" % n) for n in range(count)]


async def compact(rig: Rig) -> list[int]:
    """Offsets that a compacted input topic has left, but for filler that makes the cleaner work."""
    return [record.offset for record in await asyncio.to_thread(rig.topics.compact, rig.topic)]


async def test_a_compacted_topic_is_processed_to_its_end(rig: Rig) -> None:
    await rig.create(**{name.replace(".", "_"): value for name, value in COMPACTED.items()})
    await rig.produce(keyed(500))
    left = await compact(rig)
    assert left[0] > 400
    async with rig.running(rig.binding(note)) as running:
        await rig.until_drained()
        assert running.told("lost") == []
    assert seen == left


async def test_a_start_in_the_middle_of_a_hole(rig: Rig) -> None:
    """Record 3 blocks while later ones complete; all of them are compacted away before the next start."""
    await rig.create(**{name.replace(".", "_"): value for name, value in COMPACTED.items()})
    first = [Message(b"k%d" % n, b"block" if n == 3 else b"x") for n in range(10)]
    await rig.produce(first)
    async with rig.running(rig.binding(note)):
        await rig.until_committed(3)
        await rig.until(lambda: len(seen) == 9, "all but the blocked one to complete")
    assert await rig.offset() == 3
    seen.clear()
    await rig.produce(Message(message.key, b"later") for message in first)
    left = await compact(rig)
    assert left[0] >= 10
    async with rig.running(rig.binding(note)):
        await rig.until_drained()
    assert seen == left


@pytest.mark.parametrize("before", [0, 5])
async def test_aborted_transactions_at_the_end(rig: Rig, before: int) -> None:
    await rig.create()
    await rig.produce([b"x"] * before)
    for _ in range(2):
        await asyncio.to_thread(rig.topics.produce_transaction, rig.topic, [Message(None, b"gone")] * 3, commit=False)
    async with rig.running(rig.binding(note)) as running:
        await rig.until_drained()
        await asyncio.to_thread(rig.topics.produce_transaction, rig.topic, [Message(None, b"no")] * 3, commit=False)
        await rig.until_drained()
        await rig.produce([b"x"])
        await rig.until_drained()
        assert running.told("lost") == []
    assert seen == [*range(before), before + 12]


async def test_aborted_transactions_between_records(rig: Rig) -> None:
    await rig.create()
    for number in range(20):
        messages = [Message(b"k", b"x")] * 5
        await asyncio.to_thread(rig.topics.produce_transaction, rig.topic, messages, commit=number % 2 == 1)
    async with rig.running(rig.binding(note)):
        await rig.until_drained()
    assert seen == [offset for offset in range(120) if offset % 12 in range(6, 11)]


async def test_an_open_transaction_holds_up_nothing_before_it(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"x"] * 5)
    producer = Producer({"bootstrap.servers": rig.kafka, "transactional.id": rig.topic})
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    for value in (b"a", b"b"):
        producer.produce(rig.topic, value)
    await asyncio.to_thread(producer.flush, 30)
    await rig.produce([b"x"] * 2)
    async with rig.running(rig.binding(note)) as running:
        await rig.until_committed(5)
        await rig.until(lambda: running.worker.stats()[0].lag == 0, "no lag, for what can be read")
        assert seen == [0, 1, 2, 3, 4]
        await asyncio.to_thread(producer.commit_transaction, 30)
        await rig.until_drained()
    assert seen == list(range(9))


async def test_a_partition_with_markers_only(rig: Rig) -> None:
    """A transaction that wrote elsewhere and was aborted leaves markers and nothing to read."""
    await rig.create(partitions=2)
    for _ in range(3):
        messages = [Message(None, b"gone", partition=0)]
        await asyncio.to_thread(rig.topics.produce_transaction, rig.topic, messages, commit=False)
    await rig.produce([Message(None, b"x", partition=1)])
    await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 1})
    async with rig.running(rig.binding(note)):
        await rig.until_drained()
    assert seen == [0]


@step
async def double(number: int) -> int:
    return number * 2


@workflow(name="gaps.steps")
async def steps(ctx: Context, record: Record[int]) -> None:
    doubled = [await ctx.step(double, record.value + number) for number in (0, 1000, 2000)]
    if record.offset in range(30, 80) and record.value < 100_000:
        await release.wait()
    results.append((record.value, doubled))


def doubled(values: range) -> list[tuple[int, list[int]]]:
    return [(value, [2 * value, 2 * value + 2000, 2 * value + 4000]) for value in values]


@pytest.mark.parametrize("count", [40, 100, 250])
async def test_a_topic_made_again_meets_nothing_of_the_old_one(
    rig: Rig, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    await rig.create()
    await rig.produce(b"%d" % n for n in range(100))
    binding = rig.binding(steps)
    async with rig.running(binding):
        await rig.until(lambda: len(results) == 50, "half of the records to complete")
        await rig.until_committed(30)
        assert await rig.offset() == 30
    results.clear()
    await asyncio.to_thread(rig.topics.delete, rig.topic)
    await asyncio.to_thread(rig.topics.create, rig.topic)
    await rig.produce(b"%d" % n for n in range(100_000, 100_000 + count))
    async with rig.running(binding):
        await rig.until_drained()
    assert sorted(results) == doubled(range(100_000, 100_000 + count))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR and "pyrula" in record.name] == []


@pytest.mark.parametrize("count", [40, 100, 250])
@pytest.mark.parametrize("unfinished", [False, True])
async def test_offsets_that_outlived_their_topic(
    rig: Rig, caplog: pytest.LogCaptureFixture, unfinished: bool, count: int
) -> None:
    """A broker may keep them, or a worker commit before it knows: they are not the new topic's."""
    await rig.create()
    await rig.produce(b"%d" % n for n in range(100))
    if not unfinished:
        release.set()
    binding = rig.binding(steps)
    async with rig.running(binding):
        await rig.until(lambda: len(results) == (50 if unfinished else 100), "the old records to complete")
        await rig.until_committed(30 if unfinished else 100)
    results.clear()
    outlived = await rig.committed()
    await asyncio.to_thread(rig.topics.delete, rig.topic)
    await asyncio.to_thread(rig.topics.create, rig.topic)
    await rig.produce(b"%d" % n for n in range(100_000, 100_000 + count))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, outlived)
    async with rig.running(binding):
        await rig.until(lambda: len(results) == count, "the new records to complete")
        await rig.until_drained()
    assert sorted(results) == doubled(range(100_000, 100_000 + count))
    assert "made again" in caplog.text


@pytest.mark.parametrize("count", [40, 100, 250])
async def test_a_topic_made_again_under_a_running_worker(rig: Rig, count: int) -> None:
    """What was in progress ends only when the new topic is there already: its offsets are not the new topic's."""

    async def offsets_are_gone() -> bool:
        # none, or already those of the new topic
        return await rig.offset() != 30

    await rig.create()
    await rig.produce(b"%d" % n for n in range(100))
    async with rig.running(rig.binding(steps), drain_timeout=10.0, metadata_max_age=1.0) as running:
        await rig.until(lambda: len(results) == 50, "half of the records to complete")
        await rig.until_committed(30)
        assert await rig.offset() == 30
        results.clear()
        await asyncio.to_thread(rig.topics.delete, rig.topic)
        await rig.until(lambda: running.worker.stats()[0].partitions == 0, "the worker to notice and drain")
        await asyncio.to_thread(rig.topics.create, rig.topic)
        await rig.produce(b"%d" % n for n in range(100_000, 100_000 + count))
        await rig.until(offsets_are_gone, "the broker to forget the old topic's offsets")
        release.set()
        await rig.until(lambda: len([value for value, _ in results if value >= 100_000]) >= count, "the new records")
        await rig.until_drained()
    assert sorted(one for one in results if one[0] >= 100_000) == doubled(range(100_000, 100_000 + count))
    assert max(Counter(value for value, _ in results).values()) == 1
