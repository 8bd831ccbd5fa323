"""Workers that die and drain at random: each signal and update counts once, in state that a replay brings back."""

import asyncio
import contextlib
import random

import pytest

from pyrula.workflows import Context, RunHandle, UpdateTimeout, WorkflowWorker, step, workflow
from tests.conformance.worker.conftest import Workers, some_progress

RUNS, LINKS, SIGNALS = 8, 3, 3

done: dict[str, int] = {}


@step
async def act(key: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    done[key] = done.get(key, 0) + 1


@workflow(name="worker_chaos")
async def chaos(ctx: Context, name: str, link: int = 0, total: int = 0) -> int:
    async def add(n: int) -> int:
        nonlocal total
        total += n
        await ctx.step(act, f"{name} update {n}", 0.01)
        return total

    ctx.on_update("add", add)
    ctx.on_query("total", lambda: total)
    for number in range(SIGNALS):
        await ctx.step(act, f"{name} {link} {number}", await ctx.random() / 50)
        total += await ctx.wait_for_signal("more")
        await ctx.sleep(await ctx.random() / 20)
    if link + 1 < LINKS:
        await ctx.continue_as_new({"name": name, "link": link + 1, "total": total})
    return total


async def talk(run: RunHandle[int], dice: random.Random) -> int:
    """Sends all that the run waits for, and two updates. What the run should end with."""
    total = 0
    for number in range(LINKS * SIGNALS):
        await asyncio.sleep(dice.random() / 4)
        for _ in range(dice.choice((1, 2))):
            await run.signal("more", 1, signal_id=f"s{number}")
        total += 1
        if number in (1, 4):
            while True:
                with contextlib.suppress(UpdateTimeout):
                    await run.update("add", {"n": 100 + number}, update_id=f"u{number}", timeout=1)
                    break
            total += 100 + number
    return total


async def test_every_message_counts_once_while_workers_come_and_go(workers: Workers) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    done.clear()

    def start() -> WorkflowWorker:
        return workers.start(chaos, lease_seconds=1, heartbeat_interval=0.1, park_after=0.02, drain_timeout=0.2)

    over = False
    running = [start() for _ in range(3)]

    async def come_and_go() -> None:
        while not over:
            await asyncio.sleep(0.05 + dice.random() * 0.2)
            await some_progress(done)
            worker = running.pop(dice.randrange(len(running)))
            await (workers.kill(worker) if dice.random() < 0.5 else workers.stop(worker))
            running.append(start())

    client = workers.client()
    runs = [await client.submit(chaos, {"name": f"r{number}"}) for number in range(RUNS)]
    going = asyncio.create_task(come_and_go())
    expected = await asyncio.gather(*(talk(run, dice) for run in runs))
    results = await asyncio.gather(*(run.result(timeout=120) for run in runs))
    over = True
    await going
    assert results == expected, f"seed {seed}"
    assert len(done) == RUNS * (LINKS * SIGNALS + 2), f"seed {seed}"


@workflow(name="worker_long_chain")
async def long_chain(ctx: Context, left: int, heard: int = 0) -> int:
    for _ in range(min(left, 100)):
        await ctx.step(len, "x")
    left -= 100
    if left > 0:
        await ctx.continue_as_new({"left": left, "heard": heard})
    for _ in range(3):
        heard += await ctx.wait_for_signal("tick")
    return heard


@pytest.mark.parametrize("steps", [2_000])
async def test_a_long_loop_keeps_its_journal_flat_and_loses_no_signal(workers: Workers, steps: int) -> None:
    worker = workers.start(long_chain)
    run = await worker.client.submit(long_chain, {"left": steps})
    for number in range(3):
        await run.signal("tick", 1, signal_id=f"t{number}")
        await asyncio.sleep(0.02)
    assert await run.result(timeout=180) == 3
    assert len((await run.history()).rows) < 150
