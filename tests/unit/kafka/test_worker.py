"""A worker object: what needs no broker."""

import pytest

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, MemoryStore, workflow


@workflow(name="runs_once")
async def nothing(ctx: Context) -> None: ...


async def test_a_worker_runs_once() -> None:
    worker = KafkaWorker(
        Binding(nothing, topic="orders", group="billing"),
        store=MemoryStore(),
        kafka=KafkaOptions(bootstrap_servers="127.0.0.1:1"),
    )
    worker.stop()
    await worker.run()
    with pytest.raises(RuntimeError, match="a worker runs once: make another one"):
        await worker.run()
