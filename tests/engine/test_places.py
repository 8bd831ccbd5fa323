"""Where tasks stand: ids go by creation, so each task gets its own values back, whatever runs first."""

import asyncio
import contextvars
import random
from typing import Any

from pyrula.workflows import Context, PyrulaError, Retry, step
from tests.engine.rig import MemoryHost, execution, play, watched


@step(retry=Retry(max_attempts=1))
async def charge(name: str) -> str:
    return f"charge of {name}"


def ops(host: Any) -> list[str]:
    return [entry.op for entry in host.entries if entry.kind == "value"]


def test_each_task_gets_its_own_charge_whoever_asks_first() -> None:
    delays = [3, 2, 1]

    async def body(ctx: Context) -> list[str]:
        async def pay(name: str, delay: int) -> str:
            await asyncio.sleep(delay / 500)
            return await ctx.step(charge, name)

        return await asyncio.gather(*(pay(name, delay) for name, delay in zip("abc", delays, strict=True)))

    recorded, host = play(body)
    for order in ([1, 2, 3], [2, 3, 1], [1, 1, 1]):
        delays[:] = order
        outcome, again = play(body, rows=sorted(host.rows.items()))
        assert outcome.value == recorded.value == [f"charge of {name}" for name in "abc"]
        assert not again.entries


def test_a_helper_task_of_another_name_shifts_nobody() -> None:
    helped = True

    async def helper() -> None:
        await asyncio.sleep(0)

    async def body(ctx: Context) -> list[str]:
        async def pay(name: str) -> str:
            return await ctx.step(charge, name)

        if helped:
            await asyncio.create_task(helper())
        return await asyncio.gather(pay("a"), pay("b"))

    recorded, host = play(body)
    helped = False
    outcome, again = play(body, rows=sorted(host.rows.items()))
    assert outcome.value == recorded.value
    assert not again.entries


def test_places_are_paths_of_names_and_counts() -> None:
    async def body(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.step(charge, "inner")

        async def outer() -> None:
            await asyncio.gather(inner(), ctx.step(charge, "direct"))
            await ctx.now()

        await ctx.now()
        await asyncio.gather(outer(), outer())
        await ctx.now()

    _, host = play(body)
    here = "test_places_are_paths_of_names_and_counts.<locals>.body.<locals>"
    children = [f"{here}.outer.{number}" for number in range(2)]
    assert sorted(ops(host)) == sorted(
        ["1", "2"]
        + [f"{child}:1" for child in children]
        + [f"{child}/step.0:1" for child in children]
        + [f"{child}/{here}.inner.0:1" for child in children]
    )


def test_two_tasks_in_one_context_have_places_of_their_own() -> None:
    async def body(ctx: Context) -> list[str]:
        shared = contextvars.copy_context()
        tasks = [asyncio.create_task(ctx.step(charge, name), context=shared) for name in "ab"]
        return [await task for task in tasks]

    recorded, host = play(body)
    assert recorded.value == ["charge of a", "charge of b"]
    assert sorted(ops(host)) == ["step.0:1", "step.1:1"]


def test_an_operation_from_a_thread_through_the_loop() -> None:
    async def body(ctx: Context) -> str:
        loop = asyncio.get_running_loop()

        def in_thread() -> str:
            return asyncio.run_coroutine_threadsafe(ctx.step(charge, "a"), loop).result(5)

        return await asyncio.to_thread(in_thread)

    for tasks in (False, True):
        recorded, host = play(body, tasks=tasks)
        assert recorded.value == "charge of a", recorded.error
        outcome, again = play(body, rows=sorted(host.rows.items()), tasks=not tasks)
        assert outcome.value == "charge of a"
        assert not again.entries


def test_an_operation_from_a_task_in_a_foreign_context_is_refused() -> None:
    async def body(ctx: Context) -> str:
        return await asyncio.create_task(ctx.step(charge, "a"), context=contextvars.Context())

    for tasks in (False, True):
        outcome, host = play(body, tasks=tasks)
        assert isinstance(outcome.error, PyrulaError)
        assert "outside of the run's own tasks" in str(outcome.error)
        assert not host.entries


def test_an_operation_inside_a_step_is_refused() -> None:
    async def body(ctx: Context) -> str:
        @step(retry=Retry(max_attempts=1))
        async def nested() -> str:
            return await ctx.step(charge, "a")

        return await ctx.step(nested)

    for tasks in (False, True):
        outcome, _ = play(body, tasks=tasks)
        assert "outside of the run's own tasks" in str(outcome.error)


def test_closing_an_async_generator_makes_no_task_of_the_run() -> None:
    async def body(ctx: Context) -> list[str]:
        async def numbers() -> Any:
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(0)

        async for _ in numbers():
            break
        await asyncio.sleep(0)
        return [await ctx.step(charge, "a")]

    outcome, host = play(body, tasks=False)
    assert outcome.value == ["charge of a"]
    assert host.kinds() == [("value", "1", "charge")]  # no head: the run stayed on the straight path


async def test_tasks_hash_the_same_in_every_process(prepared: None) -> None:
    hashes: list[list[int]] = []

    async def body(ctx: Context) -> None:
        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
        hashes.append([hash(task) for task in tasks])
        assert len(set(tasks)) == 3
        await asyncio.wait(tasks)

    for _ in range(2):
        assert (await watched(execution(body, MemoryHost()))).status == "completed"
    assert hashes[0] == hashes[1]
    salted = execution(body, MemoryHost(), run_id="00-other")
    await watched(salted)
    assert hashes[2] != hashes[0]


def test_random_delays_never_swap_values() -> None:
    rng = random.Random(7)

    async def body(ctx: Context) -> list[str]:
        async def pay(name: str) -> str:
            await asyncio.sleep(rng.random() / 300)
            first = await ctx.step(charge, name)
            await asyncio.sleep(rng.random() / 300)
            return first + await ctx.step(charge, name * 2)

        return await asyncio.gather(*(pay(name) for name in "abcd"))

    recorded, host = play(body)
    rows = sorted(host.rows.items())
    for length in range(len(rows) + 1):
        outcome, _ = play(body, rows=rows[:length], tasks=True)
        assert outcome.status == "completed", outcome.error
        assert outcome.value == recorded.value
