"""When a run waits for its rows to be acknowledged: before the next effect, not at the step's return."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from pyrula.workflows import Context, LeaseLost, Retry, step
from tests.engine.rig import MemoryHost, both, execution, with_tasks

log: list[Any] = []
pytestmark = pytest.mark.usefixtures("prepared")


@step(retry=Retry(max_attempts=1))
async def work(value: int) -> int:
    log.append(value)
    return value


class SlowHost(MemoryHost):
    """Acknowledges when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: asyncio.Future[None] | None = None

    def append(self, run: Any, index: int, entry: Any) -> None:
        super().append(run, index, entry)
        if self.pending is None or self.pending.done():
            self.pending = asyncio.get_running_loop().create_future()

    def durable(self, run: Any) -> Awaitable[None] | None:
        pending = self.pending
        return None if pending is None or (pending.done() and not pending.exception()) else pending


async def body(ctx: Context) -> str:
    await ctx.step(work, 1)
    log.append("after 1")
    await ctx.now()
    log.append("after now")
    await ctx.step(work, 2)
    return "done"


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@both
async def test_a_step_waits_for_the_entries_before_it(tasks: bool) -> None:
    log.clear()
    host = SlowHost()
    running = asyncio.ensure_future(with_tasks(execution(body, host), tasks).run())
    await turns()
    assert log == [1, "after 1", "after now"]
    assert host.pending is not None
    host.pending.set_result(None)
    await turns()
    assert log[-1] == 2
    # the last entry travels with the completion: the run doesn't wait for it
    assert (await running).value == "done"
    assert host.durable(None) is not None


@both
async def test_losing_the_lease_cuts_the_run(tasks: bool) -> None:
    log.clear()
    host = SlowHost()
    run = with_tasks(execution(body, host), tasks)
    running = asyncio.ensure_future(run.run())
    await turns()
    assert host.pending is not None
    host.pending.set_exception(LeaseLost("another worker has the partition"))
    assert (await running).status == "cut"
    assert 2 not in log


@both
async def test_a_cut_while_waiting_leaves_the_shared_acknowledgement_alone(tasks: bool) -> None:
    log.clear()
    host = SlowHost()
    run = with_tasks(execution(body, host), tasks)
    running = asyncio.ensure_future(run.run())
    await turns()
    run.cut()
    assert (await running).status == "cut"
    assert host.pending is not None
    assert not host.pending.cancelled()


async def test_each_attempt_waits_for_the_note_of_the_one_before() -> None:
    @step(retry=Retry(max_attempts=2, initial=0))
    async def fails() -> None:
        log.append("attempt")
        raise ValueError

    async def failing(ctx: Context) -> None:
        await ctx.step(fails)

    log.clear()
    host = SlowHost()
    running = asyncio.ensure_future(execution(failing, host).run())
    await turns()
    assert log == ["attempt"]
    assert host.pending is not None
    host.pending.set_result(None)
    assert (await running).status == "failed"
    assert log == ["attempt", "attempt"]
