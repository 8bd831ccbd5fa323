"""Records that can't be turned into a run: to the dead-letter topic as they were, and the rest goes on."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from pyrula.kafka import Record
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig
from tests.services.topics import Message, Stored

LONG_AGO = 1_234_567_890_123


class Order(BaseModel):
    id: int
    note: str = Field(default="", max_length=1_000)


seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


@workflow(name="poison.order")
async def take_order(ctx: Context, order: Order) -> None:
    seen.append(order.id)


@workflow(name="poison.maybe_order")
async def take_maybe_order(ctx: Context, order: Order | None) -> None:
    seen.append(order)


@workflow(name="poison.bytes")
async def take_bytes(ctx: Context, value: bytes) -> None:
    seen.append(value)


@workflow(name="poison.maybe_bytes")
async def take_maybe_bytes(ctx: Context, value: bytes | None) -> None:
    seen.append(value)


@workflow(name="poison.record")
async def take_record(ctx: Context, record: Record[Order]) -> None:
    seen.append((record.key, record.value.id, record.headers, record.timestamp_ms))


@workflow(name="poison.maybe_record")
async def take_maybe_record(ctx: Context, record: Record[Order | None]) -> None:
    seen.append((record.key, record.value))


@workflow(name="poison.dict")
async def take_dict(ctx: Context, value: dict) -> None:  # type: ignore[type-arg]
    seen.append(value)


@workflow(name="poison.text")
async def take_text(ctx: Context, value: str) -> None:
    seen.append(value)


def good(number: int) -> Message:
    return Message(b"k%d" % (number % 5), b'{"id": %d}' % number)


def bad() -> list[Message]:
    """Twenty records that no Order can be read from, each in another way or with other things around it."""
    headers = (("h", b"1"), ("h", b"2"), ("none", None), ("pyrula-dlq-reason", b"an old one"), ("\u00e9", b"\xff\x00"))
    values = [
        b"not JSON",
        b'{"id": "many"}',
        b'{"id": 1, "note": "' + b"x" * 2_000 + b'"}',
        b'{"id": 1',
        b"",
        b"\xff\xfe\x00",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"id": NaN}',
        b'{"id": 1, "note": "\\ud800"}',
        b'{"note": "no id"}',
        b"[1]",
        b"null",
        b'"\x00"',
        random.randbytes(200),
        None,
        b'{"id": 1e400}',
        b'{"id": 1} {"id": 2}',
        b"0x1",
        b'{"id": {}}',
        b'{"id": 1, "note": ' + b'"' + b"y" * 900_000 + b'"}',
    ]
    keys = [b"k0", None, b"", b"\xff", b"k1"]
    return [
        Message(keys[number % 5], value, headers[: number % 6], timestamp_ms=LONG_AGO + number)
        for number, value in enumerate(values)
    ]


def as_sent(record: Stored | Message) -> tuple[Any, ...]:
    """Key, value, headers of the sender and timestamp, for comparison."""
    headers = tuple(one for one in record.headers if not one[0].startswith("pyrula-dlq-"))
    return record.key, record.value, headers, record.timestamp_ms


def told(record: Stored) -> dict[str, str]:
    """Pyrula's own headers; none of them may be there twice."""
    ours = [(name[len("pyrula-dlq-") :], value) for name, value in record.headers if name.startswith("pyrula-dlq-")]
    assert len(ours) == len(dict(ours)), ours
    return {name: (value or b"").decode() for name, value in ours}


