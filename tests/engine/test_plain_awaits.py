"""Plain awaits in a body: they work, they aren't journaled, and a replay waits for them where it has to."""

import asyncio
import logging
from typing import Any

import pytest

from pyrula.workflows import Context, NonDeterminismError, Retry, step
from pyrula.workflows.engine import patience
from tests.engine.rig import MemoryHost, execution, play, watched, with_tasks

executed: list[Any] = []


@step(retry=Retry(max_attempts=1))
async def work(value: int, seconds: float = 0) -> int:
    executed.append(value)
    await asyncio.sleep(seconds)
    return value


@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_sequential_plain_awaits_replay_exactly(tasks: bool) -> None:
    async def body(ctx: Context) -> list[int]:
        seen = []
        for value in range(3):
            await asyncio.sleep(0.002)
            seen.append(await ctx.step(work, value))
            seen.append(await asyncio.to_thread(lambda: 7))
        return seen

    recorded, host = play(body, tasks=tasks)
    rows = sorted(host.rows.items())
    assert not [entry for entry in host.entries if entry.kind == "loose"]
    for length in range(len(rows) + 1):
        outcome, _ = play(body, rows=rows[:length], tasks=not tasks)
        assert outcome.value == recorded.value


def test_a_plain_await_beside_operations_marks_the_run_loose() -> None:
    async def body(ctx: Context) -> list[int]:
        async def plain(value: int) -> int:
            await asyncio.sleep(0.005)
            return await ctx.step(work, value)

        return await asyncio.gather(plain(1), ctx.step(work, 2, 0.02), plain(3))

    recorded, host = play(body)
    assert [entry.kind for entry in host.entries].count("loose") == 1
    rows = sorted(host.rows.items())
    for length in range(len(rows) + 1):
        outcome, _ = play(body, rows=rows[:length])
        assert outcome.value == recorded.value == [1, 2, 3]


def test_a_replay_under_load_is_no_mismatch() -> None:
    """The plain await ends before the first settled point of the replay: live it ended after the first delivery."""
    pause = 0.01

    async def body(ctx: Context) -> list[int]:
        async def plain() -> int:
            await asyncio.sleep(pause)
            return await ctx.step(work, 1)

        return await asyncio.gather(plain(), ctx.step(work, 2))

    recorded, host = play(body)
    rows = sorted(host.rows.items())
    pause = 0
    for length in range(len(rows) + 1):
        outcome, _ = play(body, rows=rows[:length])
        assert outcome.status == "completed", outcome.error
        assert outcome.value == recorded.value


async def test_a_replay_waits_for_a_plain_await_and_says_so(
    prepared: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "OUTSIDE_WARNING", 0.01)

    async def body(ctx: Context) -> int:
        await asyncio.sleep(0.4)
        return await ctx.step(work, 1)

    host = MemoryHost()
    await watched(with_tasks(execution(body, host)))
    with caplog.at_level(logging.WARNING):
        outcome = await watched(with_tasks(execution(body, MemoryHost(), rows=sorted(host.rows.items()))))
    assert outcome.value == 1
    assert "its replay waits since" in caplog.text


async def test_a_plain_await_that_never_ends_is_an_error_after_a_limit(
    prepared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "OUTSIDE_WARNING", 0.01)
    monkeypatch.setattr(patience, "OUTSIDE_LIMIT", 0.05)
    replaying = False

    async def body(ctx: Context) -> int:
        if replaying:
            await asyncio.sleep(3600)
        return await ctx.step(work, 1)

    host = MemoryHost()
    await watched(with_tasks(execution(body, host)))
    replaying = True
    outcome = await watched(with_tasks(execution(body, MemoryHost(), rows=sorted(host.rows.items()))))
    assert outcome.status == "paused"
    assert isinstance(outcome.error, NonDeterminismError)
    assert "none will follow" in str(outcome.error)


async def test_a_body_that_waits_for_nothing_of_its_own_raises_at_once(
    prepared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "OUTSIDE_WARNING", 3600)
    replaying = False

    async def body(ctx: Context) -> int:
        if replaying:
            return await asyncio.gather(asyncio.create_task(ctx.step(work, 2)), ctx.step(work, 3))  # type: ignore[return-value]
        await ctx.step(work, 1)
        return await asyncio.create_task(ctx.step(work, 2))

    host = MemoryHost()
    await watched(with_tasks(execution(body, host)))
    replaying = True
    outcome = await watched(with_tasks(execution(body, MemoryHost(), rows=sorted(host.rows.items()))))
    assert outcome.status == "paused"


async def test_a_lock_that_others_share_is_waited_for_a_while(prepared: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection pool, say: its lock is asyncio's, but who holds it isn't of the run."""
    monkeypatch.setattr(patience, "OUTSIDE_WARNING", 0.01)
    pool = asyncio.Lock()

    async def body(ctx: Context) -> int:
        async with pool:
            pass
        return await ctx.step(work, 1)

    host = MemoryHost()
    await watched(with_tasks(execution(body, host)))
    await pool.acquire()
    asyncio.get_running_loop().call_later(0.05, pool.release)
    outcome = await watched(with_tasks(execution(body, MemoryHost(), rows=sorted(host.rows.items()))))
    assert outcome.value == 1

    await pool.acquire()
    monkeypatch.setattr(patience, "SHARED_LIMIT", 0.03)
    outcome = await watched(with_tasks(execution(body, MemoryHost(), rows=sorted(host.rows.items()))))
    assert outcome.status == "paused"


async def test_a_task_that_never_rests_is_named_and_fails_the_run(
    prepared: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "BUSY_WARNING", 0.02)
    monkeypatch.setattr(patience, "BUSY_LIMIT", 3)
    monkeypatch.setattr(patience, "BUSY_TURNS", 10)

    async def body(ctx: Context) -> int:
        async def spins() -> None:
            while True:  # noqa: ASYNC110 - that is the fault
                await asyncio.sleep(0)

        asyncio.create_task(spins(), name="the spinner")  # noqa: RUF006
        return await ctx.step(work, 1)

    outcome = await watched(execution(body, MemoryHost()))
    assert outcome.status == "failed"
    assert "hasn't come to rest" in str(outcome.error)
    assert "the spinner" in str(outcome.error)
    assert "hasn't come to rest" in caplog.text
