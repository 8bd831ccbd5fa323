"""Runs without a worker: whoever asks drives them, on each store."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pyrula.workflows import Context, DurableInvocationTimeout, InlineWorkflowRunner, step, workflow
from pyrula.workflows.store.runs import RunStore
from tests.conformance.worker.conftest import Workers

done: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


@step
async def note(text: str) -> str:
    done.append(text)
    return text


@workflow(name="inline_basket")
async def basket(ctx: Context, name: str) -> list[str]:
    items: list[str] = []

    def add(sku: str) -> int:
        items.append(sku)
        return len(items)

    ctx.on_update("add", add)
    ctx.on_query("items", lambda: items)
    await ctx.step(note, name)
    await ctx.wait_for_signal("checkout")
    return items


@workflow(name="inline_nap")
async def nap(ctx: Context, seconds: float) -> str:
    await ctx.step(note, "before")
    await ctx.sleep(seconds)
    return await ctx.step(note, "after")


@pytest.fixture
async def runner(make_store: Callable[[], RunStore]) -> AsyncIterator[InlineWorkflowRunner]:
    runner = InlineWorkflowRunner(make_store())
    yield runner
    await runner.close()


async def test_start_drives_the_run_until_it_waits(runner: InlineWorkflowRunner) -> None:
    run = await runner.start(basket, {"name": "a"})
    assert done == ["a"]
    assert await run.status() == "signal_waiting"


async def test_result_update_and_signal_drive_the_run(runner: InlineWorkflowRunner) -> None:
    run = await runner.start(basket, {"name": "a"})
    assert await run.update("add", {"sku": "A-1"}) == 1
    assert await run.query("items") == ["A-1"]
    await run.signal("checkout")
    assert await run.status() == "completed"
    assert await run.result() == ["A-1"]
    assert done == ["a"]


async def test_result_waits_for_sleeps_and_leaves_no_task(runner: InlineWorkflowRunner) -> None:
    run = await runner.start(nap, {"seconds": 2})
    assert done == ["before"]
    assert await run.result(timeout=180) == "after"
    assert done == ["before", "after"]


async def test_a_wait_that_is_over_leaves_the_run_as_it_is(runner: InlineWorkflowRunner) -> None:
    run = await runner.start(nap, {"seconds": 300})
    with pytest.raises(DurableInvocationTimeout):
        await run.result(timeout=0.1)
    assert await run.status() == "sleeping"
    assert await run.cancel() == "cancelled"


async def test_several_calls_at_a_time(runner: InlineWorkflowRunner) -> None:
    runs = [await runner.start(nap, {"seconds": 0.05 * number}) for number in range(4)]
    assert await asyncio.gather(*(run.result(timeout=180) for run in runs)) == ["after"] * 4


async def test_another_process_goes_on_with_the_runs(runner: InlineWorkflowRunner, workers: Workers) -> None:
    run = await runner.start(basket, {"name": "a"})
    await run.update("add", {"sku": "A-1"})
    workers.start(basket)
    client = workers.client()
    await client.signal(basket, run, "checkout")
    assert await client.result(basket, run, timeout=180) == ["A-1"]
    assert done == ["a"]


async def test_it_takes_what_a_client_has_submitted(runner: InlineWorkflowRunner) -> None:
    run = await runner.client.submit("inline_nap", {"seconds": 0})
    assert await run.result(timeout=180) == "after"


async def test_who_waits_for_a_paused_run_is_told_by_the_log(
    runner: InlineWorkflowRunner, caplog: pytest.LogCaptureFixture
) -> None:
    run = await runner.start(basket, {"name": "a"})
    await run.pause("the bank is closed")
    with pytest.raises(DurableInvocationTimeout, match=r"hasn't ended within 0\.3 s \(status paused\)"):
        await run.result(timeout=0.3)
    told = [record.getMessage() for record in caplog.records if "paused" in record.getMessage()]
    assert told == [f"run {run} is paused (the bank is closed): who waits for it waits until somebody unpauses it"]
