"""ctx.timeout, and asyncio's own, which is refused around operations."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import Context, NonDeterminismError, Retry, step
from tests.engine.rig import LaterClock, MemoryHost, begin, execution, play, watched

executed: list[Any] = []


@step(retry=Retry(max_attempts=1))
async def work(value: int, seconds: float = 0) -> int:
    executed.append(value)
    await asyncio.sleep(seconds)
    return value


def replays_equal(body: Any, value: Any) -> MemoryHost:
    recorded, host = play(body, tasks=False)
    assert recorded.value == value, recorded.error
    rows = sorted(host.rows.items())
    for length in range(len(rows) + 1):
        executed.clear()
        outcome, again = play(body, rows=rows[:length], tasks=bool(length % 2))
        assert outcome.status == "completed", outcome.error
        if length == len(rows):
            assert outcome.value == value
            assert not executed
            assert not again.entries
    return host


def test_a_timeout_that_ends() -> None:
    async def body(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        try:
            async with ctx.timeout(0.01) as scope:
                seen.append(await ctx.step(work, 1))
                await ctx.step(work, 2, 3600)
        except TimeoutError as error:
            seen.append(str(error))
        return [*seen, scope.expired(), await ctx.step(work, 3)]

    host = replays_equal(body, [1, "the time of 0.01 s is up (timeout (operation 1))", True, 3])
    assert ("value", "1", "") in host.kinds()


def test_a_timeout_that_is_not_reached() -> None:
    async def body(ctx: Context) -> list[Any]:
        async with ctx.timeout(60) as scope:
            value = await ctx.step(work, 1)
        return [value, scope.expired(), await ctx.step(work, 2)]

    host = replays_equal(body, [1, False, 2])
    assert ("value", "1", "") not in host.kinds()


def test_nested_timeouts_end_the_right_block() -> None:
    async def body(ctx: Context) -> list[str]:
        seen = []
        try:
            async with ctx.timeout(0.01):
                try:
                    async with ctx.timeout(60):
                        await ctx.step(work, 1, 3600)
                except TimeoutError:
                    seen.append("inner")
        except TimeoutError:
            seen.append("outer")
        return seen

    replays_equal(body, ["outer"])


def test_a_timeout_around_a_group_whose_child_fails() -> None:
    """Up to Python 3.12 the group leaves a cancellation counted that was taken back."""

    async def body(ctx: Context) -> list[str]:
        async def fails() -> None:
            await ctx.step(work, 1)
            raise ValueError

        seen = []
        try:
            async with ctx.timeout(0.02):
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(fails())
                        group.create_task(ctx.step(work, 2, 3600))
                except* ValueError:
                    seen.append("failed")
                await ctx.step(work, 3, 3600)
        except TimeoutError:
            seen.append("time")
        return seen

    replays_equal(body, ["failed", "time"])


def test_only_what_is_left_of_a_timeout_is_waited_for() -> None:
    async def body(ctx: Context) -> str:
        try:
            async with ctx.timeout(3600):
                await ctx.step(work, 1, 7200)
        except TimeoutError:
            return "time"
        return "no"

    outcome, _ = play(body, rows=begin(body, rows=1), clock=LaterClock())
    assert outcome.value == "time"


def test_a_sleep_replays_and_waits_for_what_is_left() -> None:
    async def body(ctx: Context) -> str:
        await ctx.sleep(3600)
        return "slept"

    for tasks in (False, True):
        begun = begin(body, rows=1, tasks=tasks)
        outcome, host = play(body, rows=begun, tasks=not tasks, clock=LaterClock())
        assert outcome.value == "slept"
        outcome, _ = play(body, rows=sorted(host.rows.items()), tasks=tasks)
        assert outcome.value == "slept"


async def in_asyncio_timeout(ctx: Context) -> None:
    async with asyncio.timeout(5):
        await ctx.step(work, 1)


async def in_wait_for(ctx: Context) -> None:
    await asyncio.wait_for(ctx.step(work, 1), 5)


async def in_wait_for_deeper(ctx: Context) -> None:
    async def deeper() -> None:
        await asyncio.gather(ctx.step(work, 1), ctx.now())

    await asyncio.wait_for(deeper(), 5)


async def in_timed_wait(ctx: Context) -> None:
    await asyncio.wait([asyncio.create_task(ctx.step(work, 1))], timeout=5)


async def in_as_completed(ctx: Context) -> None:
    for next_one in asyncio.as_completed([ctx.step(work, 1), ctx.step(work, 2)]):
        await next_one


async def in_timed_as_completed(ctx: Context) -> None:
    tasks = [asyncio.create_task(ctx.step(work, 1))]
    for next_one in asyncio.as_completed(tasks, timeout=5):
        await next_one


@pytest.mark.parametrize(
    ("body", "way_out"),
    [
        (in_asyncio_timeout, "ctx.timeout"),
        (in_wait_for, "ctx.timeout"),
        (in_wait_for_deeper, "ctx.timeout"),
        (in_timed_wait, "ctx.wait"),
        (in_as_completed, "ctx.as_completed"),
        (in_timed_as_completed, "ctx.as_completed"),
    ],
)
@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_what_a_replay_cannot_repeat_is_refused(body: Any, way_out: str, tasks: bool) -> None:
    executed.clear()
    outcome, _ = play(body, tasks=tasks)
    assert outcome.status == "paused"
    assert isinstance(outcome.error, NonDeterminismError)
    assert way_out in str(outcome.error)
    assert not executed


@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_asyncio_timeouts_around_plain_code_work(tasks: bool) -> None:
    async def body(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        async with asyncio.timeout(5):
            await asyncio.sleep(0.001)
        seen.append(await ctx.step(work, 1))
        try:
            async with asyncio.timeout(0.002):
                await asyncio.sleep(3600)
        except TimeoutError:
            seen.append(await ctx.step(work, 2))
        try:
            await asyncio.wait_for(asyncio.sleep(3600), 0.002)
        except TimeoutError:
            seen.append(await ctx.step(work, 3))
        return seen

    outcome, host = play(body, tasks=tasks)
    assert outcome.value == [1, 2, 3]
    again, _ = play(body, rows=sorted(host.rows.items()), tasks=not tasks)
    assert again.value == [1, 2, 3]


def test_as_completed_over_tasks_is_fine() -> None:
    async def body(ctx: Context) -> list[int]:
        tasks = [asyncio.create_task(ctx.step(work, value, (3 - value) / 300)) for value in range(3)]
        return [await next_one for next_one in asyncio.as_completed(tasks)]

    replays_equal(body, [2, 1, 0])


def test_ctx_as_completed_both_ways() -> None:
    async def body(ctx: Context) -> list[int]:
        first = [task.result() async for task in ctx.as_completed(ctx.step(work, n, (3 - n) / 200) for n in range(3))]
        second = [await one for one in ctx.as_completed(ctx.step(work, n, n / 200) for n in range(3))]
        return first + second

    replays_equal(body, [2, 1, 0, 0, 1, 2])


def test_ctx_as_completed_with_a_timeout() -> None:
    async def body(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        try:
            async for task in ctx.as_completed([ctx.step(work, 1), ctx.step(work, 2, 3600)], timeout=0.02):
                seen += [task.result()]
        except TimeoutError:
            seen.append("time")
        return seen

    replays_equal(body, [1, "time"])


def test_ctx_wait_gives_lists_in_the_order_given() -> None:
    async def body(ctx: Context) -> list[Any]:
        made = [ctx.step(work, n, 3600 if n == 1 else (3 - n) / 200) for n in range(4)]
        done, pending = await ctx.wait(made, timeout=0.1)
        return [[task.result() for task in done], len(pending)]

    replays_equal(body, [[0, 2, 3], 1])


def test_ctx_gather() -> None:
    async def body(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.step(work, 1), ctx.now(), ctx.step(work, 2))

    recorded, host = play(body)
    outcome, _ = play(body, rows=sorted(host.rows.items()))
    assert outcome.value == recorded.value
    assert recorded.value[::2] == [1, 2]


async def test_a_timeout_leaves_no_timer(prepared: None) -> None:
    async def body(ctx: Context) -> int:
        async with ctx.timeout(3600):
            return await ctx.step(work, 1)

    loop: Any = asyncio.get_running_loop()
    assert (await watched(execution(body, MemoryHost()))).value == 1
    assert not [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() > loop.time() + 1000]
