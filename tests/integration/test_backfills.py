"""Backfills on a real broker and store: exactly the range, whatever the log looks like, and nothing else touched."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
import redis
from confluent_kafka import Producer

from pyrula.kafka import Backfill, Binding, KafkaOptions, KafkaWorker, Record
from pyrula.workflows import (
    BackfillRefused,
    BackfillReport,
    ConfigurationError,
    Context,
    MemoryStore,
    StoreUnavailable,
    step,
    workflow,
)
from pyrula.workflows.backfills import Boundary
from tests.integration.rig import OPTIONS, Rig
from tests.services.topics import COMPACTED, Committed, Message

seen: list[tuple[int, int]] = []
notes: list[tuple[str, Any]] = []
release: asyncio.Event


@pytest.fixture(autouse=True)
def fresh() -> None:
    global release
    release = asyncio.Event()  # it belongs to the test's loop
    seen.clear()
    notes.clear()


@workflow(name="backfill.note")
async def note(ctx: Context) -> None:
    assert ctx.record is not None
    seen.append((ctx.record.partition, ctx.record.offset))


def worker_of(rig: Rig, *bindings: Binding, **options: Any) -> KafkaWorker:
    kafka = KafkaOptions(bootstrap_servers=rig.kafka, **{**OPTIONS, **options})
    return KafkaWorker(bindings or [rig.binding(note)], store=rig.store(), kafka=kafka)


async def run(rig: Rig, backfill: Backfill, *bindings: Binding, **options: Any) -> BackfillReport:
    """A backfill by itself, to its end."""
    async with asyncio.timeout(60):
        return await worker_of(rig, *bindings, **options).backfill(backfill)


def numbered(count: int, partitions: int = 1, keys: int = 7, **more: Any) -> list[Message]:
    return [Message(b"k%d" % (n % keys), b"%d" % n, partition=n % partitions, **more) for n in range(count)]


async def test_a_range_of_offsets(rig: Rig) -> None:
    await rig.create(partitions=3)
    await rig.produce(numbered(300, 3))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(7, ""), 2: Committed(9, "mine")})
    before = await rig.committed()
    report = await run(rig, Backfill(rig.binding(note), start=10, end=60))
    assert sorted(seen) == [(p, o) for p in range(3) for o in range(10, 60)]
    assert report.status == "completed"
    assert (report.read, report.matched, report.completed, report.failed, report.skipped) == (150, 150, 150, 0, 0)
    ends = [(one.partition, one.first_offset, one.last_offset) for one in report.partitions]
    assert ends == [(p, 10, 59) for p in range(3)]
    assert await rig.committed() == before


async def test_partitions_can_be_chosen(rig: Rig) -> None:
    await rig.create(partitions=4)
    await rig.produce(numbered(40, 4))
    report = await run(rig, Backfill(note, rig.topic, [3, 1]))
    assert sorted(seen) == [(p, o) for p in (1, 3) for o in range(10)]
    assert [one.partition for one in report.partitions] == [1, 3]


async def test_records_that_arrive_later_are_not_of_it(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(20))
    worker = worker_of(rig)
    async with asyncio.timeout(60):
        await worker.backfill(Backfill(note, rig.topic, id="early"))
        await rig.produce(numbered(20))
        report = await worker.backfill(Backfill(note, rig.topic, id="early"))
    assert report.status == "completed"
    assert seen == [(0, offset) for offset in range(20)]


HOUR = 3600_000
T0 = 1_700_000_000_000


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (moment(T0 + 10 * HOUR), moment(T0 + 20 * HOUR), range(10, 20)),
        (moment(T0 + 10 * HOUR + 1), moment(T0 + 20 * HOUR + 1), range(11, 21)),
        (moment(T0 + 10 * HOUR - 1).isoformat(), moment(T0 + 20 * HOUR - 1).isoformat(), range(10, 20)),
        (moment(T0 - HOUR), moment(T0), range(0)),
        ("1970-01-01T00:00:00Z", moment(T0 + 1), range(1)),
        (moment(T0 + 28 * HOUR), "9999-12-31T23:59:59Z", range(28, 30)),
        (moment(T0 + 29 * HOUR + 1), "latest", range(0)),
        ("9999-01-01T00:00:00Z", "9999-12-31T00:00:00Z", range(0)),
        ("latest", "latest", range(0)),
        (25, moment(T0 + 27 * HOUR), range(25, 27)),
        (25, moment(T0), range(0)),
        (moment(T0 + 28 * HOUR), 29, range(28, 29)),
        (100, 200, range(0)),
        (27, 2**40, range(27, 30)),
        (timedelta(days=36500), timedelta(hours=1), range(30)),
        ("1h", "latest", range(0)),
    ],
)
async def test_a_range_of_times(rig: Rig, start: Boundary, end: Boundary, expected: range) -> None:
    """One record an hour, in the past; ends that are between records, before the first, after the last, in the future.
    An empty partition has no record for any time."""
    await rig.create(partitions=2)
    await rig.produce(Message(b"k", b"%d" % n, partition=0, timestamp_ms=T0 + n * HOUR) for n in range(30))
    report = await run(rig, Backfill(note, rig.topic, start=start, end=end))
    assert seen == [(0, offset) for offset in expected]
    assert (report.status, report.read) == ("completed", len(expected))
    first = report.partitions[0]
    assert first.first_time == (moment(T0 + expected[0] * HOUR) if expected else None)
    assert first.last_time == (moment(T0 + expected[-1] * HOUR) if expected else None)
    assert (report.partitions[1].state, report.partitions[1].read) == ("done", 0)


async def test_a_compacted_topic_is_run_to_its_end(rig: Rig) -> None:
    await rig.create(**{name.replace(".", "_"): value for name, value in COMPACTED.items()})
    await rig.produce(numbered(500))
    left = [record.offset for record in await asyncio.to_thread(rig.topics.compact, rig.topic)]
    assert left[0] > 400
    report = await run(rig, Backfill(note, rig.topic))
    # what comes after them has made the cleaner work
    assert [offset for _, offset in seen if offset < 500] == left
    assert (report.status, report.completed, report.lost) == ("completed", len(seen), 0)
    assert report.partitions[0].position == report.partitions[0].end
    # an end that lies in a hole
    seen.clear()
    report = await run(rig, Backfill(note, rig.topic, start=0, end=300))
    assert (report.status, report.read, seen) == ("completed", 0, [])
    assert report.partitions[0].position == 300


async def test_transactions_and_their_markers(rig: Rig) -> None:
    """Aborted records and markers are passed, also where the log ends with them."""
    await rig.create()
    for number in range(6):
        messages = [Message(b"k", b"x")] * 5
        await asyncio.to_thread(rig.topics.produce_transaction, rig.topic, messages, commit=number % 2 == 1)
    for _ in range(2):
        await asyncio.to_thread(rig.topics.produce_transaction, rig.topic, [Message(None, b"no")] * 3, commit=False)
    expected = [offset for offset in range(36) if offset % 12 in range(6, 11)]
    report = await run(rig, Backfill(note, rig.topic))
    assert [offset for _, offset in seen] == expected
    assert (report.status, report.read, report.partitions[0].position) == ("completed", 15, 44)


async def test_an_open_transaction_ends_the_range(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"1"] * 5)
    producer = Producer({"bootstrap.servers": rig.kafka, "transactional.id": rig.topic})
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    producer.produce(rig.topic, b"open")
    await asyncio.to_thread(producer.flush, 30)
    await rig.produce([b"1"] * 2)
    report = await run(rig, Backfill(note, rig.topic, end=7))
    assert [offset for _, offset in seen] == [0, 1, 2, 3, 4]
    assert (report.status, report.partitions[0].end) == ("completed", 5)
    await asyncio.to_thread(producer.abort_transaction, 30)


@step
async def hold(offset: int) -> None:
    if offset >= 20:
        await release.wait()


@workflow(name="backfill.holding")
async def holding(ctx: Context) -> None:
    assert ctx.record is not None
    await ctx.step(hold, ctx.record.offset)
    seen.append((ctx.record.partition, ctx.record.offset))


async def test_retention_that_takes_the_head_is_reported(rig: Rig) -> None:
    """It deletes what is to be read next while the backfill waits for a body, and some more before it begins."""
    await rig.create(segment_bytes="1048576")
    await rig.produce(Message(b"k", b"%0100000d" % n) for n in range(60))
    await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 5})
    options = {"buffer_records": 4, "max_partition_fetch_bytes": 150_000, "buffer_bytes": 300_000}
    task = asyncio.create_task(run(rig, Backfill(rig.binding(holding), start=0, max_concurrency=1), **options))
    await rig.until(lambda: len(seen) == 15, "the backfill to wait at record 20")
    await asyncio.to_thread(rig.topics.delete_records, rig.topic, {0: 50})
    release.set()
    report = await task
    offsets = [offset for _, offset in seen]
    assert offsets[:15] == list(range(5, 20))
    assert offsets[-10:] == list(range(50, 60))
    assert report.status == "completed"
    assert report.read == report.completed == len(offsets)
    assert report.lost == 60 - len(offsets)
    assert 5 < report.lost <= 35
    assert "offsets 0 to 4 had been deleted by retention" in report.partitions[0].note


async def test_a_log_that_is_cut_or_made_again_below_the_range(rig: Rig) -> None:
    """The rest of the range will never come, so the backfill ends and says so."""
    await rig.create()
    await rig.produce(numbered(60))
    options = {"buffer_records": 4, "metadata_max_age": 1.0}
    backfill = Backfill(rig.binding(holding), max_concurrency=1, id="cut")
    worker = worker_of(rig, **options)
    first = asyncio.create_task(worker.backfill(backfill))
    await rig.until(lambda: len(seen) == 20, "the backfill to wait at record 20")
    first.cancel()
    await asyncio.wait([first])
    await asyncio.to_thread(rig.topics.delete, rig.topic)
    await asyncio.to_thread(rig.topics.create, rig.topic)
    release.set()
    async with asyncio.timeout(60):
        report = await worker.backfill(backfill)
    assert report.status == "completed"
    assert "the log was cut: it ends at offset 0, and the range at 60" in report.partitions[0].note
    assert report.lost == 60 - report.read
    assert report.read <= 20 + 4 + 200


async def test_a_topic_that_is_deleted_while_it_is_read(rig: Rig) -> None:
    await rig.create()
    await rig.produce(Message(b"k", b"%0100000d" % n) for n in range(60))
    options = {
        "buffer_records": 4,
        "max_partition_fetch_bytes": 150_000,
        "buffer_bytes": 300_000,
        "metadata_max_age": 1.0,
    }
    task = asyncio.create_task(run(rig, Backfill(rig.binding(holding), max_concurrency=1), **options))
    await rig.until(lambda: len(seen) == 20, "the backfill to wait at record 20")
    await asyncio.to_thread(rig.topics.delete, rig.topic)
    release.set()
    report = await task
    assert (report.status, report.partitions[0].state) == ("failed", "stuck")
    assert "was deleted while the backfill ran" in report.problem
    assert 20 < report.completed == len(seen) < 60


async def test_a_topic_made_again_is_another_one(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(60))
    backfill = Backfill(rig.binding(holding), max_concurrency=1, id="again")
    worker = worker_of(rig)
    first = asyncio.create_task(worker.backfill(backfill))
    await rig.until(lambda: len(seen) == 20, "the backfill to wait at record 20")
    first.cancel()
    await asyncio.wait([first])
    await asyncio.to_thread(rig.topics.delete, rig.topic)
    await asyncio.to_thread(rig.topics.create, rig.topic)
    await rig.produce(Message(b"new", b"1") for _ in range(80))
    release.set()
    async with asyncio.timeout(60):
        report = await worker.backfill(backfill)
    assert report.status == "failed"
    assert "was made again since the backfill began: offset 19 holds another record" in report.problem
    assert len(seen) == 20


@workflow(name="backfill.value")
async def value_of(ctx: Context, value: int) -> int:
    assert ctx.record is not None
    notes.append(((ctx.record.key or b"").decode(), value))
    if value % 10 == 3:
        raise ValueError(f"{value} ends in 3")
    return value * 2


def is_even(record: Record[Any]) -> bool:
    return bool(record.value % 2 == 0)


def has_key_k1(record: Record[bytes]) -> bool:
    return record.key == b"k1" and isinstance(record.value, bytes)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (is_even, lambda n: n % 2 == 0),
        (has_key_k1, lambda n: n % 7 == 1),
        (f"{__name__}:is_even", lambda n: n % 2 == 0),
        (lambda record: record.offset > 50, lambda n: n > 50),
        (lambda record: False, lambda n: False),
    ],
    ids=["json", "bytes", "by name", "lambda", "none"],
)
async def test_where_chooses_records(rig: Rig, where: Any, expected: Callable[[int], bool]) -> None:
    await rig.create()
    await rig.produce(numbered(100))
    report = await run(rig, Backfill(note, rig.topic, where=where))
    chosen = [n for n in range(100) if expected(n)]
    assert [offset for _, offset in seen] == chosen
    assert (report.status, report.read, report.matched, report.completed) == (
        "completed",
        100,
        len(chosen),
        len(chosen),
    )


async def test_what_where_cannot_decide_is_not_run_and_told(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"2", b"no json", b"4", b'"text"', b"5"])
    report = await run(rig, Backfill(note, rig.topic, where=is_even))
    assert [offset for _, offset in seen] == [0, 2]
    assert (report.read, report.matched, report.undecided) == (5, 2, 2)
    assert "offset 1 was not run" in report.partitions[0].note


async def test_outputs_and_dead_letters_are_marked(rig: Rig) -> None:
    """They go where the binding's go, or where the backfill says, and carry its id; runs have ids of their own."""
    output, other = f"{rig.topic}-out", f"{rig.topic}-other"
    await rig.create(output, other)
    marked = (("pyrula-backfill", b"an earlier one"), ("mine", b"1"))
    await rig.produce([*numbered(20), Message(b"bad", b"no json", headers=marked)])
    binding = rig.binding(value_of, output=output)
    report = await run(rig, Backfill(binding, id="first"), binding)
    assert (report.completed, report.failed, report.dead_letter_topic) == (18, 3, rig.letters)
    results = await rig.read(output)
    assert sorted(int(one.value or b"") for one in results) == [2 * n for n in range(20) if n % 10 != 3]
    assert {one.headers for one in results} == {(("pyrula-backfill", b"first"),)}
    letters = await rig.read(rig.letters)
    assert sorted(one.value or b"" for one in letters) == [b"13", b"3", b"no json"]
    for letter in letters:
        headers = dict(letter.headers)
        assert headers["pyrula-backfill"] == b"first"
        assert headers["pyrula-dlq-group"] == b"backfill:first"
        assert [name for name, _ in letter.headers].count("pyrula-backfill") == 1
    report = await run(rig, Backfill(binding, id="second", output=other), binding)
    assert (report.completed, report.output) == (18, other)
    assert len(await rig.read(output)) == 18
    assert {one.headers for one in await rig.read(other)} == {(("pyrula-backfill", b"second"),)}


