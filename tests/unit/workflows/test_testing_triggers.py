"""Windows on the virtual clock of WorkflowTestEnv, and in real time in InlineWorkflowRunner."""

from datetime import timedelta
from typing import Any

import pytest

from pyrula.workflows import (
    Collect,
    Context,
    Debounce,
    InlineWorkflowRunner,
    Limit,
    OpenBatch,
    Rate,
    RunHandle,
    workflow,
)
from pyrula.workflows.testing import NothingMoves, WorkflowTestEnv

MINUTE = timedelta(minutes=1)


@workflow(name="windows_digest", trigger=Collect(key="user", max_events=3, window_seconds=60))
async def digest(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> list[Any]:
    return [event["n"] for event in events]


@workflow(name="windows_save", trigger=Debounce(key="doc", window_seconds=10, max_wait_seconds=30))
async def save(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> list[Any]:
    return [event["n"] for event in events]


@workflow(name="windows_long")
async def long(ctx: Context) -> str:
    await ctx.sleep(timedelta(days=3))
    return "over"


async def ends(env: WorkflowTestEnv) -> list[Any]:
    return [await run.result() for run in env.fired]


async def test_debounce_past_its_longest_wait() -> None:
    env = WorkflowTestEnv()
    began = env.now()
    moments = []
    for n in range(5):
        assert await env.client.trigger(save, {"doc": "d", "n": n}) is None
        await env.advance(9)
        moments.append(len(env.fired))
    assert moments == [0, 0, 0, 1, 1]
    (run,) = env.fired
    detail = await run.detail()
    assert (detail.created_at - began).total_seconds() == 30
    assert detail.metadata == {"batch": {"reason": "max_wait", "opened_at": began.isoformat()}}
    await env.advance(1)
    assert await ends(env) == [[0, 1, 2, 3], [4]]


async def test_what_falls_due_while_the_clock_is_moved_does_so_at_its_time() -> None:
    env = WorkflowTestEnv()
    began = env.now()
    for n in range(4):
        await env.client.trigger(digest, {"user": f"u{n}", "n": n})
        await env.advance(7)
    await env.advance(10 * MINUTE)
    assert await ends(env) == [[0], [1], [2], [3]]
    starts = [((await run.detail()).created_at - began).total_seconds() for run in env.fired]
    assert starts == pytest.approx([60, 67, 74, 81])


async def test_waiting_for_a_run_skips_over_windows_and_closes_them() -> None:
    env = WorkflowTestEnv()
    await env.client.trigger(digest, {"user": "u", "n": 0})
    run = await env.start(long)
    assert await run.result() == "over"
    assert await ends(env) == [[0]]
    assert [await one.status() for one in env.fired] == ["completed"]


async def test_a_full_batch_is_driven_to_its_end_by_the_event_that_fills_it() -> None:
    env = WorkflowTestEnv()
    runs = [await env.client.trigger(digest, {"user": "u", "n": n}) for n in range(7)]
    made = [run for run in runs if run is not None]
    assert [await run.status() for run in made] == ["completed"] * 2
    assert [await run.result() for run in made] == [[0, 1, 2], [3, 4, 5]]
    assert env.fired == []
    (left,) = await env.client.buffered("windows_digest")
    assert isinstance(left, OpenBatch)
    assert (left.key, left.events) == ("u", 1)


async def test_a_body_feeds_a_window_in_virtual_time() -> None:
    @workflow(name="windows_feeder")
    async def feeder(ctx: Context) -> None:
        for n in range(3):
            await ctx.trigger(save, {"doc": "d", "n": n})
            await ctx.sleep(5)

    env = WorkflowTestEnv()
    await (await env.start(feeder)).result()
    assert env.fired == []
    await env.advance(MINUTE)
    assert await ends(env) == [[0, 1, 2]]


async def test_a_batch_waits_for_its_gates_in_virtual_time() -> None:
    began: list[float] = []
    env = WorkflowTestEnv()

    @workflow(
        name="windows_gated",
        trigger=Collect(key="user", max_events=1, window_seconds=60),
        concurrency=Limit(key="key", max=1),
        rate_limit=Rate(key="key", per_second=0.1),
    )
    async def gated(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> int:
        began.append(env.now().timestamp())
        n: int = events[0]["n"]
        return n

    runs = [await env.client.trigger(gated, {"user": "u", "n": n}) for n in range(3)]
    assert all(isinstance(run, RunHandle) for run in runs)
    assert [await run.result() for run in runs if run is not None] == [0, 1, 2]
    assert [moment - began[0] for moment in began] == pytest.approx([0, 10, 20])


async def test_a_key_that_fails_for_a_batch_is_told_to_the_test() -> None:
    @workflow(
        name="windows_broken",
        trigger=Collect(key="user", max_events=2, window_seconds=60),
        concurrency=Limit(key=lambda params: params["tenant"], max=1),
    )
    async def broken(ctx: Context, key: str, events: list[Any], count: int) -> None: ...

    env = WorkflowTestEnv()
    await env.client.trigger(broken, {"user": "u"})
    with pytest.raises(ValueError, match=r"workflow 'windows_broken': the key of Limit failed.*KeyError: 'tenant'"):
        await env.client.trigger(broken, {"user": "u"})
    await env.client.trigger(broken, {"user": "v"})
    with pytest.raises(ValueError, match="workflow 'windows_broken': the key of Limit failed"):
        await env.advance(MINUTE)


async def test_an_open_window_is_no_reason_to_wait_for_ever() -> None:
    @workflow(name="windows_waiter")
    async def waiter(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    env = WorkflowTestEnv()
    await env.client.trigger(digest, {"user": "u", "n": 0})
    run = await env.start(waiter)
    with pytest.raises(NothingMoves, match="waits for signal go"):
        await run.result()
    assert await ends(env) == [[0]]


async def test_inline_closes_windows_while_a_call_drives() -> None:
    @workflow(name="windows_short", trigger=Debounce(key="doc", window_seconds=0.05))
    async def short(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
        got.append([event["n"] for event in events])

    @workflow(name="windows_nap")
    async def nap(ctx: Context) -> None:
        while not got:
            await ctx.sleep(0.05)

    got: list[list[int]] = []
    runner = InlineWorkflowRunner()
    for n in range(3):
        assert await runner.client.trigger(short, {"doc": "d", "n": n}) is None
    await (await runner.start(nap)).result(timeout=180)
    assert got == [[0, 1, 2]]
    run = await runner.client.trigger(digest, {"user": "u", "n": 0})
    assert run is None
    await runner.client.trigger(digest, {"user": "u", "n": 1})
    run = await runner.client.trigger(digest, {"user": "u", "n": 2})
    assert run is not None
    assert await run.result(timeout=180) == [0, 1, 2]
    await runner.close()
