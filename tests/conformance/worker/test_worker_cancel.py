"""Cancel in every state of a run: it ends as cancelled, its cleanup runs once, and a second cancel changes nothing."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import (
    Context,
    DurableInvocationCancelled,
    RunCancelled,
    RunFinishedError,
    RunHandle,
    WorkflowWorker,
    step,
    workflow,
)
from tests.conformance.worker.conftest import Workers
from tests.services.waiting import wait_until_async

done: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()
    gates.clear()


@step
async def note(text: str) -> None:
    done.append(text)


@step
async def at_gate(name: str) -> str:
    done.append(f"at {name}")
    await gates.setdefault(name, asyncio.Event()).wait()
    done.append(f"through {name}")
    return name


@workflow(name="cancel_child")
async def child(ctx: Context, name: str) -> str:
    try:
        return str(await ctx.wait_for_signal("never"))
    finally:
        await ctx.step(note, f"{name} cleaned up")


@workflow(name="cancel_states")
async def states(ctx: Context, where: str) -> None:
    try:
        if where == "step":
            await ctx.step(at_gate, "work")
        elif where == "sleep":
            await ctx.sleep(3600)
        elif where == "signal":
            await ctx.wait_for_signal("never")
        elif where == "interrupt":
            await ctx.interrupt("well?")
        elif where == "child":
            await ctx.run_child(child, {"name": "child"})
        elif where == "abandoned":
            await ctx.run_child(child, {"name": "abandoned"}, on_parent_close="abandon")
        elif where == "gather":
            await asyncio.gather(ctx.sleep(3600), ctx.wait_for_signal("never"), ctx.run_child(child, {"name": "child"}))
        await ctx.step(note, "went on")
    except RunCancelled:
        await ctx.step(note, "told")
        raise
    finally:
        await ctx.step(at_gate, "cleanup")
        await ctx.step(note, "cleaned up")


async def is_(run: RunHandle[Any], status: str) -> bool:
    return bool(await run.status() == status)


WHERE = {
    "step": "running",
    "sleep": "sleeping",
    "signal": "signal_waiting",
    "interrupt": "interrupt_waiting",
    "child": "child_waiting",
    "abandoned": "child_waiting",
    "gather": "sleeping",
}


async def waiting(workers: Workers, where: str) -> tuple[WorkflowWorker, RunHandle[None]]:
    worker = workers.start(states, child, park_after=0.05)
    run = await worker.client.submit(states, {"where": where})
    await wait_until_async(lambda: is_(run, WHERE[where]), description=f"the run to be {WHERE[where]}")
    if where == "step":
        await wait_until_async(lambda: done == ["at work"], description="the step to be under way")
    return worker, run


@pytest.mark.parametrize("where", WHERE)
async def test_cancel_in_each_state_cleans_up_once_and_the_second_changes_nothing(workers: Workers, where: str) -> None:
    worker, run = await waiting(workers, where)
    assert await run.cancel(timeout=0) not in ("completed", "cancelled")
    if where == "step":
        # it finishes: what it does may be under way at the other end
        held = worker._lives.held[run.run_id]
        await wait_until_async(lambda: held.seen, description="the worker to hear of it")
        assert done == ["at work"]
        gates["work"].set()
    await wait_until_async(lambda: "at cleanup" in done, description="the cleanup to be under way")
    # in cleanup, twice more, and it isn't disturbed
    assert await run.cancel(timeout=0) == "running"
    assert await run.cancel(timeout=0.05) == "running"
    gates["cleanup"].set()
    with pytest.raises(DurableInvocationCancelled):
        await run.result(timeout=180)
    # after the end
    assert await run.cancel() == "cancelled"
    with pytest.raises(RunFinishedError):
        await run.signal("never")
    own = [text for text in done if not text.startswith(("child", "abandoned"))]
    in_step = ["at work", "through work"] if where == "step" else []
    assert own == [*in_step, "told", "at cleanup", "through cleanup", "cleaned up"]
    if where in ("child", "gather"):
        await wait_until_async(lambda: done.count("child cleaned up") == 1, description="the child to clean up")
    types = [event.type for event in await run.events()]
    assert types.count("cancelled") == 1
    assert types.index("started") < types.index("cancel_requested") < types.index("cancelled")
    assert await worker.client.status(states, run) == "cancelled"


async def test_an_abandoned_child_goes_on(workers: Workers) -> None:
    worker, run = await waiting(workers, "abandoned")
    gates["cleanup"] = asyncio.Event()
    gates["cleanup"].set()
    assert await run.cancel() == "cancelled"
    (started,) = [event.data["run_id"] for event in await run.events() if event.type == "child_started"]
    orphan = worker.client.handle(child, started)
    assert await orphan.status() in ("signal_waiting", "running")
    await orphan.signal("never", "later")
    assert await orphan.result(timeout=180) == "later"
    assert (await orphan.detail()).parent == run.run_id


async def test_cancel_while_queued_never_starts_the_body(workers: Workers) -> None:
    client = workers.client()
    run = await client.submit(states, {"where": "signal"})
    assert await run.cancel() == "cancelled"
    assert await run.cancel() == "cancelled"
    workers.start(states)
    later = await client.submit(states, {"where": "nowhere"})
    gates["cleanup"] = asyncio.Event()
    gates["cleanup"].set()
    await later.result(timeout=180)
    assert done == ["went on", "at cleanup", "through cleanup", "cleaned up"]
    assert [event.type for event in await run.events()] == ["submitted", "cancelled"]


@pytest.mark.parametrize("ended", ["completed", "failed"])
async def test_cancel_after_the_end_gives_what_stands(workers: Workers, ended: str) -> None:
    @workflow(name="cancel_ended")
    async def over(ctx: Context) -> int:
        if ended == "failed":
            raise ValueError("no")
        return 5

    worker = workers.start(over)
    run = await worker.client.submit(over)
    await wait_until_async(lambda: is_(run, ended), description="the end")
    assert await run.cancel() == ended
    assert await run.status() == ended


async def test_a_worker_that_dies_in_cleanup_leaves_it_to_another(workers: Workers) -> None:
    quick = {"lease_seconds": 1, "heartbeat_interval": 0.1, "park_after": 0.05}
    first = workers.start(states, child, **quick)
    run = await workers.client().submit(states, {"where": "signal"})
    await wait_until_async(lambda: is_(run, "signal_waiting"), description="the run to wait")
    assert await run.cancel(timeout=0) != "cancelled"
    await wait_until_async(lambda: "at cleanup" in done, description="the cleanup to be under way")
    await workers.kill(first)
    gates["cleanup"].set()
    workers.start(states, child, **quick)
    with pytest.raises(DurableInvocationCancelled):
        await run.result(timeout=180)
    # the step that was in progress ran again, those that were done didn't
    assert (done.count("told"), done.count("cleaned up")) == (1, 1)
    assert done.count("through cleanup") <= 2
