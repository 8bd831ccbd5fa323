"""What is committed, what it means at the next start, and what else may stand there."""

import asyncio
import base64
import logging
import random
from collections import Counter
from collections.abc import Callable
from zlib import crc32

import pytest

from pyrula.kafka.commit_map import CommitMap, decode, encode
from pyrula.kafka.record import Witness
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig
from tests.services.kafka import KafkaServer
from tests.services.topics import Committed, Message

RECORDS = 10


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class Seen:
    """A workflow that counts how often the body of each record ran, and fails or blocks where it is told to."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.failing: set[int] = set()
        self.blocked: set[int] = set()
        self.go = asyncio.Event()

        @workflow(name="offsets.seen")
        async def seen(ctx: Context, n: int) -> None:
            self.runs[n] += 1
            if n in self.failing:
                raise ValueError(f"record {n} always fails")
            if n in self.blocked:
                await self.go.wait()

        self.workflow = seen


def map_of(ranges: list[tuple[int, int]], committed: int = 3, highest: int | None = None) -> str:
    witness = Witness(ranges[-1][1] - 1 if highest is None else highest, "18bcfe56800.~.00000000")
    return encode(committed, ranges, witness, "a store")


def newer() -> str:
    return map_of([(4, 6)]).replace("pyrula1:", "pyrula2:")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (lambda: "hello", "not written by Pyrula"),
        (lambda: base64.b64encode(random.randbytes(60)).decode(), "not written by Pyrula"),
        (lambda: map_of([(4, 6)])[:-7], "damaged"),
        (newer, "version 2"),
        (lambda: map_of([(3, 3 + (1 << 31))]), "the log ends at 10"),
        (lambda: map_of([(4, 11)]), "the log ends at 10"),
        (lambda: map_of([(4, 6)], committed=2), "written for a commit at offset 2"),
        (lambda: map_of([(4, 6)]), "above the committed offset isn't what it was"),
    ],
    ids=["words", "random", "truncated", "newer", "billions", "past the end", "another commit's", "another log's"],
)
async def test_metadata_that_cannot_be_trusted_costs_no_record(
    rig: Rig, caplog: pytest.LogCaptureFixture, metadata: Callable[[], str], said: str
) -> None:
    await rig.create()
    await rig.produce(numbered(RECORDS))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(3, metadata())})
    seen = Seen()
    async with rig.running(rig.binding(seen.workflow)):
        await rig.until_drained()
    assert seen.runs == Counter(range(3, RECORDS))
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and said in r.getMessage()]
    assert len(warnings) == 1, caplog.text


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("committed", "ranges", "witness"),
    [(3, [(4, 6)], 5), (6, [], 5), (3, [(4, 60)], 59), (60, [], 59)],
    ids=["witness above", "witness below", "witness past the end", "committed past the end"],
)
async def test_a_log_that_was_cut_is_told_from_one_made_again(
    rig: Rig,
    caplog: pytest.LogCaptureFixture,
    committed: int,
    ranges: list[tuple[int, int]],
    witness: int,
    cut: bool,
) -> None:
    """The witness is another record than before; the anchor, at 1, is the same if the log was only cut."""
    await rig.create()
    await rig.produce(Message(None, value, timestamp_ms=1_700_000_000_000) for value in numbered(RECORDS))
    print_of = "18bcfe56800.~.{:08x}".format
    anchor = Witness(1, print_of(crc32(b"1" if cut else b"x")))
    text = encode(committed, ranges, Witness(witness, print_of(crc32(b"x"))), "a store", anchor=anchor)
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(committed, text)})
    seen = Seen()
    first = 2 if cut else 0
    async with rig.running(rig.binding(seen.workflow)):
        await rig.until(lambda: len(seen.runs) == RECORDS - first, "the records to run")
        await rig.until_drained()
    assert seen.runs == Counter(range(first, RECORDS))
    assert f"processing starts at {first}" in caplog.text


async def test_a_failed_record_is_never_overtaken(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(11))
    seen = Seen()
    seen.failing = {3}
    binding = rig.binding(seen.workflow, ordering="unordered", on_failure="stop")
    async with rig.running(binding) as running:
        await rig.until(
            lambda: running.told("stopped") and len(running.told("completed")) == 10, "all others to complete"
        )
        await rig.until_committed(3)
        assert "offset 3" in running.reasons
        assert running.health.state == "degraded"
    assert await rig.offset() == 3
    async with rig.running(binding) as running:
        await rig.until(lambda: running.told("stopped"), "record 3 to have run again")
    assert await rig.offset() == 3
    assert seen.runs == Counter({n: 1 for n in range(11) if n != 3} | {3: 2})
    seen.failing = set()
    async with rig.running(binding) as running:
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to forget the record")
    assert seen.runs[3] == 3
    assert sum(seen.runs.values()) == 13
    assert await rig.read(rig.letters) == []


async def test_nothing_is_committed_for_a_body_that_has_not_ended(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(1))
    seen = Seen()
    seen.blocked = {0}
    async with rig.running(rig.binding(seen.workflow)):
        await rig.until(lambda: seen.runs[0], "the body to start")
    assert await rig.offset() == 0
    seen.blocked = set()
    async with rig.running(rig.binding(seen.workflow)) as running:
        await rig.until_drained()
        assert [event.attempt for event in running.told("completed")] == [1]
    assert await rig.read(rig.letters) == []


async def test_a_group_without_offsets_starts_where_its_binding_says(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(5))
    seen = Seen()
    async with rig.running(rig.binding(seen.workflow, auto_offset_reset="latest")):
        await rig.until_committed(5)
        await rig.produce([b"5"])
        await rig.until_committed(6)
    assert seen.runs == Counter([5])


async def test_a_topic_that_is_made_later_is_read_soon(rig: Rig) -> None:
    seen = Seen()
    async with rig.running(rig.binding(seen.workflow)) as running:
        await rig.until(lambda: f"topic {rig.topic} of binding" in running.reasons, "health to name the topic")
        await rig.create()
        await rig.produce(numbered(5))
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to recover")
    assert seen.runs == Counter(range(5))


async def test_an_offset_that_aged_out_is_told_and_left(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.create()
    await rig.produce(numbered(10))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(2, "")})
    await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 10})
    seen = Seen()
    async with rig.running(rig.binding(seen.workflow)) as running:
        # No record follows, yet the lag is that of an idle partition.
        await rig.until_committed(10)
        (lost,) = await rig.until(lambda: running.told("lost"), "the loss to be told")
        assert (lost.offset, lost.error) == (2, "8 offsets from 2 to 9 were deleted by retention before they were read")
        await rig.produce(b"%d" % n for n in range(10, 15))
        await rig.until_drained()
    assert seen.runs == Counter(range(10, 15))
    assert "8 offsets from 2 to 9" in caplog.text


@pytest.mark.parametrize("policy", ["earliest", "stop"])
async def test_an_offset_past_the_end_means_another_log(
    rig: Rig, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    await rig.create()
    await rig.produce(numbered(10))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(500, "")})
    seen = Seen()
    async with rig.running(rig.binding(seen.workflow, on_out_of_range=policy)) as running:
        if policy == "stop":
            await rig.until(lambda: running.health.state == "unhealthy", "health to tell")
            assert "past the log's end 10" in running.reasons
        else:
            await rig.until(lambda: len(seen.runs) == 10, "all records to run")
            await rig.until_drained()
    assert seen.runs == Counter([] if policy == "stop" else range(10))
    assert "past the log's end 10" in caplog.text


async def test_a_changed_binding_runs_nothing_again_that_was_done(rig: Rig) -> None:
    await rig.create()
    await rig.produce(Message(b"k%d" % (n % 9), b"%d" % n) for n in range(100))
    seen = Seen()
    seen.blocked = {3}
    async with rig.running(rig.binding(seen.workflow, ordering="unordered")) as running:
        await rig.until(lambda: len(running.told("completed")) == 99, "all others to complete")
        await rig.until_committed(3)
    others: list[int] = []

    @workflow(name="offsets.another", version="7")
    async def another(ctx: Context, n: int) -> None:
        others.append(n)

    async with rig.running(rig.binding(another, max_concurrency=3, ordering="partition", on_failure="stop")):
        await rig.until_drained()
    assert others == [3]


async def test_what_was_done_above_an_offset_that_aged_out_stays_done(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(100))
    seen = Seen()
    seen.blocked = {3, 70}
    async with rig.running(rig.binding(seen.workflow)) as running:
        await rig.until(lambda: len(running.told("completed")) == 98, "all others to complete")
        await rig.until_committed(3)
    await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 50})
    seen.go.set()
    async with rig.running(rig.binding(seen.workflow)) as running:
        await rig.until_drained()
        (lost,) = running.told("lost")
        assert (lost.offset, lost.error) == (
            3,
            "47 offsets from 3 to 49 were deleted by retention before they were read",
        )
    assert {n for n, count in seen.runs.items() if count > 1} == {70}


async def test_an_offset_that_aged_out_stops_a_partition_if_asked_to(rig: Rig) -> None:
    await rig.create(partitions=2)
    await rig.produce(Message(None, value, partition=n % 2) for n, value in enumerate(numbered(20)))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(2, "")})
    await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 5})
    seen = Seen()
    async with rig.running(rig.binding(seen.workflow, on_out_of_range="stop")) as running:
        await rig.until_committed(10, partition=1)
        await rig.until(lambda: running.health.state == "unhealthy", "health to tell")
        assert "3 offsets from 2 to 4 are lost to retention" in running.reasons
    assert seen.runs == Counter(range(1, 20, 2))
    assert await rig.offset(0) == 2


@pytest.mark.parametrize("policy", ["earliest", "stop"])
async def test_what_retention_takes_while_a_partition_is_not_read(rig: Rig, policy: str) -> None:
    await rig.create()
    await rig.produce(numbered(200), **{"batch.num.messages": 5})
    seen = Seen()
    seen.blocked = set(range(200))
    binding = rig.binding(seen.workflow, max_concurrency=4, on_out_of_range=policy)
    async with rig.running(binding, buffer_records=20, max_partition_fetch_bytes=500) as running:
        await rig.until(lambda: running.worker.stats()[0].buffered >= 20, "the partition to be full")
        await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 190})
        seen.go.set()
        if policy == "stop":
            await rig.until(lambda: "are lost to retention" in running.reasons, "health to tell")
            assert running.health.state == "unhealthy"
            await rig.until_committed(len(seen.runs))
        else:
            await rig.until_drained()
            (lost,) = running.told("lost")
            assert f"{190 - lost.offset} offsets from {lost.offset} to 189" in (lost.error or "")
            assert seen.runs == Counter([*range(lost.offset), *range(190, 200)])
    assert 20 <= len(seen.runs) < 190


async def test_a_broker_that_takes_little_metadata(valkey: str, topic_prefix: str, namespace: str) -> None:
    with KafkaServer({"offset.metadata.max.bytes": "256"}) as server:
        await live_with_little_metadata(Rig(server.bootstrap, valkey, topic_prefix, namespace), 256)


async def test_a_broker_that_takes_hardly_any_metadata(valkey: str, topic_prefix: str, namespace: str) -> None:
    with KafkaServer({"offset.metadata.max.bytes": "8"}) as server:
        await live_with_little_metadata(Rig(server.bootstrap, valkey, topic_prefix, namespace), 8)


async def live_with_little_metadata(rig: Rig, limit: int) -> None:
    count = 4_000
    await rig.create()
    await rig.produce(numbered(count))
    seen = Seen()
    seen.blocked = set(range(0, count, 2))
    async with rig.running(rig.binding(seen.workflow, max_concurrency=count)) as running:
        await rig.until(lambda: len(running.told("completed")) == count // 2, "every second record to complete")

        async def fitting() -> bool:
            committed = (await rig.committed()).get(0)
            if committed is None or committed.offset or len(committed.metadata) > limit:
                return False
            found = decode(committed.metadata, 0, count)
            return limit < 40 or bool(getattr(found, "ranges", ()))

        await rig.until(fitting, "a map that fits to be committed")
        seen.go.set()
        await rig.until_drained()
        assert running.health.state == "healthy"
    assert seen.runs == Counter(range(count))


async def test_what_the_metadata_has_no_room_for_is_in_the_journal(
    valkey: str, topic_prefix: str, namespace: str
) -> None:
    """Every third record blocks; after a restart only these run again, though the map tells of a small part."""
    count = 4_000
    blocked = set(range(0, count, 3))
    with KafkaServer({"offset.metadata.max.bytes": "256"}) as server:
        rig = Rig(server.bootstrap, valkey, topic_prefix, namespace)
        await rig.create()
        await rig.produce(numbered(count))
        first = Seen()
        first.blocked = blocked
        async with rig.running(rig.binding(first.workflow, max_concurrency=count)) as running:
            await rig.until(lambda: len(running.told("completed")) == count - len(blocked), "the others to complete")

            async def committed() -> bool:
                at = (await rig.committed()).get(0)
                return at is not None and bool(getattr(decode(at.metadata, 0, count), "ranges", ()))

            await rig.until(committed, "a map to be committed")
        told = decode((await rig.committed())[0].metadata, 0, count)
        assert isinstance(told, CommitMap)
        assert told.ranges[-1][1] < count // 2
        second = Seen()
        async with rig.running(rig.binding(second.workflow, max_concurrency=count)):
            await rig.until_drained()
        assert second.runs == Counter(blocked)


async def test_what_the_journal_tells_is_forgotten_when_offsets_are_reset(
    valkey: str, topic_prefix: str, namespace: str
) -> None:
    count = 2_000
    with KafkaServer({"offset.metadata.max.bytes": "256"}) as server:
        rig = Rig(server.bootstrap, valkey, topic_prefix, namespace)
        await rig.create()
        await rig.produce(numbered(count))
        first = Seen()
        first.blocked = set(range(0, count, 3))
        async with rig.running(rig.binding(first.workflow, max_concurrency=count)) as running:
            done = count - len(first.blocked)
            await rig.until(lambda: len(running.told("completed")) == done, "the others to complete")
        rig.topics.commit(rig.group, rig.topic, {0: Committed(0, "")})
        for _ in range(2):
            # the second time the metadata is ours again
            again = Seen()
            again.blocked = set(range(count))
            async with rig.running(rig.binding(again.workflow, max_concurrency=count)):
                await rig.until(lambda again=again: len(again.runs) == count, "all to begin")