async def test_failed_records_are_skipped_where_the_binding_says_so(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(20))
    report = await run(rig, Backfill(rig.binding(value_of, on_failure="skip")))
    assert (report.status, report.completed, report.failed, report.skipped) == ("completed", 18, 0, 2)
    assert await rig.read(rig.letters) == []


async def test_what_stands_still_fails_it_and_is_tried_again(rig: Rig) -> None:
    """on_failure="stop": the record's lane holds, the rest is done, and the same id goes on with what is left."""
    await rig.create(partitions=2)
    await rig.produce(numbered(40, 2))
    binding = rig.binding(value_of, on_failure="stop", ordering="partition")
    report = await run(rig, Backfill(binding, id="b"), binding)
    assert (report.status, report.completed) == ("failed", 20 + 1)
    assert f"{rig.topic}[1] offset 1: ValueError: 3 ends in 3" in report.problem
    assert [one.state for one in report.partitions] == ["done", "stuck"]
    notes.clear()
    report = await run(rig, Backfill(binding, id="b"), binding)
    assert report.status == "failed"
    assert [value for _, value in notes] == [3]


async def test_records_of_a_key_keep_their_order(rig: Rig) -> None:
    await rig.create(partitions=3)
    await rig.produce(Message(b"k%d" % (n % 11), b"%d" % (n * 10)) for n in range(400))
    await run(rig, Backfill(rig.binding(value_of)))
    assert len(notes) == 400
    for key in {key for key, _ in notes}:
        values = [value for of, value in notes if of == key]
        assert values == sorted(values)


