"""Cancellation in and around a step: by the step itself, by others, by the body, by the run's caller."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, step
from pyrula.workflows.execution import install
from tests.engine.rig import MemoryHost, both, execution, once, play

calls: list[Any] = []
fast = Retry(max_attempts=3, initial=0)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def _own_timeout() -> str:
    calls.append(1)
    async with asyncio.timeout(0.001):
        await asyncio.sleep(60)
    return "never"


async def _handled_timeout() -> str:
    calls.append(1)
    try:
        await _own_timeout()
    except TimeoutError:
        await asyncio.sleep(0.001)
    return "late"


async def _group_with_a_failing_child() -> str:
    calls.append(1)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("child")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.sleep(60)
    except* ValueError:
        pass
    await asyncio.sleep(0)
    return "went on"


async def _future_that_others_cancel() -> str:
    calls.append(1)
    waiter = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, waiter.cancel)
    await waiter
    return "never"


async def _task_that_others_cancel() -> str:
    calls.append(1)
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_later(0.001, task.cancel)
    await task
    return "never"


@both
@pytest.mark.parametrize("fn", [_handled_timeout, _group_with_a_failing_child])
def test_a_step_may_cancel_what_it_waits_for_itself(fn: Any, tasks: bool) -> None:
    body = once(step(retry=fast)(fn))
    outcome, _ = play(body, tasks=tasks)
    assert outcome.status == "completed"
    assert outcome.value in ("late", "went on")


@both
@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (_own_timeout, "TimeoutError"),
        (_future_that_others_cancel, "CancelledError"),
        (_task_that_others_cancel, "CancelledError"),
    ],
)
def test_what_a_step_waits_for_is_cancelled_by_others_and_it_is_tried_again(fn: Any, error: str, tasks: bool) -> None:
    body = once(step(retry=fast)(fn))
    outcome, host = play(body, tasks=tasks)
    assert outcome.status == "completed"
    assert outcome.value[:3] == ["failed", fn.__name__, 3]
    assert error in outcome.value[3] or error in outcome.value[4]
    assert len(calls) == 3
    again, _ = play(body, tasks=not tasks, rows=sorted(host.rows.items()))
    assert again.value == outcome.value
    assert len(calls) == 3


def test_a_body_that_cancelled_its_task_hears_of_it_in_its_next_step_and_that_is_not_tried_again() -> None:
    @step(retry=fast)
    async def waits() -> None:
        calls.append(1)
        await asyncio.sleep(60)

    async def body(ctx: Context) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await ctx.step(waits)
        except asyncio.CancelledError:
            task.uncancel()
            return "heard"
        return "not"

    outcome, _ = play(body, tasks=False)
    assert (outcome.status, outcome.value) == ("completed", "heard")
    assert len(calls) == 1


def test_a_run_whose_caller_is_cancelled_while_a_step_waits_is_cut_and_its_cleanup_writes_nothing() -> None:
    @step
    async def waits() -> None:
        calls.append("waits")
        await asyncio.sleep(60)

    @step
    async def cleans() -> None:
        calls.append("cleans")

    async def body(ctx: Context) -> None:
        try:
            await ctx.step(waits)
        finally:
            await ctx.step(cleans)

    host = MemoryHost(())

    async def main() -> None:
        install(asyncio.get_running_loop())
        run = execution(body, host)
        task = asyncio.ensure_future(run.run())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.stopped == "cut"

    asyncio.run(main())
    assert calls == ["waits"]
    assert not host.rows
