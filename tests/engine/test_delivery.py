"""When something is delivered to a body: only when it is settled, and one at a time. Each body broke a simpler rule."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, step
from pyrula.workflows.replay.journal import DELIVERIES
from tests.engine.rig import MemoryHost, play

executed: list[Any] = []


@step(retry=Retry(max_attempts=1))
async def work(value: int, turns: int = 0) -> int:
    executed.append(value)
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def a_spinner_beside_a_step(ctx: Context) -> list[int]:
    seen: list[int] = []

    async def spins() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        seen.append(0)

    async def steps() -> None:
        seen.append(await ctx.step(work, 1))

    await asyncio.gather(spins(), steps())
    return seen


async def nested(ctx: Context, depth: int, value: int) -> list[Any]:
    if not depth:
        return [await ctx.step(work, value, value % 7)]
    return await asyncio.gather(*(nested(ctx, depth - 1, value * 2 + number) for number in range(2)))


async def gathers_nested_five_deep(ctx: Context) -> list[Any]:
    order: list[int] = []

    async def watched(value: int) -> None:
        await nested(ctx, 4, value)
        order.append(value)

    await asyncio.gather(*(watched(value) for value in range(3)))
    return order


async def a_chain_of_plain_futures(ctx: Context) -> list[int]:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    links: list[asyncio.Future[int]] = [loop.create_future() for _ in range(12)]
    for first, second in itertools.pairwise(links):
        first.add_done_callback(lambda done, second=second: second.set_result(done.result()))

    async def at_the_end() -> None:
        seen.append(await links[-1])

    async def steps() -> None:
        links[0].set_result(await ctx.step(work, 1))
        seen.append(await ctx.step(work, 2))

    await asyncio.gather(at_the_end(), steps(), ctx.step(work, 3))
    return seen


async def shields_in_a_row(ctx: Context) -> list[int]:
    seen: list[int] = []

    async def shielded(value: int) -> None:
        seen.append(await asyncio.shield(asyncio.shield(ctx.step(work, value, value))))

    await asyncio.gather(*(shielded(value) for value in range(4)))
    return seen


async def a_lock_that_is_handed_on(ctx: Context) -> list[int]:
    lock = asyncio.Lock()
    seen: list[int] = []

    async def holds(value: int) -> None:
        async with lock:
            seen.append(await ctx.step(work, value))
        seen.append(await ctx.step(work, value + 10))

    await asyncio.gather(*(holds(value) for value in range(4)))
    return seen


async def two_tasks_of_one_race(ctx: Context) -> list[int]:
    seen = []
    for _ in range(3):
        tasks = [asyncio.create_task(ctx.step(work, value, value)) for value in range(3)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen.extend(task.result() for task in done)
        for task in pending:
            task.cancel()
    return seen


async def a_semaphore_and_a_queue(ctx: Context) -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    semaphore = asyncio.Semaphore(2)

    async def produces(value: int) -> None:
        async with semaphore:
            await queue.put(await ctx.step(work, value, 3 - value))

    producers = [asyncio.create_task(produces(value)) for value in range(4)]
    return [await queue.get() for _ in producers]


BODIES: list[Callable[[Context], Coroutine[Any, Any, Any]]] = [
    a_spinner_beside_a_step,
    gathers_nested_five_deep,
    a_chain_of_plain_futures,
    shields_in_a_row,
    a_lock_that_is_handed_on,
    two_tasks_of_one_race,
    a_semaphore_and_a_queue,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_every_prefix_replays(body: Callable[[Context], Coroutine[Any, Any, Any]], tasks: bool) -> None:
    recorded, host = play(body, tasks=tasks, noise=random.Random(1))
    assert recorded.status == "completed", recorded.error
    rows = sorted(host.rows.items())
    for length in range(len(rows) + 1):
        executed.clear()
        outcome, again = play(body, rows=rows[:length], tasks=not tasks, noise=random.Random(length))
        assert outcome.status == "completed", outcome.error
        if length == len(rows):
            assert outcome.value == recorded.value
            assert not executed
            assert not again.entries


def test_nothing_is_delivered_to_a_body_that_has_returned() -> None:
    async def body(ctx: Context) -> str:
        asyncio.create_task(ctx.step(work, 1))  # noqa: RUF006 - it is to be torn down
        await asyncio.sleep(0)
        return "returned"

    for tasks in (False, True):
        outcome, host = play(body, tasks=tasks)
        assert outcome.value == "returned"
        assert not [entry for entry in host.entries if entry.kind in DELIVERIES]


def test_one_delivery_at_a_time() -> None:
    """Three steps end in the same turn of the loop; each continuation runs to its end before the next value comes."""

    async def body(ctx: Context) -> list[str]:
        seen: list[str] = []

        async def child(value: int) -> None:
            await ctx.step(work, value)
            seen.append(f"{value} begins")
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append(f"{value} ends")

        await asyncio.gather(*(child(value) for value in range(3)))
        return seen

    outcome, _ = play(body)
    assert outcome.value == [f"{value} {what}" for value in range(3) for what in ("begins", "ends")]


def test_nothing_executes_while_entries_are_left() -> None:
    """A step that isn't in the journal is started only after the last recorded delivery."""

    async def body(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.step(work, value, value * 3) for value in range(3)))

    _, host = play(body)
    rows = [row for row in sorted(host.rows.items()) if b'"step.0:1"' not in row[1]]
    executed.clear()
    order: list[Any] = []
    again = MemoryHost(rows)
    again.on_delivery = lambda entry: order.append((entry.op, list(executed)))
    outcome, _ = play(body, rows=rows, host=again)
    assert outcome.value == [0, 1, 2]
    assert order == [("step.0:1", [0])]