async def test_a_dry_run_counts_and_touches_nothing(rig: Rig) -> None:
    await rig.create(partitions=2)
    await rig.produce(numbered(100, 2))

    def stored() -> set[bytes]:
        client = redis.Redis.from_url(rig.valkey.replace("valkey://", "redis://", 1))
        with client:
            return set(client.scan_iter(match=f"{{{rig.namespace}*", count=1000))

    before = await asyncio.to_thread(stored)
    backfill = Backfill(rig.binding(value_of), start=10, where=is_even, dry_run=True)
    report = await run(rig, backfill)
    assert (report.dry_run, report.status, report.read, report.matched, report.completed) == (
        True, "completed", 80, 40, 0
    )  # fmt: skip
    assert [(one.first_offset, one.last_offset) for one in report.partitions] == [(10, 49), (10, 49)]
    assert notes == []
    assert await asyncio.to_thread(stored) == before
    assert await rig.read(rig.letters) == []


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_topic_or_partition_that_does_not_exist(rig: Rig, dry_run: bool) -> None:
    async def said(backfill: Backfill) -> str:
        if not dry_run:
            report = await run(rig, backfill)
            assert (report.status, report.partitions) == ("failed", ())
            return report.problem
        with pytest.raises(ConfigurationError) as refused:
            await run(rig, backfill)
        return str(refused.value)

    await rig.create(partitions=3)
    assert f"topic {rig.topic}-no does not exist" in await said(Backfill(note, f"{rig.topic}-no", dry_run=dry_run))
    told = await said(Backfill(note, rig.topic, [1, 3, 9], id="b", dry_run=dry_run))
    assert f"topic {rig.topic} has partitions 0 to 2, so there is no partition 3, 9" in told
    assert f"{rig.topic}-no" not in await asyncio.to_thread(rig.topics.names)
    # what was refused makes room for what was meant
    report = await run(rig, Backfill(note, rig.topic, [1], id="b", dry_run=dry_run))
    assert report.status == "completed"


