"""Parents and children: failure, cancel and death of either; a child's result reaches its parent once."""

import asyncio
import contextlib
import random
from typing import Any

import pytest

from pyrula.workflows import (
    Context,
    DurableInvocationCancelled,
    DurableInvocationError,
    RunHandle,
    RunNotFoundError,
    WorkflowWorker,
    step,
    workflow,
)
from tests.conformance.worker.conftest import Workers, some_progress
from tests.services.waiting import wait_until_async

QUICK = {"lease_seconds": 1, "heartbeat_interval": 0.1, "park_after": 0.02, "drain_timeout": 0.2}

done: dict[str, int] = {}


@step
async def act(key: str) -> int:
    await asyncio.sleep(0.01)
    done[key] = done.get(key, 0) + 1
    return len(key)


@workflow(name="children_child")
async def child(ctx: Context, name: str, fate: str = "well") -> str:
    await ctx.step(act, f"{name} first")
    if fate == "waits":
        await ctx.wait_for_signal("go")
    await ctx.sleep(0.03)
    await ctx.step(act, f"{name} second")
    if fate == "fails":
        raise ValueError(f"{name} failed")
    return name


@workflow(name="children_parent")
async def parent(ctx: Context, name: str, count: int, fate: str = "well") -> list[str]:
    heard: list[str] = []
    ctx.on_query("heard", lambda: heard)
    handles = [await ctx.start_child(child, {"name": f"{name}.{number}", "fate": fate}) for number in range(count)]
    for handle in handles:
        heard.append(await handle.result())
        await ctx.step(act, f"{name} heard {heard[-1]}")
    return heard


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


async def child_of(run: RunHandle[Any]) -> str:
    """The first child's id, once it is there: its event tells of the intent to submit it."""

    async def started() -> str:
        for event in await run.events():
            if event.type == "child_started":
                with contextlib.suppress(RunNotFoundError):
                    await run._calls.status(child, event.data["run_id"])
                    return str(event.data["run_id"])
        return ""

    return await wait_until_async(started, description="the child to be there")


async def test_a_childs_failure_is_told_with_its_error_and_ends_the_parent(workers: Workers) -> None:
    worker = workers.start(parent, child)
    run = await worker.client.submit(parent, {"name": "p", "count": 1, "fate": "fails"})
    with pytest.raises(DurableInvocationError, match=r"p\.0 failed"):
        await run.result(timeout=180)


async def test_a_childs_cancel_is_told_its_parent(workers: Workers) -> None:
    worker = workers.start(parent, child)
    run = await worker.client.submit(parent, {"name": "p", "count": 1, "fate": "waits"})
    assert await worker.client.cancel(child, await child_of(run)) == "cancelled"
    with pytest.raises(DurableInvocationError, match="DurableInvocationCancelled"):
        await run.result(timeout=180)


async def test_a_parent_that_fails_takes_its_children_along(workers: Workers) -> None:
    @workflow(name="children_hasty")
    async def hasty(ctx: Context) -> None:
        await ctx.start_child(child, {"name": "c", "fate": "waits"})
        raise RuntimeError("no patience")

    worker = workers.start(hasty, child)
    run = await worker.client.submit(hasty)
    with pytest.raises(DurableInvocationError, match="no patience"):
        await run.result(timeout=180)
    with pytest.raises(DurableInvocationCancelled):
        await worker.client.result(child, await child_of(run), timeout=180)


async def test_a_childs_result_that_comes_while_the_parents_worker_is_dead_is_kept(workers: Workers) -> None:
    first = workers.start(parent, **QUICK)
    client = workers.client()
    run = await client.submit(parent, {"name": "p", "count": 1})
    child_id = await child_of(run)
    await workers.kill(first)
    second = workers.start(child, **QUICK)
    assert await client.result(child, child_id, timeout=180) == "p.0"
    await workers.stop(second)
    workers.start(parent, **QUICK)
    assert await run.result(timeout=180) == ["p.0"]
    assert done == {"p.0 first": 1, "p.0 second": 1, "p heard p.0": 1}


async def test_a_child_whose_worker_died_is_taken_up_and_tells_its_parent_once(workers: Workers) -> None:
    workers.start(parent, **QUICK)
    first = workers.start(child, **QUICK)
    run = await workers.client().submit(parent, {"name": "p", "count": 1, "fate": "waits"})
    await wait_until_async(lambda: done.get("p.0 first"), description="the child's first step")
    await workers.kill(first)
    workers.start(child, **QUICK)
    await workers.client().signal(child, await child_of(run), "go")
    assert await run.result(timeout=180) == ["p.0"]
    assert done["p heard p.0"] == 1


async def test_each_result_arrives_once_while_workers_of_both_come_and_go(workers: Workers) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)

    def start() -> WorkflowWorker:
        return workers.start(*dice.choice([(parent,), (child,), (parent, child)]), **QUICK)

    over = False
    running = [start() for _ in range(3)]
    # of each kind there is one that is never killed, so that both are served at all times
    workers.start(parent, child, max_concurrency=1, **QUICK)

    async def come_and_go() -> None:
        while not over:
            await asyncio.sleep(0.05 + dice.random() * 0.2)
            await some_progress(done)
            worker = running.pop(dice.randrange(len(running)))
            await (workers.kill(worker) if dice.random() < 0.6 else workers.stop(worker))
            running.append(start())

    client = workers.client()
    runs = [await client.submit(parent, {"name": f"p{number}", "count": 3}) for number in range(4)]
    going = asyncio.create_task(come_and_go())
    try:
        results = await asyncio.gather(*(run.result(timeout=120) for run in runs))
    finally:
        over = True
        with contextlib.suppress(asyncio.CancelledError):
            await going
    assert results == [[f"p{number}.{child}" for child in range(3)] for number in range(4)], f"seed {seed}"
    for run in runs:
        told = [event.data["run_id"] for event in await run.events() if event.type == "child_finished"]
        assert len(set(told)) == 3, f"seed {seed}"
        assert (await run.detail()).unread == (), f"seed {seed}"
    for number in range(4):
        assert await runs[number].query("heard") == [f"p{number}.{child}" for child in range(3)], f"seed {seed}"
