"""The straight path: the body in its caller's own task, which is left as it was."""

import asyncio
import contextvars
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, step
from pyrula.workflows.engine.run import RUN
from tests.engine.rig import MemoryHost, execution, play, watched

variable: "contextvars.ContextVar[str]" = contextvars.ContextVar("variable", default="unset")
pytestmark = pytest.mark.usefixtures("prepared")


@step(retry=Retry(max_attempts=1))
async def work(value: int, turns: int = 0) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def test_the_body_runs_in_the_callers_task() -> None:
    async def body(ctx: Context) -> Any:
        await ctx.step(work, 1, 2)
        return asyncio.current_task()

    assert (await execution(body, MemoryHost()).run()).value is asyncio.current_task()


async def test_a_body_that_never_suspends_costs_no_turn() -> None:
    passed = []
    asyncio.get_running_loop().call_soon(passed.append, 1)

    async def body(ctx: Context) -> int:
        await ctx.now()
        return await ctx.step(work, 5)

    assert (await execution(body, MemoryHost()).run()).value == 5
    assert not passed


@pytest.mark.parametrize("how", ["silent", "suspends", "makes tasks"])
async def test_the_callers_context_stays_as_it_was(how: str) -> None:
    async def body(ctx: Context) -> list[Any]:
        seen = [variable.get(), RUN.get() is not None]
        variable.set("by the body")
        if how == "suspends":
            await asyncio.sleep(0)
        if how == "makes tasks":
            await asyncio.gather(ctx.step(work, 1), asyncio.sleep(0))
        return [*seen, variable.get(), RUN.get() is not None]

    variable.set("by the caller")
    outcome = await execution(body, MemoryHost()).run()
    assert outcome.value == ["by the caller", True, "by the body", True]
    assert variable.get() == "by the caller"
    assert RUN.get() is None


async def test_no_run_is_set_inside_a_step() -> None:
    @step
    async def inside() -> bool:
        before = RUN.get() is None
        await asyncio.sleep(0)
        return before and RUN.get() is None

    async def body(ctx: Context) -> list[bool]:
        return [await ctx.step(inside), RUN.get() is not None]

    assert (await execution(body, MemoryHost()).run()).value == [True, True]


async def test_later_runs_of_a_workflow_that_made_tasks_get_a_task_of_their_own() -> None:
    tasks: list[Any] = []

    async def body(ctx: Context) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.gather(ctx.step(work, 1), ctx.step(work, 2))

    first = execution(body, MemoryHost())
    await watched(first)
    second = execution(first.definition, MemoryHost())
    await watched(second)
    assert type(tasks[0]).__name__ == "Task"
    assert type(tasks[1]).__name__ == "RunTask"


async def test_a_task_made_by_a_callback_while_a_step_runs_in_place() -> None:
    """The run gets its crew in the middle of an operation of the straight path."""

    async def body(ctx: Context) -> list[int]:
        loop = asyncio.get_running_loop()
        made: list[asyncio.Task[int]] = []
        loop.call_soon(lambda: made.append(loop.create_task(ctx.step(work, 7))))
        first = await ctx.step(work, 1, 5)
        return [first, await made[0], await ctx.step(work, 3)]

    host = MemoryHost()
    outcome = await watched(execution(body, host))
    assert outcome.value == [1, 7, 3], outcome.error
    for tasks in (False, True):
        again, more = await asyncio.to_thread(play, body, rows=sorted(host.rows.items()), tasks=tasks)
        assert again.value == [1, 7, 3], again.error
        assert not more.entries


async def test_concurrent_straight_runs_do_not_mix() -> None:
    async def body(ctx: Context, number: int) -> list[Any]:
        values = []
        for turn in range(3):
            variable.set(f"run {number}")
            values.append(await ctx.step(work, number * 10 + turn, number % 3))
            assert variable.get() == f"run {number}"
        return [ctx.run.id, *values]

    async def one(number: int) -> Any:
        run = execution(body, MemoryHost(), number, run_id=f"00-{number}")
        return (await run.run()).value

    results = await asyncio.gather(*(one(number) for number in range(20)))
    assert results == [[f"00-{n}", n * 10, n * 10 + 1, n * 10 + 2] for n in range(20)]


async def test_many_runs_after_another_in_one_task() -> None:
    async def body(ctx: Context) -> int:
        return await ctx.step(work, 1, 1)

    task = asyncio.current_task()
    assert task is not None
    for number in range(50):
        run = execution(body, MemoryHost())
        if number % 3 == 0:
            asyncio.get_running_loop().call_soon(run.cut)
            assert (await run.run()).status == "cut"
        else:
            assert (await run.run()).value == 1
        assert task.cancelling() == 0


async def test_wrong_arguments_fail_the_run() -> None:
    async def body(ctx: Context, needed: int) -> None: ...

    outcome = await execution(body, MemoryHost()).run()
    assert outcome.status == "failed"
    assert isinstance(outcome.error, TypeError)
