"""What a worker holds in memory stays bounded, and one partition's records don't take what the others need."""

import asyncio
import textwrap

import pytest

from pyrula.kafka import BindingStats
from pyrula.kafka.record import parse_run_id
from pyrula.workflows import Context, step, workflow
from tests.integration.rig import Rig
from tests.services.process import WorkerProcess
from tests.services.topics import Message
from tests.services.waiting import wait_until

MIB = 1 << 20
# Beside the buffer: a fetch on its way, what the allocator keeps, 64 suspended bodies.
OVERHEAD = 32 * MIB
# So that a fetch brings a part of a topic, however small its records are.
IN_SMALL_BATCHES = {"batch.num.messages": 5}

BLOCKING = textwrap.dedent("""
    import asyncio, logging, sys
    from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
    from pyrula.workflows import Context, ValkeyStore, workflow

    kafka, valkey, namespace, topic, group, partitions, buffer = sys.argv[1:]

    @workflow(name="memory.blocking")
    async def blocking(ctx: Context, value: dict) -> None:
        await asyncio.Event().wait()

    async def main():
        logging.basicConfig(level=logging.WARNING)
        worker = KafkaWorker(
            [Binding(blocking, topic=topic, group=group)],
            store=ValkeyStore(valkey, namespace=namespace),
            kafka=KafkaOptions(bootstrap_servers=kafka, buffer_bytes=int(buffer), session_timeout=10, drain_timeout=0),
        )
        task = asyncio.create_task(worker.run())
        while worker.stats() == [] or worker.stats()[0].partitions < int(partitions):
            await asyncio.sleep(0.05)
        while not task.done():
            (stats,) = worker.stats()
            print("held", stats.buffered, stats.in_flight)
            await asyncio.sleep(0.2)

    asyncio.run(main())
""")


@pytest.mark.parametrize(
    ("count", "size", "partitions", "buffer"),
    [(2_000, 500_000, 6, 32 * MIB), (300_000, 200, 6, 32 * MIB), (20_000, 10_000, 100, 16 * MIB)],
    ids=["large records", "small records", "many partitions"],
)
def test_a_backlog_is_not_read_into_memory(
    kafka: str,
    valkey: str,
    topic_prefix: str,
    namespace: str,
    count: int,
    size: int,
    partitions: int,
    buffer: int,
) -> None:
    rig = Rig(kafka, valkey, topic_prefix, namespace)
    rig.topics.create(rig.topic, partitions=partitions)
    value = b'{"text": "%s"}' % (b"x" * (size - 12))
    program = WorkerProcess(BLOCKING, kafka, valkey, namespace, rig.topic, rig.group, str(partitions), str(buffer))
    try:
        with program as worker:
            worker.wait_for_line("^held 0 0$", timeout=60)
            before = peak = worker.rss_bytes
            worker.terminate()
            worker.wait()
            messages = (Message(None, value, partition=n % partitions) for n in range(count))
            # A batch comes whole, so it is what a partition holds at least.
            rig.topics.produce(rig.topic, messages, **{"batch.num.messages": 5 if partitions > 6 else 1_000})
            started, held = len(worker.lines), 0
            worker.start()

            def settled() -> bool:
                nonlocal peak, held
                peak = max(peak, worker.rss_bytes)
                last = [line for line in worker.lines[started:] if line.startswith("held ")][-10:]
                held = int(last[-1].split()[1]) if last else 0
                return len(last) == 10 and len(set(last)) == 1 and held > 0

            wait_until(settled, description="the worker to read no more", timeout=180, interval=0.1)
    finally:
        rig.topics.delete(rig.topic)
    grown = peak - before
    print(
        f"{count:,} x {size:,} bytes: {held:,} records held, RSS {before / MIB:.0f} -> {peak / MIB:.0f} MiB, "
        f"grown by {grown / MIB:.0f} of at most {(2 * buffer + OVERHEAD) / MIB:.0f} MiB"
    )
    assert held * size < 2 * buffer
    assert grown < 2 * buffer + OVERHEAD


gate: asyncio.Event
done: list[tuple[int, int]] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = asyncio.Event()  # it belongs to the test's loop
    done.clear()


