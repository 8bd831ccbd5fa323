"""A worker executes submitted runs: to their end, once, in rounds, and over its own end."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from pyrula.workflows import (
    Context,
    DurableInvocationCancelled,
    DurableInvocationError,
    Retry,
    step,
    workflow,
)
from pyrula.workflows.store.runs import Submission
from tests.conformance.worker.conftest import Workers
from tests.services.waiting import wait_until_async

charged: dict[str, int] = {}
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    charged.clear()
    gates.clear()
    blocking.clear()
    released.clear()


@step
async def charge(order: str) -> str:
    charged[order] = charged.get(order, 0) + 1
    return f"ch_{order}"


@step(retry=Retry(max_attempts=1))
async def through_gate(name: str) -> str:
    charged[name] = charged.get(name, 0) + 1
    await gates.setdefault(name, asyncio.Event()).wait()
    return name


@workflow(name="worker_pay")
async def pay(ctx: Context, order: str, naps: int = 0) -> str:
    receipt = await ctx.step(charge, order)
    for _ in range(naps):
        await ctx.sleep(0.3)
    return receipt


@workflow(name="worker_gated")
async def gated(ctx: Context, order: str) -> str:
    receipt = await ctx.step(charge, order)
    await ctx.step(through_gate, f"gate-{order}")
    return receipt


@workflow(name="worker_rounds", retry=Retry(max_attempts=3, initial=0.05, jitter=0))
async def rounds(ctx: Context, order: str) -> tuple[str, int]:
    receipt = await ctx.step(charge, order)
    if ctx.run.attempt < 3:
        raise ValueError(f"round {ctx.run.attempt}")
    return receipt, ctx.run.attempt


@workflow(name="worker_slow_rounds", retry=Retry(max_attempts=2, initial=1.5, jitter=0))
async def slow_rounds(ctx: Context, order: str) -> int:
    await ctx.step(charge, order)
    if ctx.run.attempt < 2:
        raise ValueError("not yet")
    return ctx.run.attempt


@workflow(name="worker_far_rounds", retry=Retry(max_attempts=2, initial=3600, max_delay=3600, jitter=0))
async def far_rounds(ctx: Context, order: str) -> None:
    raise ValueError("not today")


@workflow(name="worker_failing")
async def failing(ctx: Context) -> None:
    raise ValueError("no such card")


@workflow(name="worker_late", timeout=0.2)
async def late(ctx: Context) -> None:
    await ctx.sleep(60)


@workflow(name="worker_unwritable")
async def unwritable(ctx: Context) -> Any:
    return object()


async def test_a_run_is_executed_to_its_end(workers: Workers) -> None:
    worker = workers.start(pay)
    run = await worker.client.submit(pay, {"order": "a"})
    assert await run.result(timeout=180) == "ch_a"
    assert [event.type for event in await run.events()] == [
        "submitted", "started", "step_started", "step_completed", "completed",
    ]  # fmt: skip


async def test_a_run_that_waits_for_long_is_parked_and_goes_on(workers: Workers) -> None:
    worker = workers.start(pay)
    run = await workers.client().submit(pay, {"order": "a", "naps": 2})
    await wait_until_async(run.status, description="a status")
    assert await run.result(timeout=180) == "ch_a"
    assert charged == {"a": 1}
    assert [event.type for event in await run.events()].count("waiting") == 2
    assert worker.held == ()


async def test_many_runs_on_two_workers_are_each_executed_once(workers: Workers) -> None:
    workers.start(pay, max_concurrency=5)
    workers.start(pay, max_concurrency=5)
    client = workers.client()
    runs = [await client.submit(pay, {"order": f"o{number}", "naps": number % 2}) for number in range(30)]
    results = await asyncio.gather(*(run.result(timeout=180) for run in runs))
    assert results == [f"ch_o{number}" for number in range(30)]
    assert set(charged.values()) == {1}


async def test_a_failed_run_tells_its_error(workers: Workers) -> None:
    worker = workers.start(failing)
    run = await worker.client.submit(failing)
    with pytest.raises(DurableInvocationError) as caught:
        await run.result(timeout=180)
    assert (caught.value.error_type, caught.value.message) == ("ValueError", "no such card")
    assert "in failing" in caught.value.trace


async def test_params_that_do_not_fit_fail_the_run(workers: Workers) -> None:
    worker = workers.start(pay)
    await worker.client.submit(pay, {"order": "a"})
    run_id = worker.store.new_run_id(name="worker_pay")
    await worker.store.submit(Submission(run_id, "worker_pay", b'{"naps":"many"}'))
    with pytest.raises(DurableInvocationError, match=r"worker_pay.*order"):
        await worker.client.result(pay, run_id, timeout=180)


async def test_a_result_that_cannot_be_written_fails_the_run(workers: Workers) -> None:
    worker = workers.start(unwritable)
    run = await worker.client.submit(unwritable)
    with pytest.raises(DurableInvocationError, match="SerializationError"):
        await run.result(timeout=180)


async def test_a_failed_run_is_retried_as_its_workflow_says_with_its_steps_kept(workers: Workers) -> None:
    worker = workers.start(rounds)
    run = await worker.client.submit(rounds, {"order": "a"})
    assert await run.result(timeout=180) == ("ch_a", 3)
    assert charged == {"a": 1}
    assert [event.type for event in await run.events()].count("retried") == 2


async def test_a_round_that_is_far_off_takes_no_place(workers: Workers) -> None:
    worker = workers.start(far_rounds)
    run = await worker.client.submit(far_rounds, {"order": "a"})
    await wait_until_async(lambda: _is(run, "retrying"), description="the run to be parked")
    assert worker.held == ()
    assert await run.cancel() == "cancelled"


async def test_a_round_whose_delay_was_waited_for_elsewhere_goes_on(workers: Workers) -> None:
    worker = workers.start(slow_rounds, park_after=0)
    run = await worker.client.submit(slow_rounds, {"order": "a"})
    assert await run.result(timeout=180) == 2
    assert charged == {"a": 1}
    assert (await run.detail()).attempt == 2


async def test_a_run_that_takes_longer_than_its_timeout_fails(workers: Workers) -> None:
    worker = workers.start(late)
    run = await worker.client.submit(late)
    with pytest.raises(DurableInvocationError, match="RunTimeout"):
        await run.result(timeout=180)


async def test_stop_waits_for_the_bodies(workers: Workers) -> None:
    worker = workers.start(gated)
    run = await worker.client.submit(gated, {"order": "a"})
    await wait_until_async(lambda: charged.get("gate-a"), description="the step")
    worker.stop()
    await asyncio.sleep(0.05)
    gates["gate-a"].set()
    await workers.stop(worker)
    assert await workers.client().status(gated, run) == "completed"


async def test_what_does_not_end_in_drain_timeout_goes_on_elsewhere_uncharged(workers: Workers) -> None:
    worker = workers.start(gated, drain_timeout=0.1)
    run = await worker.client.submit(gated, {"order": "a"})
    await wait_until_async(lambda: charged.get("gate-a"), description="the step")
    await workers.stop(worker)
    client = workers.client()
    detail = await client.detail(gated, run)
    assert (detail.status, detail.deaths, detail.worker) == ("queued", 0, None)
    gates["gate-a"].set()
    workers.start(gated)
    assert await client.result(gated, run, timeout=180) == "ch_a"
    assert charged == {"a": 1, "gate-a": 2}


async def test_the_runs_of_a_dead_worker_are_taken_over_after_its_lease(workers: Workers) -> None:
    first = workers.start(gated, lease_seconds=1, heartbeat_interval=0.1)
    client = workers.client()
    run = await client.submit(gated, {"order": "a"})
    await wait_until_async(lambda: charged.get("gate-a"), description="the step")
    await workers.kill(first)
    assert await run.status() == "running"
    gates["gate-a"].set()
    workers.start(gated, lease_seconds=1, heartbeat_interval=0.1)
    assert await run.result(timeout=180) == "ch_a"
    assert charged["a"] == 1


async def test_a_run_that_was_taken_from_a_living_worker_counts_once(workers: Workers) -> None:
    first = workers.start(gated, heartbeat_interval=0.1)
    client = workers.client()
    run = await client.submit(gated, {"order": "a"})
    await wait_until_async(lambda: charged.get("gate-a"), description="the step")
    await wait_until_async(lambda: _reaped(first), description="it to be taken for dead between two heartbeats")
    await wait_until_async(lambda: charged["gate-a"] == 2, description="the run in its second epoch")
    gates["gate-a"].set()
    assert await run.result(timeout=180) == "ch_a"
    assert charged == {"a": 1, "gate-a": 2}
    assert len([event for event in await run.events() if event.type == "completed"]) == 1


async def _reaped(worker: Any) -> bool:
    """As a worker that is mistaken would."""
    beats = [beat for beat in await worker.store.beats() if beat.worker == worker.id]
    return any([await worker.store.reap(beat) for beat in beats])


async def test_cancel_while_sleeping_and_while_queued(workers: Workers) -> None:
    client = workers.client()
    queued = await client.submit(pay, {"order": "q"})
    assert await queued.cancel() == "cancelled"
    workers.start(pay)
    run = await client.submit(pay, {"order": "a", "naps": 100})
    await wait_until_async(lambda: _is(run, "sleeping"), description="the run to be parked")
    assert await run.cancel() == "cancelled"
    with pytest.raises(DurableInvocationCancelled):
        await run.result(timeout=timedelta(minutes=1))
    assert "q" not in charged


blocking, released = threading.Event(), threading.Event()


@step(retry=Retry(max_attempts=1))
def block() -> None:
    blocking.set()
    assert released.wait(60)
    charged["block"] = charged.get("block", 0) + 1


@step(retry=Retry(max_attempts=1))
async def once_bad(name: str) -> str:
    charged[name] = charged.get(name, 0) + 1
    if charged[name] == 1:
        raise ValueError("bad at first")
    return name


@workflow(name="worker_repaired")
async def repaired(ctx: Context) -> list[str]:
    return [await ctx.step(charge, "a"), await ctx.step(once_bad, "bad")]


@workflow(name="worker_cleanup")
async def cleanup(ctx: Context) -> None:
    try:
        await ctx.step(block)
        await ctx.step(charge, "after")
    finally:
        await ctx.step(charge, "cleanup")


async def test_retry_of_a_failed_run_keeps_its_steps(workers: Workers) -> None:
    worker = workers.start(repaired)
    run = await worker.client.submit(repaired)
    with pytest.raises(DurableInvocationError, match="bad at first"):
        await run.result(timeout=180)
    await run.retry()
    assert await run.result(timeout=180) == ["ch_a", "bad"]
    assert charged == {"a": 1, "bad": 2}


async def test_cancel_in_a_step_lets_it_finish_and_the_body_clean_up_once(workers: Workers) -> None:
    worker = workers.start(cleanup)
    run = await worker.client.submit(cleanup)
    await wait_until_async(blocking.is_set, description="the step")
    assert await run.cancel(timeout=0) == "running"
    held = worker._lives.held[run.run_id]
    await wait_until_async(lambda: held.seen, description="the worker to hear of it")
    released.set()
    assert await run.cancel() == "cancelled"
    assert await run.cancel() == "cancelled"
    assert charged == {"block": 1, "cleanup": 1}


async def test_cancel_of_a_run_in_its_delay_between_rounds(workers: Workers) -> None:
    worker = workers.start(far_rounds, park_after=0)
    run = await worker.client.submit(far_rounds, {"order": "a"})
    await wait_until_async(lambda: _is(run, "retrying"), description="the run to be parked")
    assert await run.cancel() == "cancelled"


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)
