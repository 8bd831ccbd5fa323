"""Records handed over to a store with durability="fsync", and those queued behind them, outlive its machine."""

import asyncio
from collections.abc import Iterator

import pytest

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, ValkeyStore, WorkflowClient, step, workflow
from pyrula.workflows.client.handle import RunHandle
from tests.services.child import ServiceUnavailable
from tests.services.topics import Message, Topics
from tests.services.valkey_synced import SyncedValkey
from tests.services.waiting import wait_until_async

# Of each key a record that waits, and so many behind it.
BEHIND, PARTITIONS = 2, 4

done: list[str] = []


@pytest.fixture
def synced() -> Iterator[SyncedValkey]:
    try:
        with SyncedValkey() as server:
            yield server
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


@step
async def tell(value: str) -> str:
    done.append(value)
    return value


@workflow(name="parked")
async def wait_for_go(ctx: Context, value: str) -> str:
    await ctx.step(tell, f"{value} begins")
    if value.endswith(".0"):
        await ctx.wait_for_signal("go")
    return await ctx.step(tell, f"{value} ends")


class Parked:
    """A topic whose records park, or are queued behind one that does, in a server whose file is cut when it dies."""

    def __init__(self, kafka: str, topic: str, namespace: str, server: SyncedValkey, keys: int) -> None:
        self.keys = keys
        self.kafka = kafka
        self.topic = topic
        self.namespace = namespace
        self.server = server
        self.topics = Topics(kafka)
        self.binding = Binding(wait_for_go, topic=topic, group=topic, max_concurrency=16)

    async def create(self) -> None:
        await asyncio.to_thread(self.topics.create, self.topic, f"{self.topic}.{self.topic}.dlq", partitions=PARTITIONS)

    async def produce(self, number: int) -> None:
        """The next record of each key."""
        messages = [
            Message(f"k{n}".encode(), f"v{n}.{number}".encode(), partition=n % PARTITIONS) for n in range(self.keys)
        ]
        await asyncio.to_thread(self.topics.produce, self.topic, messages)

    def store(self) -> ValkeyStore:
        return ValkeyStore(self.server.url, namespace=self.namespace, durability="fsync", timeout=2, retry_for=60)

    def worker(self) -> KafkaWorker:
        options = KafkaOptions(bootstrap_servers=self.kafka, commit_interval=0.1, drain_timeout=1, session_timeout=30)
        return KafkaWorker(self.binding, store=self.store(), kafka=options)

    async def committed(self) -> int:
        """How many records count as done."""
        found = await asyncio.to_thread(self.topics.committed, self.topic, self.topic)
        return sum(each.offset for each in found.values())

    async def lose_power(self) -> None:
        """Its machine, that is: what was written since the last fsync is gone."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.cut_back)
        await asyncio.to_thread(self.server.start)

    async def runs(self, client: WorkflowClient) -> list[list[RunHandle[str]]]:
        """Of each key, in order."""
        each = self.keys // PARTITIONS
        return [
            [
                await client.record_run(self.binding, n % PARTITIONS, n // PARTITIONS + at * each)
                for at in range(1 + BEHIND)
            ]
            for n in range(self.keys)
        ]


def in_order(keys: int) -> None:
    """Every record was worked on once, and each key's one after the other."""
    by_key: dict[str, list[str]] = {}
    for line in done:
        by_key.setdefault(line.partition(".")[0], []).append(line)
    assert len(by_key) == keys
    for key, lines in by_key.items():
        assert lines == [f"{key}.{at} {what}" for at in range(1 + BEHIND) for what in ("begins", "ends")]


async def all_ended(runs: list[list[RunHandle[str]]]) -> None:
    last = [key[-1] for key in runs]

    async def went() -> bool:
        return [await run.status() for run in last] == ["completed"] * len(runs)

    await wait_until_async(went, description="all to complete", timeout=240, interval=0.5)
    assert [await run.result(timeout=180) for key in runs for run in key] == [
        f"v{n}.{at} ends" for n in range(len(runs)) for at in range(1 + BEHIND)
    ]


async def test_none_is_lost_when_the_file_is_cut_to_the_last_fsync(
    kafka: str, topic_prefix: str, namespace: str, synced: SyncedValkey
) -> None:
    done.clear()
    parked = Parked(kafka, f"{topic_prefix}-parked", namespace, synced, keys=500)
    await parked.create()
    for number in range(1 + BEHIND):
        await parked.produce(number)
    worker = parked.worker()
    working = asyncio.create_task(worker.run())
    # an offset completes only once its record is in the store
    await asyncio.to_thread(parked.topics.wait_committed, parked.topic, parked.topic, timeout=240)
    worker.stop()
    await working
    await parked.lose_power()
    async with WorkflowClient(parked.store(), poll_interval=0.5) as client:
        runs = await parked.runs(client)
        assert [await key[0].status() for key in runs] == ["signal_waiting"] * 500
        assert [await run.status() for key in runs for run in key[1:]] == ["queued"] * 500 * BEHIND
        await asyncio.gather(*(key[0].signal("go") for key in runs))
        worker = parked.worker()
        working = asyncio.create_task(worker.run())
        await all_ended(runs)
        worker.stop()
        await working
    in_order(500)


async def test_none_is_lost_when_that_happens_while_they_are_handed_over(
    kafka: str, topic_prefix: str, namespace: str, synced: SyncedValkey
) -> None:
    done.clear()
    parked = Parked(kafka, f"{topic_prefix}-parking", namespace, synced, keys=200)
    await parked.create()
    worker = parked.worker()
    working = asyncio.create_task(worker.run())
    for number in range(1 + BEHIND):
        await parked.produce(number)

        async def under_way(number: int = number) -> bool:
            return await parked.committed() > 200 * number + 60

        await wait_until_async(under_way, description="many to be handed over", timeout=240, interval=0.05)
        before = await asyncio.to_thread(parked.topics.committed, parked.topic, parked.topic)
        await parked.lose_power()
        statuses: list[str] = []
        async with WorkflowClient(parked.store()) as client:
            for partition, each in before.items():
                for offset in range(each.offset):
                    run = await client.record_run(parked.binding, partition, offset)
                    statuses.append(await run.status())
                    assert statuses[-1] in ("signal_waiting", "queued"), f"{run} is lost"
        # the first round is cut short while records park, the others while they are queued behind those
        assert statuses.count("signal_waiting") <= 200
        assert len(statuses) > 200 * number + 60
        if number:
            assert statuses.count("queued") > 60
    await asyncio.to_thread(parked.topics.wait_committed, parked.topic, parked.topic, timeout=240)
    async with WorkflowClient(parked.store(), poll_interval=0.5) as client:
        runs = await parked.runs(client)
        await asyncio.gather(*(key[0].signal("go") for key in runs))
        await all_ended(runs)
    worker.stop()
    await working
    # a step whose row was cut off runs again; no key went on before its record had ended
    done[:] = dict.fromkeys(done)
    in_order(200)
