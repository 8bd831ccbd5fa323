"""Records that were handed over to a server that syncs its file once a second outlive its machine."""

import asyncio

import pytest

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker, RecordEvent
from pyrula.workflows import Context, ValkeyStore, WorkflowClient, step, workflow
from tests.services.child import ServiceUnavailable
from tests.services.topics import Message, Topics
from tests.services.valkey_synced import SyncedValkey
from tests.services.waiting import wait_until_async

PARTITIONS = 4

done: list[str] = []


@step
async def reserve(value: str) -> str:
    done.append(f"reserve {value}")
    return value


@workflow(name="everysec")
async def wait_for_go(ctx: Context, value: str) -> str:
    reserved = await ctx.step(reserve, value)
    await ctx.wait_for_signal("go")
    return f"{reserved} went"


async def test_none_is_lost_with_the_last_second(kafka: str, topic_prefix: str, namespace: str) -> None:
    done.clear()
    records = 60
    topics, topic = Topics(kafka), f"{topic_prefix}-everysec"
    await asyncio.to_thread(topics.create, topic, f"{topic}.{topic}.dlq", partitions=PARTITIONS)
    messages = [Message(f"k{n}".encode(), f"v{n}".encode(), partition=n % PARTITIONS) for n in range(records)]
    await asyncio.to_thread(topics.produce, topic, messages)
    binding = Binding(wait_for_go, topic=topic, group=topic, max_concurrency=16)
    handed: set[tuple[int, int]] = set()

    def told(event: RecordEvent) -> None:
        if event.kind == "handed_over":
            handed.add((event.partition, event.offset))

    try:
        server = SyncedValkey(appendfsync="everysec")
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))
    with server:

        def store() -> ValkeyStore:
            return ValkeyStore(server.url, namespace=namespace, durability="everysec", timeout=2, retry_for=20)

        async def reached(share: int) -> None:
            await wait_until_async(lambda: len(handed) >= share, description=f"{share} to be handed over", timeout=240)

        options = KafkaOptions(bootstrap_servers=kafka, commit_interval=0.1, drain_timeout=1, session_timeout=30)
        worker = KafkaWorker(binding, store=store(), kafka=options, on_event=told)
        working = asyncio.create_task(worker.run())
        for share in (records // 5, records // 2):
            # what is handed over in these moments is in the server's memory, and perhaps not on its disk
            await reached(share)
            await wait_until_async(lambda: server.noted, description="the first fsync", timeout=240)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.cut_back)
            await asyncio.to_thread(server.start)
        await asyncio.to_thread(topics.wait_committed, topic, topic, timeout=240)
        client_store = store()
        client = WorkflowClient(client_store, poll_interval=0.5)
        runs = [await client.record_run(binding, n % PARTITIONS, n // PARTITIONS) for n in range(records)]
        assert [await run.status() for run in runs] == ["signal_waiting"] * records
        await asyncio.gather(*(run.signal("go") for run in runs))
        results = [await run.result(timeout=240) for run in runs]
        worker.stop()
        await working
        await client_store.close()
    assert results == [f"v{n} went" for n in range(records)]
    # a step whose row was lost with the hand-over runs again
    assert set(done) == {f"reserve v{n}" for n in range(records)}
