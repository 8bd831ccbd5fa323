"""What a worker says of itself is so: counted, running, reachable, and why not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pyrula.workflows import (
    Context,
    EgressEvent,
    Every,
    MemoryStore,
    StoreUnavailable,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    step,
    workflow,
)
from tests.services.waiting import wait_until_async


@workflow(name="health_add")
async def add(ctx: Context, one: int, two: int = 0) -> int:
    if one < 0:
        raise ValueError("negative")
    return one + two


@workflow(name="health_wait")
async def wait(ctx: Context, links: int = 0) -> Any:
    heard = await ctx.wait_for_signal("go")
    if links:
        await ctx.continue_as_new({"links": links - 1})
    return heard


class Gate:
    """A step stays in it until it is opened."""

    def __init__(self) -> None:
        self.entered = 0
        self.open = asyncio.Event()


gate: Gate


@step
async def through() -> None:
    gate.entered += 1
    await gate.open.wait()


@workflow(name="health_gated")
async def gated(ctx: Context) -> None:
    await ctx.step(through)


class Flaky(MemoryStore):
    """Doesn't answer while `away`."""

    away = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("open", "claim", "heartbeat", "enlist", "append", "finish") and self.away:

            async def broken(*args: Any, **kwargs: Any) -> Any:
                raise StoreUnavailable("the wire is cut")

            return broken
        return found


@asynccontextmanager
async def working(store: MemoryStore, *workflows: Any, **options: Any) -> AsyncIterator[WorkflowWorker]:
    settings = {"claim_poll_interval": 0.02, "drain_timeout": 0.2, "park_after": 0} | options
    worker = WorkflowWorker(workflows, store=store, options=WorkerOptions(**settings))
    assert worker.health().state == "starting"
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running
        assert worker.health().state == "stopped"


def is_(worker: WorkflowWorker, state: str) -> Callable[[], bool]:
    return lambda: worker.health().state == state


async def test_each_way_out_of_a_workers_hands_is_counted() -> None:
    store = MemoryStore()
    client = WorkflowClient(store, poll_interval=0.02)
    async with working(store, add, wait) as worker:
        await (await client.submit(add, {"one": 1})).result(timeout=180)
        failing = await client.submit(add, {"one": -1})
        chain = await client.submit(wait, {"links": 1})
        paused = await client.submit(wait)
        cancelled = await client.submit(wait)
        await wait_until_async(lambda: worker.stats().parked == 3, description="all that wait to be parked")
        await chain.signal("go", 1)
        await chain.signal("go", 2)
        assert await chain.result(timeout=180) == 2
        assert await paused.pause() == "paused"
        assert await cancelled.cancel() == "cancelled"
        await wait_until_async(failing.detail, description="the failed run")
        await wait_until_async(lambda: not worker.stats().running, description="the last body to end")
        stats = worker.stats()
        assert (stats.completed, stats.failed, stats.cancelled, stats.continued) == (2, 1, 1, 1)
        assert (stats.lost, stats.released, stats.runs, stats.places) == (0, 0, (), 100)
        assert stats.heartbeat is not None
        assert worker.health().state == "healthy"
        # what was claimed went out again; a link that continues stays in the same hands
        assert stats.claimed + stats.continued == sum(
            (stats.completed, stats.failed, stats.cancelled, stats.continued, stats.parked, stats.paused)
        )
    assert worker.stats().worker == worker.id


async def test_what_runs_is_listed() -> None:
    global gate
    gate = Gate()
    store = MemoryStore()
    async with working(store, gated, max_concurrency=2) as worker:
        runs = [await worker.client.submit(gated) for _ in range(3)]
        await wait_until_async(lambda: gate.entered == 2, description="two to run")
        stats = worker.stats()
        assert (stats.running, stats.places) == (2, 2)
        assert {(run.run_id, run.workflow, run.attempt) for run in stats.runs} == {
            (run.run_id, "health_gated", 1) for run in runs[:2]
        }
        assert all(run.seconds >= 0 for run in stats.runs)
        gate.open.set()
        for run in runs:
            await run.result(timeout=180)


async def test_a_store_that_is_away_makes_it_unhealthy_until_it_is_back() -> None:
    store = Flaky()
    store.away = True
    async with working(store, add, lease_seconds=1, heartbeat_interval=0.05) as worker:
        await wait_until_async(lambda: worker.health().reasons, description="a reason")
        assert worker.health().state == "starting"
        assert worker.health().reasons == ("the store can't be reached: the wire is cut",)
        store.away = False
        await wait_until_async(is_(worker, "healthy"), description="the worker to be healthy")
        assert worker.health().reasons == ()
        store.away = True
        await wait_until_async(lambda: len(worker.health().reasons) == 2, description="both reasons")
        health = worker.health()
        assert health.state == "unhealthy"
        assert health.reasons[0] == "runs can't be claimed: the wire is cut"
        assert health.reasons[1].startswith("the store has answered no heartbeat for ")
        assert (worker.stats().heartbeat or 0) > 0.1
        store.away = False
        await wait_until_async(is_(worker, "healthy"), description="the worker to be healthy again")


async def test_a_deploy_that_does_not_fit_is_told_of() -> None:
    store = MemoryStore()

    @workflow(name="health_changed")
    async def before(ctx: Context) -> Any:
        await ctx.now()
        return await ctx.wait_for_signal("go")

    async with working(store, before) as worker:
        run = await worker.client.submit(before)
        await wait_until_async(lambda: worker.stats().parked, description="the run to be parked")

    @workflow(name="health_changed")
    async def after(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    async with working(store, after) as worker:
        await run.signal("go", 1)
        await wait_until_async(is_(worker, "degraded"), description="the worker to be degraded")
        (reason,) = worker.health().reasons
        assert "the code here doesn't fit their journals: 1; " in reason
        assert f"the last is {run}: the body doesn't follow its journal at entry 0." in reason
        await wait_until_async(lambda: worker.stats().paused == 1, description="the run to be paused")


async def test_a_schedule_that_can_not_be_fired_is_told_of_until_it_is_mended() -> None:
    store = MemoryStore()
    async with working(store, add) as worker:
        client = worker.client
        schedule = await client.schedules.create("sum", "health_add", {"one": 1}, trigger=Every(1))
        stored = await store.read_schedule("sum")
        assert stored is not None
        broken = stored.spec.replace(b'"one":1', b'"three":1')
        await store.put_schedule(type(stored)("sum", "health_add", broken, 0.0))
        await wait_until_async(is_(worker, "degraded"), description="the worker to be degraded")
        (reason,) = worker.health().reasons
        assert reason.startswith("schedule 'sum' isn't fired: workflow 'health_add'")
        await client.schedules.create("sum", "health_add", {"one": 1}, trigger=schedule.trigger)
        await wait_until_async(is_(worker, "healthy"), description="the worker to be healthy")


class Closed:
    """An egress that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def send(self, events: Sequence[EgressEvent]) -> None:
        await self.opened.wait()


async def test_an_egress_that_is_behind_is_told_of() -> None:
    egress = Closed()
    store = MemoryStore()
    client = WorkflowClient(store)
    async with working(store, add, egress=egress, egress_buffer=3) as worker:
        for number in range(4):
            await (await client.submit(add, {"one": number})).result(timeout=180)
        assert worker.health().state == "degraded"
        assert worker.health().reasons == ("the egress is behind: 3 events wait, and worker.client takes no new runs",)
        egress.opened.set()
        await wait_until_async(is_(worker, "healthy"), description="the egress to catch up")
