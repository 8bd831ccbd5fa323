"""Records that were handed over to a store with durability="fsync" outlive its machine."""

import asyncio
from collections.abc import Iterator

import pytest

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, ValkeyStore, WorkflowClient, step, workflow
from tests.services.child import ServiceUnavailable
from tests.services.topics import Message, Topics
from tests.services.valkey_synced import SyncedValkey
from tests.services.waiting import wait_until_async

RECORDS, PARTITIONS = 500, 4

done: list[str] = []


@pytest.fixture
def synced() -> Iterator[SyncedValkey]:
    try:
        with SyncedValkey() as server:
            yield server
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


@step
async def reserve(value: str) -> str:
    done.append(f"reserve {value}")
    return value


@workflow(name="parked")
async def wait_for_go(ctx: Context, value: str) -> str:
    reserved = await ctx.step(reserve, value)
    await ctx.wait_for_signal("go")
    return f"{reserved} went"


async def test_none_is_lost_when_the_file_is_cut_to_the_last_fsync(
    kafka: str, topic_prefix: str, namespace: str, synced: SyncedValkey
) -> None:
    done.clear()
    topics, topic = Topics(kafka), f"{topic_prefix}-parked"
    await asyncio.to_thread(topics.create, topic, f"{topic}.{topic}.dlq", partitions=PARTITIONS)
    messages = [Message(f"k{n}".encode(), f"v{n}".encode(), partition=n % PARTITIONS) for n in range(RECORDS)]
    await asyncio.to_thread(topics.produce, topic, messages)
    binding = Binding(wait_for_go, topic=topic, group=topic, max_concurrency=16)

    def store() -> ValkeyStore:
        return ValkeyStore(synced.url, namespace=namespace, durability="fsync", timeout=2, retry_for=20)

    worker = KafkaWorker(
        binding,
        store=store(),
        kafka=KafkaOptions(bootstrap_servers=kafka, commit_interval=0.1, drain_timeout=1, session_timeout=30),
    )
    working = asyncio.create_task(worker.run())
    # each has its own partition's offsets complete only once it is in the store
    await asyncio.to_thread(topics.wait_committed, topic, topic, timeout=240)
    worker.stop()
    await working
    await asyncio.to_thread(synced.kill)
    await asyncio.to_thread(synced.cut_back)
    await asyncio.to_thread(synced.start)
    client_store = store()
    client = WorkflowClient(client_store, poll_interval=0.5)
    runs = [await client.record_run(binding, n % PARTITIONS, n // PARTITIONS) for n in range(RECORDS)]
    statuses = [await run.status() for run in runs]
    assert statuses == ["signal_waiting"] * RECORDS
    await asyncio.gather(*(run.signal("go") for run in runs))
    again = KafkaWorker(
        binding, store=store(), kafka=KafkaOptions(bootstrap_servers=kafka, drain_timeout=1, session_timeout=30)
    )
    working = asyncio.create_task(again.run())

    async def all_went() -> bool:
        return [await run.status() for run in runs] == ["completed"] * RECORDS

    await wait_until_async(all_went, description="all to complete", timeout=240, interval=0.5)
    again.stop()
    await working
    results = [await run.result(timeout=240) for run in runs]
    await client_store.close()
    assert results == [f"v{n} went" for n in range(RECORDS)]
    assert sorted(done) == sorted(f"reserve v{n}" for n in range(RECORDS))
