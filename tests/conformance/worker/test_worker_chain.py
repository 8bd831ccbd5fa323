"""A run of ten thousand steps as a chain of links: what it keeps stays the same, and no signal is lost between two."""

import asyncio
import gc

import psutil
import pytest

from pyrula.workflows import Context, RunHandle, workflow
from pyrula.workflows.store.runs import LINKS_KEPT
from tests.conformance.server import Server
from tests.conformance.worker.conftest import Workers

STEPS, STEPS_A_LINK, SIGNALS_A_LINK = 10_000, 100, 5
LINKS = STEPS // STEPS_A_LINK
SIGNALS = LINKS * SIGNALS_A_LINK

# Of this process, at the start of each link: objects that hold others, and megabytes.
objects: list[int] = []
resident: list[float] = []


async def one_more(done: int) -> int:
    return done + 1


@workflow(name="worker_endless")
async def endless(ctx: Context, done: int = 0, heard: int = 0, wrong: int = 0) -> list[int]:
    if len(objects) % 20 == 0 or done == STEPS - STEPS_A_LINK:
        gc.collect()
    objects.append(len(gc.get_objects()))
    resident.append(psutil.Process().memory_info().rss / 2**20)
    for number in range(STEPS_A_LINK):
        done = await ctx.step(one_more, done)
        if number % (STEPS_A_LINK // SIGNALS_A_LINK) == 0:
            wrong += await ctx.wait_for_signal("tick") != heard
            heard += 1
    if done < STEPS:
        await ctx.continue_as_new({"done": done, "heard": heard, "wrong": wrong})
    return [done, heard, wrong]


async def signalled(run: RunHandle[list[int]]) -> None:
    """All signals in order, as fast as they are taken, so that some arrive in the middle of each switch."""
    for number in range(SIGNALS):
        await run.signal("tick", number, signal_id=f"t{number}")


@pytest.mark.parametrize("make_store", ["memory", "valkey"], indirect=True)
async def test_memory_and_journal_stay_flat_over_ten_thousand_steps(
    workers: Workers, request: pytest.FixtureRequest
) -> None:
    objects.clear()
    resident.clear()
    worker = workers.start(endless)
    run = await workers.client().submit(endless)
    sending = asyncio.create_task(signalled(run))
    rows: list[int] = []
    keys: list[int] = []
    server: Server | None = request.getfixturevalue("server") if "server" in request.fixturenames else None
    while not (await run.detail()).finished:
        history = await worker.client.history(endless, run)
        rows.append(len(history.rows))
        if server is not None:
            keys.append(len(await server.keys()))
        await asyncio.sleep(0.2)
    await sending
    assert await run.result(timeout=180) == [STEPS, SIGNALS, 0]
    assert str((await run.detail()).run_id).endswith(f"~{LINKS}")
    full = 40  # all that is kept is there, and the garbage was collected just before
    grown = objects[-1] - objects[full]
    rss = resident[full], resident[-1]
    print(f"rows {max(rows)}, keys {max(keys, default=0)}, {grown:+} objects, RSS {rss} MiB")
    # a row a step and a signal, and the run's own
    assert max(rows) <= STEPS_A_LINK + SIGNALS_A_LINK + 5
    # of each kept link its journal, its events and what it began with
    assert max(keys, default=0) <= 3 * (LINKS_KEPT + 1) + 20
    # Nothing of the further 6,000 steps is left: one object of each would be more, or a kilobyte.
    assert grown < 2_000
    assert rss[1] - rss[0] < 6
