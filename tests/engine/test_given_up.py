"""Operations that asyncio gives up: a sibling failed, a task was cancelled. They leave no entry."""

import asyncio
import gc
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, step
from pyrula.workflows.replay.journal import DELIVERIES
from tests.engine.rig import MemoryHost, execution, play, watched

log: list[Any] = []


@step(retry=Retry(max_attempts=1))
async def work(value: int, seconds: float = 0) -> int:
    log.append(("start", value))
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        log.append(("cancelled", value))
        raise
    return value


@step(retry=Retry(max_attempts=1))
async def stubborn(value: int) -> int:
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        log.append(("goes on", value))
    await asyncio.sleep(0.01)
    return value


def deliveries(host: MemoryHost) -> list[str]:
    return [entry.op for entry in host.entries if entry.kind in DELIVERIES]


async def a_failing_sibling(ctx: Context) -> list[Any]:
    seen: list[Any] = []

    async def fails() -> None:
        await ctx.step(work, 1)
        raise ValueError

    async def is_aborted() -> None:
        try:
            await ctx.step(work, 2, 3600)
        finally:
            seen.append(await ctx.step(work, 3))

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(is_aborted())
            group.create_task(fails())
    except* ValueError:
        seen.append("failed")
    seen.append(await ctx.step(work, 4))
    return seen


@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_a_failing_sibling_gives_a_step_up(tasks: bool) -> None:
    log.clear()
    recorded, host = play(a_failing_sibling, tasks=tasks)
    assert recorded.value == [3, "failed", 4]
    assert ("cancelled", 2) in log
    assert [op for op in deliveries(host) if "is_aborted" in op] == [deliveries(host)[1]]
    rows = sorted(host.rows.items())
    for length in range(len(rows) + 1):
        log.clear()
        outcome, _ = play(a_failing_sibling, rows=rows[:length], tasks=not tasks)
        assert outcome.value == recorded.value
        if length == len(rows):
            assert not log  # by rule 8 the given-up step isn't executed again


def test_a_late_completion_is_dropped() -> None:
    async def body(ctx: Context) -> int:
        task = asyncio.create_task(ctx.step(stubborn, 1))
        await ctx.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await ctx.sleep(0.03)
        return await ctx.step(work, 2)

    log.clear()
    recorded, host = play(body)
    assert recorded.value == 2
    assert ("goes on", 1) in log
    assert "step.0:1" not in deliveries(host)
    outcome, again = play(body, rows=sorted(host.rows.items()))
    assert outcome.value == 2
    assert not again.entries


def test_a_value_that_comes_in_the_turn_of_the_cancellation() -> None:
    """The entry stays, the body doesn't see the value: the same on replay."""

    async def body(ctx: Context) -> list[str]:
        seen: list[str] = []

        async def child() -> None:
            try:
                await ctx.step(work, 1)
                seen.append("value")
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        promise: Any = task._fut_waiter  # type: ignore[attr-defined]
        [(wake_up, context)] = promise._callbacks
        promise.remove_done_callback(wake_up)
        promise.add_done_callback(lambda _: task.cancel())
        promise.add_done_callback(wake_up, context=context)
        await asyncio.wait([task])
        return [*seen, str(await ctx.step(work, 2))]

    recorded, host = play(body, tasks=True)
    assert recorded.value == ["cancelled", "2"]
    assert deliveries(host) == [
        "test_a_value_that_comes_in_the_turn_of_the_cancellation.<locals>.body.<locals>.child.0:1",
        "1",
    ]
    outcome, again = play(body, tasks=True, rows=sorted(host.rows.items()))
    assert recorded.value == outcome.value
    assert not again.entries


async def test_errors_that_nobody_sees_are_quiet(prepared: None) -> None:
    """Delivered in the turn in which the task is cancelled: nobody asks the future for its exception."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

    @step(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    async def body(ctx: Context) -> str:
        task = asyncio.create_task(ctx.step(fails))
        await asyncio.sleep(0)
        promise: Any = task._fut_waiter  # type: ignore[attr-defined]
        [(wake_up, context)] = promise._callbacks
        promise.remove_done_callback(wake_up)
        promise.add_done_callback(lambda _: task.cancel())
        promise.add_done_callback(wake_up, context=context)
        await asyncio.wait([task])
        return "cancelled" if task.cancelled() else "not"

    assert (await watched(execution(body, MemoryHost()))).value == "cancelled"
    gc.collect()
    assert not complaints


async def test_a_cancelled_sleep_leaves_no_timer(prepared: None) -> None:
    async def body(ctx: Context) -> str:
        task = asyncio.create_task(ctx.sleep(3600))
        await ctx.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        return "done"

    loop = asyncio.get_running_loop()
    outcome = await watched(execution(body, MemoryHost()))
    assert outcome.value == "done"
    late = [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() > loop.time() + 1000]  # type: ignore[attr-defined]
    assert not late
