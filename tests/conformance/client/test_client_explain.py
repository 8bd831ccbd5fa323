"""Why a run isn't running: the sentence and its facts, status by status."""

from typing import Any

import pytest

from pyrula.workflows import Context, Limit, Rate, RunExplanation, RunNotFoundError, WorkflowClient, workflow
from pyrula.workflows.store.messages import Change, End, Lease, Wait
from pyrula.workflows.store.registry import Enlisted
from tests.conformance.client.holder import Holder

NAME = "explained"


@workflow(
    name=NAME,
    version="2",
    concurrency=Limit("tenant_id", max=2),
    rate_limit=Rate("tenant_id", per_second=0.01, burst=3),
)
async def explained(ctx: Context, tenant_id: str = "") -> None: ...


async def submit(client: WorkflowClient, tenant: str = "acme", **more: Any) -> str:
    return (await client.submit(explained, {"tenant_id": tenant}, **more)).run_id


async def claim(holder: Holder, n: int) -> list[Lease]:
    return [run.lease for run in (await holder.store.claim("w1", [(NAME, "2")], n)).runs]


@pytest.fixture
async def live(holder: Holder) -> Holder:
    await holder.store.enlist("w1", (Enlisted(NAME, "2", None, True),))
    return holder


async def said(client: WorkflowClient, run_id: str) -> RunExplanation:
    found = await client.explain(NAME, run_id)
    assert str(found) == found.text
    handles = await client.handle(NAME, run_id).explain()
    assert (handles.status, handles.limit, handles.waits_at) == (found.status, found.limit, found.waits_at)
    return found


async def test_nobody_serves_it(client: WorkflowClient, holder: Holder) -> None:
    run_id = await submit(client)
    await holder.store.enlist("old", (Enlisted(NAME, "1", None, True), Enlisted("other", "2", None, False)))
    found = await said(client, run_id)
    assert found.text.startswith("queued ")
    assert found.text.endswith("s: no live worker serves explained version 2")
    assert found.served is False


async def test_only_records_are_run_by_it(client: WorkflowClient, holder: Holder) -> None:
    """The only live worker of it is a KafkaWorker, which takes no submitted runs."""
    run_id = await submit(client)
    await holder.store.enlist("kafka", (Enlisted(NAME, "2", "orders", False),))
    found = await said(client, run_id)
    told = "no live worker serves explained version 2 but for the records of topic orders: start a WorkflowWorker"
    assert (told in found.text, found.served) == (True, False)


async def test_next_in_turn(client: WorkflowClient, live: Holder) -> None:
    found = await said(client, await submit(client))
    assert found.text.endswith("s: next in turn, waits for a worker with a free place")
    assert (found.served, found.status, found.workflow, found.version) == (True, "queued", NAME, "2")


async def test_behind_a_limit(client: WorkflowClient, live: Holder) -> None:
    one, two, three, four = [await submit(client) for _ in range(4)]
    await claim(live, 4)
    found = await said(client, four)
    first, second = sorted((one, two))
    assert f": Limit tenant_id=acme 2/2 held by {first}, {second}; then 2nd of its owner" in found.text
    assert (found.limit, found.slots_used, found.waits_at) == (("tenant_id", "acme", 2), 2, "Limit")
    assert (found.before, set(found.slot_holders)) == (1, {one, two})
    assert "of its owner" not in (await said(client, three)).text


async def test_behind_a_limit_and_a_rate_with_one_key(client: WorkflowClient, live: Holder) -> None:
    runs = [await submit(client) for _ in range(5)]
    for lease in await claim(live, 2):
        await live.store.finish(lease, Change(1), End("completed"))
    leases = await claim(live, 5)
    assert len(leases) == 1
    waiting = [run_id for run_id in runs if await client.status(NAME, run_id) == "queued"]
    found = await said(client, waiting[0])
    assert ": Rate, next token in 1 min " in found.text
    assert found.waits_at == "Rate"
    assert found.next_start is not None
    assert found.since is not None
    assert 60 < (found.next_start - found.since).total_seconds() < 110
    assert found.text != (await said(client, waiting[1])).text


async def test_owners_before_it(client: WorkflowClient, live: Holder) -> None:
    await submit(client, "a", owner="first")
    run_id = await submit(client, "a", owner="second")
    found = await said(client, run_id)
    assert found.text.endswith(": 1 owner before its own")


async def test_running_parked_paused_finished(client: WorkflowClient, live: Holder) -> None:
    run_id = await submit(client)
    (lease,) = await claim(live, 1)
    found = await said(client, run_id)
    assert found.text.startswith("running on worker w1 since 20")
    assert found.worker == "w1"
    waits = [Wait("signal", "checkout", None), Wait("sleep", deadline=4e9)]
    await live.store.park(lease, Change(1), waits)
    found = await said(client, run_id)
    assert found.text.startswith("waits for signal checkout or its sleep until 2096-10-02 07:06:40 UTC since 20")
    assert found.waits == tuple(waits)
    await client.signal(NAME, run_id, "checkout")
    (lease,) = await claim(live, 1)
    await live.store.pause(lease, Change(1), b'{"type":"","message":"a person asked","trace":""}')
    assert (await said(client, run_id)).text.endswith("UTC: a person asked")
    await client.unpause(NAME, run_id)
    (lease,) = await claim(live, 1)
    await live.store.finish(lease, Change(1), End("completed"))
    found = await said(client, run_id)
    assert found.text.startswith("completed at 20")
    assert found.since is None


async def test_a_failed_run_says_why(client: WorkflowClient, live: Holder) -> None:
    run_id = await submit(client)
    (lease,) = await claim(live, 1)
    await live.store.finish(lease, Change(1), End("failed", error=b'{"type":"ValueError","message":"no","trace":""}'))
    assert (await said(client, run_id)).text.endswith("UTC: ValueError: no")


async def test_no_such_run(client: WorkflowClient) -> None:
    with pytest.raises(RunNotFoundError):
        await client.explain(NAME, "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC")