async def test_the_same_id_goes_on_and_another_definition_is_refused(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(20))
    await run(rig, Backfill(note, rig.topic, id="b", end=10))
    await run(rig, Backfill(note, rig.topic, id="b", end=10, max_concurrency=2, rate=5))
    assert len(seen) == 10
    with pytest.raises(BackfillRefused) as refused:
        await run(rig, Backfill(note, rig.topic, [0], id="b", end=11))
    assert "partitions is not given, not (0,); end is offset 10, not offset 11" in str(refused.value)


async def test_a_rate_is_kept(rig: Rig) -> None:
    await rig.create(partitions=3)
    await rig.produce(numbered(60, 3))
    began = monotonic()
    report = await run(rig, Backfill(note, rig.topic, rate=40))
    assert report.completed == 60
    assert monotonic() - began > 60 / 40 - 0.5


async def test_in_memory_without_a_store(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbered(20))
    kafka = KafkaOptions(bootstrap_servers=rig.kafka, **OPTIONS)
    worker = KafkaWorker([rig.binding(value_of)], store=MemoryStore(), kafka=kafka)
    async with asyncio.timeout(60):
        report = await worker.backfill(Backfill(rig.binding(value_of)))
    assert (report.status, report.completed, report.failed) == ("completed", 18, 2)