@workflow(name="memory.gated")
async def gated(ctx: Context, value: bytes) -> None:
    if value == b"block":
        await gate.wait()
    assert ctx.record is not None
    done.append((ctx.record.partition, ctx.record.offset))


@pytest.mark.parametrize("ordering", ["unordered", "key", "partition"])
async def test_a_stuck_partition_does_not_starve_the_others(rig: Rig, ordering: str) -> None:
    await rig.create(partitions=6)
    await rig.produce(Message(None, b"block", partition=0) for _ in range(20_000))
    await rig.produce(Message(b"k%d" % (n % 7), b"go", partition=n % 5 + 1) for n in range(5_000))
    async with rig.running(rig.binding(gated, max_concurrency=12, ordering=ordering)) as running:
        for partition in range(1, 6):
            await rig.until_committed(1_000, partition)
        # What is left to it beside the reserves of the others: half an equal share each.
        share = {"unordered": 7, "key": 7, "partition": 1}[ordering]
        await rig.until(lambda: running.worker.stats()[0].in_flight >= share, "its share to be in flight")
        assert running.worker.stats()[0].in_flight == share
        assert await rig.offset(0) == 0
        gate.set()
        await rig.until_drained()
    assert len(done) == 25_000


async def test_a_body_that_never_ends_is_named_with_its_age(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyrula.kafka.oldest.OLD_SECONDS", 0.5)
    await rig.create(partitions=2)
    await rig.produce(Message(None, b"block" if n == 4 else b"go", partition=1) for n in range(10))
    async with rig.running(rig.binding(gated)) as running:

        def stats() -> BindingStats:
            return running.worker.stats()[0]

        await rig.until(lambda: (oldest := stats().oldest) and oldest.seconds > 1.5, "its age to grow")
        oldest = stats().oldest
        assert oldest is not None
        assert (oldest.topic, oldest.partition, oldest.offset) == (rig.topic, 1, 4)
        address = parse_run_id(oldest.run_id)
        assert (address.partition, address.offset) == (1, 4)
        await rig.until(lambda: (stats().lag, stats().completed, stats().in_flight) == (6, 9, 1), "the others to end")
        assert caplog.text.count(f"{rig.topic}[1] offset 4 (run {oldest.run_id}) has been unfinished") == 1
        gate.set()
        await rig.until_drained()
        await rig.until(lambda: (stats().lag, stats().oldest) == (0, None), "the gauges to be empty")


async def test_the_window_holds_behind_an_unfinished_record_and_says_which(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"block", *[b"go"] * 5_000], **IN_SMALL_BATCHES)
    async with rig.running(rig.binding(gated), window_offsets=1_000, max_partition_fetch_bytes=2_000) as running:
        await rig.until(lambda: len(done) >= 999, "the window to be full")
        await rig.until(lambda: "record 0 is unfinished" in running.reasons, "health to name the record")
        assert running.health.state == "degraded"
        assert len(done) < 4_000
        gate.set()
        await rig.until_drained()
        assert running.health.state == "healthy"
    assert len(done) == 5_001


@step
async def bulky(number: int) -> str:
    return "x" * 4_000


@workflow(name="memory.journaling")
async def journaling(ctx: Context, n: int) -> None:
    await ctx.step(bulky, n)
    if n == 0:
        await gate.wait()
    done.append((0, n))


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_full_journal_opens_the_window_again_when_it_is_done(rig: Rig, blocked: bool) -> None:
    """The journal of a thousand records is as large as the window many times over."""
    await rig.create()
    await rig.produce((b"%d" % n for n in range(0 if blocked else 1, 1_000)), **IN_SMALL_BATCHES)
    async with rig.running(
        rig.binding(journaling), window_bytes=100_000, buffer_records=40, max_partition_fetch_bytes=500
    ) as running:
        if blocked:
            await rig.until(lambda: "record 0 is unfinished" in running.reasons, "health to name the record")
            assert len(done) < 1_000
            gate.set()
        await rig.until_drained()
    assert len(done) == (1_000 if blocked else 999)