async def test_twenty_bad_among_a_thousand_good(rig: Rig) -> None:
    await rig.create(partitions=3)
    records = [good(number) for number in range(1_000)]
    wrong = bad()
    places = sorted(random.sample(range(1_000), len(wrong)))
    for place, record in zip(reversed(places), reversed(wrong), strict=True):
        records.insert(place, record)
    await rig.produce(records)
    async with rig.running(rig.binding(take_order)) as running:
        await rig.until_drained()
        (stats,) = running.worker.stats()
        assert (stats.completed, stats.failed, stats.dead_lettered, stats.retried) == (1_000, 20, 20, 0)
        assert {event.attempt for event in running.told("dead_lettered")} == {0}
    assert sorted(seen) == list(range(1_000))
    letters = await rig.read(rig.letters)
    assert sorted(map(repr, map(as_sent, letters))) == sorted(map(repr, map(as_sent, wrong)))
    inputs = {(record.partition, record.offset): record for record in await rig.read(rig.topic)}
    for letter in letters:
        words = told(letter)
        origin = inputs[int(words["partition"]), int(words["offset"])]
        assert as_sent(origin) == as_sent(letter)
        assert (words["topic"], words["group"], words["workflow"]) == (rig.topic, rig.group, "poison.order")
        assert (words["reason"], words["attempts"]) == ("undecodable", "0")
        assert words["timestamp"] == str(origin.timestamp_ms)
        assert "poison.order" in words["message"]


@pytest.mark.parametrize(
    ("workflow", "value", "expected"),
    [
        (take_maybe_order, None, None),
        (take_maybe_bytes, None, None),
        (take_maybe_bytes, b"", b""),
        (take_bytes, b"", b""),
        (take_text, b"", ""),
        (take_maybe_record, None, (b"k", None)),
        (take_dict, b'{"a": 1, "a": 2}', {"a": 2}),
    ],
    ids=["model", "bytes", "empty bytes", "empty", "empty text", "record", "duplicate keys"],
)
async def test_what_an_annotation_admits_runs(rig: Rig, workflow: Any, value: bytes | None, expected: Any) -> None:
    await rig.create()
    await rig.produce([Message(b"k", value)])
    async with rig.running(rig.binding(workflow)):
        await rig.until_drained()
    assert seen == [expected]
    assert await rig.read(rig.letters) == []


@pytest.mark.parametrize("workflow", [take_order, take_bytes, take_record, take_dict, take_text])
async def test_a_null_value_stays_null(rig: Rig, workflow: Any) -> None:
    await rig.create()
    await rig.produce([Message(b"k", None, (("h", None),), timestamp_ms=LONG_AGO)])
    async with rig.running(rig.binding(workflow)):
        await rig.until_drained()
    assert seen == []
    (letter,) = await rig.read(rig.letters)
    assert as_sent(letter) == (b"k", None, (("h", None),), LONG_AGO)
    assert "null" in told(letter)["message"]


async def test_headers_and_odd_timestamps_are_no_failure(rig: Rig) -> None:
    await rig.create()
    headers = (("h", b"1"), ("h", b"2"), ("n", None), ("e", b""))
    await rig.produce([Message(b"", b'{"id": 1}', headers, timestamp_ms=1)])
    async with rig.running(rig.binding(take_record)):
        await rig.until_drained()
    assert seen == [(b"", 1, headers, 1)]
    assert await rig.read(rig.letters) == []


def refuse(value: bytes | None) -> Any:
    raise RuntimeError("no such schema")


def overflow(value: bytes | None) -> Any:
    return overflow(value)


@pytest.mark.parametrize("decode", [refuse, overflow])
async def test_a_serde_that_raises_is_a_bad_record(rig: Rig, decode: Callable[[bytes | None], Any]) -> None:
    class Broken:
        def decode(self, data: bytes | None) -> Any:
            return decode(data) if data == b"bad" else data

    await rig.create()
    await rig.produce([b"1", b"bad", b"2"])
    async with rig.running(rig.binding(take_bytes, value_serde=Broken())):
        await rig.until_drained()
    assert seen == [b"1", b"2"]
    assert [letter.value for letter in await rig.read(rig.letters)] == [b"bad"]


async def test_a_bad_record_that_is_skipped_is_told(rig: Rig) -> None:
    await rig.create(letters=False)
    await rig.produce([good(1).value, b"bad", good(2).value])
    async with rig.running(rig.binding(take_order, on_failure="skip")) as running:
        await rig.until_drained()
        (event,) = running.told("skipped")
        assert event.offset == 1
        assert "not JSON" in (event.error or "")
        assert running.health.state == "healthy"
    assert seen == [1, 2]