MANY = 200_000


async def test_many_records_by_times_and_offsets_with_two_workers(rig: Rig) -> None:
    """Twelve partitions, two of them empty; a start between two records, an end by offset; each record once."""
    await rig.create(partitions=12)
    each = MANY // 10
    await rig.produce(
        Message(b"k%d" % (n % 1000), b"1", partition=n % 10, timestamp_ms=T0 + n // 10 * 1000) for n in range(MANY)
    )
    start = moment(T0 + (each // 4) * 1000 - 500)
    first, second = worker_of(rig), worker_of(rig)
    async with asyncio.timeout(120):
        reports = await asyncio.gather(
            *(one.backfill(Backfill(note, rig.topic, start=start, end=each - 7, id="b")) for one in (first, second))
        )
    assert [report.status for report in reports] == ["completed"] * 2
    expected = {(p, o) for p in range(10) for o in range(each // 4, each - 7)}
    assert len(seen) == len(expected) == reports[0].completed
    assert set(seen) == expected
    assert {(one.first_offset, one.last_offset) for one in reports[0].partitions} == {
        (each // 4, each - 8), (None, None)
    }  # fmt: skip


async def test_what_is_done_out_of_order_is_kept_over_interruptions(rig: Rig) -> None:
    """Record 0 waits while later ones complete; each time the backfill goes on, only what is left runs."""
    await rig.create()
    await rig.produce([Message(b"slow", b"0"), *(Message(b"k%d" % (n % 5), b"1") for n in range(30))])
    ran: list[int] = []
    limit = asyncio.Semaphore(0)

    @workflow(name="backfill.slow")
    async def slow(ctx: Context, value: int) -> None:
        assert ctx.record is not None
        await (release.wait() if value == 0 else limit.acquire())
        ran.append(ctx.record.offset)

    worker = worker_of(rig, drain_timeout=0.1)
    for _ in range(3):
        task = asyncio.create_task(worker.backfill(Backfill(slow, rig.topic, id="b")))
        done = len(ran) + 7
        for _ in range(7):
            limit.release()
        await rig.until(lambda done=done: len(ran) == done, "seven more to complete")
        task.cancel()
        await asyncio.wait([task])
    release.set()
    for _ in range(30):
        limit.release()
    async with asyncio.timeout(60):
        report = await worker.backfill(Backfill(slow, rig.topic, id="b"))
    assert sorted(ran) == list(range(31))
    assert (report.read, report.matched, report.completed) == (31, 31, 31)


async def test_failed_records_are_counted_though_the_worker_died_before_it_said_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed run's end is kept in the store before progress is: who goes on counts what has ended by then."""
    await rig.create()
    await rig.produce(numbered(20))
    told: list[str] = []
    store = rig.store()
    kafka = KafkaOptions(bootstrap_servers=rig.kafka, **{**OPTIONS, "drain_timeout": 0.1})
    dying = KafkaWorker(
        [rig.binding(value_of)], store=store, kafka=kafka, on_event=lambda event: told.append(event.kind)
    )

    async def unsaved(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the worker is dead")

    monkeypatch.setattr(store, "save_part", unsaved)
    task = asyncio.create_task(dying.backfill(Backfill(rig.binding(value_of), id="b")))
    await rig.until(lambda: len(told) == 20, "every record to have ended")
    task.cancel()
    await asyncio.wait([task])
    report = await run(rig, Backfill(rig.binding(value_of), id="b"))
    assert (report.status, report.matched, report.completed, report.failed) == ("completed", 20, 18, 2)
    assert len(await rig.read(rig.letters)) == 2
