"""Records complete out of order: what is done is known again after a kill, and fits into a commit's metadata."""

import asyncio
import textwrap
from collections import Counter
from pathlib import Path

from pyrula.kafka.commit_map import CommitMap, decode
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig
from tests.services.process import WorkerProcess
from tests.services.topics import Message
from tests.services.waiting import wait_until

RECORDS = 5_001

PROGRAM = textwrap.dedent("""
    import asyncio, os, sys
    from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
    from pyrula.workflows import Context, ValkeyStore, step, workflow

    kafka, valkey, namespace, topic, group, log, blocked = sys.argv[1:]
    lines = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    @step
    async def begin(n: int) -> str:
        os.write(lines, b"begin %d\\n" % n)
        return f"begun {n}"

    @workflow(name="order.blocking")
    async def blocking(ctx: Context, n: int) -> None:
        if n == 0:
            assert await ctx.step(begin, n) == "begun 0"
            if os.path.exists(blocked):
                await asyncio.Event().wait()
        os.write(lines, b"end %d\\n" % n)

    worker = KafkaWorker(
        [Binding(blocking, topic=topic, group=group)],
        store=ValkeyStore(valkey, namespace=namespace),
        kafka=KafkaOptions(bootstrap_servers=kafka, session_timeout=6, heartbeat_interval=1, drain_timeout=0),
    )
    asyncio.run(worker.run())
""")


def test_only_the_blocked_record_runs_again_after_a_kill(
    kafka: str, valkey: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    rig = Rig(kafka, valkey, topic_prefix, namespace)
    rig.topics.create(rig.topic, rig.letters)
    rig.topics.produce(rig.topic, (Message(b"k%d" % n, b"%d" % n) for n in range(RECORDS)))
    log, blocked = tmp_path / "lines.txt", tmp_path / "blocked"
    blocked.touch()

    def lines() -> Counter[str]:
        return Counter(log.read_text().splitlines()) if log.exists() else Counter()

    def mapped() -> bool:
        committed = rig.topics.committed(rig.group, rig.topic).get(0)
        if committed is None:
            return False
        found = decode(committed.metadata, committed.offset, RECORDS)
        return isinstance(found, CommitMap) and (committed.offset, found.ranges) == (0, ((1, RECORDS),))

    arguments = (kafka, valkey, namespace, rig.topic, rig.group, str(log), str(blocked))
    with WorkerProcess(PROGRAM, *arguments) as worker:
        wait_until(lambda: sum(lines().values()) == RECORDS, description="all but one to complete", timeout=60)
        wait_until(mapped, description="the completions to be committed", timeout=20, interval=0.2)
        worker.kill()
        blocked.unlink()
        worker.start()
        wait_until(lambda: lines()["end 0"], description="the blocked record to complete", timeout=60)
        rig.topics.wait_committed(rig.group, rig.topic, timeout=60)
    # Its step was journaled before the kill, so that did not run again either.
    assert lines() == Counter({"begin 0": 1, **{f"end {n}": 1 for n in range(RECORDS)}})
    assert rig.topics.read(rig.letters) == []


async def test_metadata_stays_small_though_every_second_record_blocks(rig: Rig) -> None:
    count = 40_000
    gate = asyncio.Event()
    ended = 0

    @workflow(name="order.every_second")
    async def body(ctx: Context, n: int) -> None:
        nonlocal ended
        if n % 2 == 0:
            await gate.wait()
        ended += 1

    await rig.create()
    await rig.produce(b"%d" % n for n in range(count))
    options = {"buffer_records": 100_000, "window_offsets": 100_000}
    async with rig.running(rig.binding(body, max_concurrency=count), **options):
        await rig.until(lambda: ended == count // 2, "every second record to complete", timeout=180)

        async def mapped() -> tuple[tuple[int, int], ...]:
            committed = (await rig.committed())[0]
            assert len(committed.metadata.encode()) <= 4096
            assert committed.offset == 0
            found = decode(committed.metadata, 0, count)
            return found.ranges if isinstance(found, CommitMap) and len(found.ranges) > 10_000 else ()

        ranges = await rig.until(mapped, "as much of the map as fits to be committed")
        # The lowest first, and nothing that isn't done.
        assert ranges == tuple((n, n + 1) for n in range(1, 2 * len(ranges), 2))
        gate.set()
        await rig.until_drained(timeout=180)
    assert ended == count


async def test_the_map_of_a_map_is_kept(rig: Rig) -> None:
    """A worker that stops soon after its start forgets nothing of what earlier ones had done."""
    gate = asyncio.Event()
    runs: Counter[int] = Counter()

    @workflow(name="order.blocked_twice")
    async def body(ctx: Context, n: int) -> None:
        runs[n] += 1
        if n in (0, 500):
            await gate.wait()

    await rig.create()
    await rig.produce((b"%d" % n for n in range(1_000)), **{"batch.num.messages": 20})
    async with rig.running(rig.binding(body)):
        await rig.until(lambda: len(runs) == 1_000, "all records to start")
    for _ in range(3):
        # It reads little, and no more until the first record is done.
        async with rig.running(rig.binding(body), window_offsets=50, max_partition_fetch_bytes=1_000):
            await rig.until(lambda: runs[0] > 1, "the first record to start again")
    gate.set()
    async with rig.running(rig.binding(body)):
        await rig.until_drained()
    assert {n for n, count in runs.items() if count > 1} == {0, 500}