async def test_a_bad_record_stops_its_lane_if_asked_to(rig: Rig) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"bad"), Message(b"a", good(1).value), Message(b"b", good(2).value)])
    async with rig.running(rig.binding(take_order, on_failure="stop")) as running:
        await rig.until(lambda: seen == [2] and running.told("stopped"), "the other lane to go on")
        assert "offset 0" in running.reasons
        assert "not JSON" in running.reasons
    assert await rig.offset() == 0
    assert seen == [2]


async def test_records_larger_than_a_fetch_are_read(rig: Rig) -> None:
    await rig.create(max_message_bytes="6000000")
    large = b"x" * 3_000_000
    await rig.produce([large, b"1", large, large, b"2"], **{"message.max.bytes": 6_000_000})
    async with rig.running(rig.binding(take_bytes, ordering="partition")):
        await rig.until_drained()
    assert seen == [large, b"1", large, large, b"2"]


@pytest.mark.parametrize("room", [None, 8_000_000], ids=["refused", "taken"])
async def test_a_bad_record_that_is_larger_than_a_producer_sends(rig: Rig, room: int | None) -> None:
    """Held and named until the options let it through."""
    await rig.create(letters=False, max_message_bytes="6000000")
    await asyncio.to_thread(rig.topics.create, rig.letters, config={"max.message.bytes": "6000000"})
    large = b'{"id": "' + b"x" * 3_000_000
    await rig.produce([Message(b"a", large), good(1)], **{"message.max.bytes": 6_000_000})
    async with rig.running(rig.binding(take_order)) as running:
        await rig.until(lambda: running.told("stopped") and seen == [1], "the record to be held")
        assert "max_request_size" in running.reasons
    assert await rig.offset() == 0
    if room is not None:
        async with rig.running(rig.binding(take_order), max_request_size=room):
            await rig.until_drained()
        (letter,) = await rig.read(rig.letters)
        assert letter.value == large


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_are_read(rig: Rig, codec: str) -> None:
    if codec != "gzip":
        pytest.importorskip("cramjam", reason="pyrula[compression] is not installed")
    await rig.create()
    await rig.produce([good(number) for number in range(100)], **{"compression.type": codec})
    async with rig.running(rig.binding(take_order)):
        await rig.until_drained()
    assert sorted(seen) == list(range(100))


async def test_a_batch_that_cannot_be_decompressed_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.create()
    await rig.produce([good(number) for number in range(100)], **{"compression.type": "zstd"})
    monkeypatch.setattr("aiokafka.codec.has_zstd", lambda: False)
    monkeypatch.setattr("pyrula.kafka.consume.UNREADABLE_SECONDS", 0.5)
    async with rig.running(rig.binding(take_order)) as running:
        await rig.until(lambda: running.health.state == "unhealthy", "health to tell")
        for words in ("at offset 0", "zstd", "pyrula[compression]"):
            assert words in running.reasons
        assert await rig.offset() == 0
        monkeypatch.undo()
        await rig.until_drained()
        assert running.health.state == "healthy"
    assert sorted(seen) == list(range(100))


async def test_a_batch_that_cannot_be_read_costs_no_record_of_other_partitions(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client takes the records of several partitions out at once, and loses them when one can't be read."""
    monkeypatch.setattr("aiokafka.codec.has_zstd", lambda: False)
    monkeypatch.setattr("pyrula.kafka.consume.UNREADABLE_SECONDS", 0.05)
    await rig.create(partitions=4)
    await rig.produce((Message(None, b'{"id": 0}', partition=0) for _ in range(100)), **{"compression.type": "zstd"})
    count = 3_000
    async with rig.running(rig.binding(take_order), fetch_max_wait=0.01) as running:
        for start in range(0, count, 500):
            records = (Message(None, b'{"id": %d}' % n, partition=1 + n % 3) for n in range(start, start + 500))
            await rig.produce(records, **{"batch.num.messages": 5})
        for partition in (1, 2, 3):
            await rig.until_committed(count // 3, partition)
        assert running.health.state == "unhealthy"
    assert sorted(seen) == list(range(count))
    assert await rig.offset(0) == 0
