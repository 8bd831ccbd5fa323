"""A workflow is bound to a topic in one process or has flow control in another, never both: on real servers."""

from typing import Any

import pytest

from pyrula.workflows import ConfigurationError, Context, Limit, ValkeyStore, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.store.registry import Enlisted
from tests.integration.rig import Rig

NAME = "registered_orders"


def bound(version: str = "1") -> Any:
    @workflow(name=NAME, version=version)
    async def orders(ctx: Context, order: dict[str, Any]) -> None: ...

    return orders


def gated() -> Any:
    @workflow(name=NAME, concurrency=Limit("tenant", max=1))
    async def orders(ctx: Context, tenant: str = "") -> None: ...

    return orders


async def test_no_binding_beside_a_live_worker_with_flow_control(rig: Rig) -> None:
    rig.topics.create(rig.topic, rig.letters)
    store = ValkeyStore(rig.valkey, namespace=rig.namespace)
    await store.open()
    await store.enlist("runs-1", (Enlisted(NAME, "1", None, True),))
    with pytest.raises(ConfigurationError, match=rf"'{NAME}' is bound to topic .* has flow control .* worker runs-1"):
        async with rig.running(rig.binding(bound())):
            pass
    # another version is a deploy under way
    async with rig.running(rig.binding(bound("2"))) as running:
        await rig.until(lambda: running.health.state == "degraded", "the worker to be degraded")
        assert "has flow control (version '1') in worker runs-1" in running.reasons
    await store.close()


async def test_no_flow_control_beside_a_live_binding(rig: Rig) -> None:
    rig.topics.create(rig.topic, rig.letters)
    definition = bound()
    async with rig.running(rig.binding(definition)):
        with_policy = gated()
        told = rf"'{NAME}' has flow control .* bound to topic '{rig.topic}' .* worker kafka-"
        async with WorkflowClient(ValkeyStore(rig.valkey, namespace=rig.namespace)) as client:
            with pytest.raises(ConfigurationError, match=told):
                await client.submit(with_policy, {"tenant": "acme"})
        worker = WorkflowWorker([with_policy], store=ValkeyStore(rig.valkey, namespace=rig.namespace))
        with pytest.raises(ConfigurationError, match=told):
            await worker.run()
    # the binding is gone with its worker
    async with WorkflowClient(ValkeyStore(rig.valkey, namespace=rig.namespace)) as client:
        run = await client.submit(with_policy, {"tenant": "acme"})
        assert await run.cancel() == "cancelled"
