"""A workflow is bound to a topic or has flow control, in all processes alike: the store's register of workers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pyrula.workflows import ConfigurationError, Limit, WorkerOptions, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.store.registry import Enlisted
from pyrula.workflows.store.runs import RunStore

BOUND = Enlisted("register_sync", "1", "orders", False)


@pytest.fixture
async def register(make_store: Callable[[], RunStore]) -> AsyncIterator[RunStore]:
    store = make_store()
    await store.open()
    await store.enlist("kafka-1", (BOUND,))
    yield store
    await store.close()


def gated(version: str = "1") -> Any:
    @workflow(name="register_sync", version=version, concurrency=Limit("tenant", max=2))
    async def sync(ctx: Any, tenant: str = "") -> None: ...

    return sync


async def test_a_worker_does_not_start_beside_one_that_has_it_bound(
    register: RunStore, make_store: Callable[[], RunStore]
) -> None:
    worker = WorkflowWorker(workflows=[gated()], store=make_store())
    with pytest.raises(ConfigurationError, match=r"'register_sync' has flow control.*bound to topic 'orders'.*kafka-1"):
        await worker.run()
    assert [entry.worker for entry in await register.enlisted()] == ["kafka-1"]


async def test_a_submit_is_refused_beside_one_that_has_it_bound(
    register: RunStore, make_store: Callable[[], RunStore]
) -> None:
    definition = gated()
    with pytest.raises(ConfigurationError, match="kafka-1"):
        await WorkflowClient(register).submit(definition, {})
    await register.strike("kafka-1")
    await WorkflowClient(register).submit(definition, {})


async def test_another_version_is_a_deploy_under_way(
    register: RunStore, make_store: Callable[[], RunStore], caplog: pytest.LogCaptureFixture
) -> None:
    definition = gated("2")
    worker = WorkflowWorker(workflows=[definition], store=make_store(), options=WorkerOptions(claim_poll_interval=0.05))
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(worker.run())
        run = await worker.client.submit(definition, {})
        await run.result(timeout=180)
    assert "kafka-1" in caplog.text
    health = worker.health()
    assert health.state == "degraded"
    (odd,) = health.reasons
    assert "is bound to topic 'orders' (version '1') in worker kafka-1" in odd
    worker.stop()
    await running
