"""How a run is cut, and what is left of it. Whatever the body does, run() returns promptly and nothing acts again."""

import asyncio
import contextlib
import gc
import logging
import threading
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, StepError, step
from pyrula.workflows.engine import drive, teardown
from pyrula.workflows.execution import Execution, Outcome
from tests.engine.rig import MemoryHost, both, execution, with_tasks
from tests.services.waiting import wait_until_async

log: list[Any] = []
pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture(autouse=True)
def _no_log() -> None:
    log.clear()


@step(retry=Retry(max_attempts=1))
async def work(value: int, seconds: float = 0) -> int:
    log.append(("start", value))
    try:
        await asyncio.sleep(seconds)
    finally:
        log.append(("end", value))
    return value


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cut_after_a_while(run: Execution) -> Outcome:
    running = asyncio.ensure_future(run.run())
    await asyncio.sleep(0.02)
    await turns(60)
    assert not running.done()
    run.cut()
    return await asyncio.wait_for(running, 60)


async def in_a_step(ctx: Context) -> None:
    await ctx.step(work, 1, 3600)


async def in_a_sleep(ctx: Context) -> None:
    await ctx.sleep(3600)


async def in_plain_code(ctx: Context) -> None:
    await ctx.step(work, 1)
    await asyncio.sleep(3600)


async def in_a_gather(ctx: Context) -> None:
    await asyncio.gather(*(ctx.step(work, value, 3600) for value in range(3)))


async def in_a_group(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        for value in range(3):
            group.create_task(ctx.step(work, value, 3600))


async def in_a_shield(ctx: Context) -> None:
    await asyncio.shield(ctx.step(work, 1, 3600))


async def in_a_timeout(ctx: Context) -> None:
    async with ctx.timeout(3600):
        await ctx.step(work, 1, 3600)


async def with_an_exit_that_awaits(ctx: Context) -> None:
    class Resource:
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *exception: object) -> None:
            await asyncio.sleep(0.01)
            log.append("released")

    async with Resource():
        await ctx.step(work, 1, 3600)


async def catching_exceptions(ctx: Context) -> None:
    for value in range(5):
        try:
            await ctx.step(work, value, 3600)
        except Exception:  # noqa: BLE001
            log.append("caught")


BODIES = [
    in_a_step,
    in_a_sleep,
    in_plain_code,
    in_a_gather,
    in_a_group,
    in_a_shield,
    in_a_timeout,
    with_an_exit_that_awaits,
    catching_exceptions,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@both
async def test_a_cut_ends_the_body_and_its_steps(body: Any, tasks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # nothing resists, so it isn't asked twice
    for module in (drive, teardown):
        monkeypatch.setattr(module, "ROUND_SECONDS", 3600)
    host = MemoryHost()
    run = with_tasks(execution(body, host), tasks)
    outcome = await cut_after_a_while(run)
    assert outcome.status == "cut"
    assert outcome.error is None
    assert not run.leftovers
    starts = [value for what, value in [one for one in log if isinstance(one, tuple)] if what == "start"]
    ends = [value for what, value in [one for one in log if isinstance(one, tuple)] if what == "end"]
    assert sorted(starts) == sorted(ends)
    assert "caught" not in log
    written = len(host.entries)
    await turns()
    assert len(host.entries) == written
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@both
async def test_operations_in_cleanup_do_nothing(tasks: bool) -> None:
    async def body(ctx: Context) -> None:
        try:
            await ctx.step(work, 1, 3600)
        finally:
            log.append("cleaning")
            await ctx.send("topic", 1)
            await ctx.step(work, 2)

    host = MemoryHost()
    run = with_tasks(execution(body, host), tasks)
    outcome = await cut_after_a_while(run)
    assert outcome.status == "cut"
    assert "cleaning" in log
    assert ("start", 2) not in log
    assert run.outputs is None
    assert not [entry for entry in host.entries if entry.kind != "head"]


@both
async def test_tasks_are_cancelled_youngest_first(tasks: bool) -> None:
    async def body(ctx: Context) -> None:
        async def child(value: int) -> None:
            try:
                await ctx.sleep(3600)
            finally:
                log.append(value)

        await asyncio.gather(*(child(value) for value in range(4)))

    await cut_after_a_while(with_tasks(execution(body, MemoryHost()), tasks))
    assert log == [3, 2, 1, 0]


@both
async def test_a_body_that_resists_is_left_behind(tasks: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def body(ctx: Context) -> None:
        while True:
            try:
                await ctx.now()
                await asyncio.sleep(3600)
            except BaseException as error:  # noqa: BLE001
                log.append(type(error).__name__)

    run = with_tasks(execution(body, MemoryHost()), tasks)
    with caplog.at_level(logging.WARNING):
        outcome = await cut_after_a_while(run)
    assert outcome.status == "cut"
    assert "is left behind" in caplog.text
    seen = len(log)
    await turns(50)
    assert len(log) < seen + 10  # it doesn't spin
    # it waits for ever at an operation: nothing more will come of it, so its lane needn't wait
    await turns(60)
    assert not [future for future in run.leftovers if not future.done()]


@both
async def test_a_body_that_resists_in_plain_code_is_a_leftover_until_it_ends(tasks: bool) -> None:
    finish = asyncio.Event()

    async def body(ctx: Context) -> None:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                log.append("no")

    run = with_tasks(execution(body, MemoryHost()), tasks)
    outcome = await cut_after_a_while(run)
    assert outcome.status == "cut"
    assert len(run.leftovers) == 1
    assert not run.leftovers[0].done()
    finish.set()
    await asyncio.wait_for(asyncio.wait(run.leftovers), 60)


@both
async def test_a_body_that_waits_for_a_task_which_resists(tasks: bool) -> None:
    """The cut doesn't wait for what the body waits for."""
    finish = asyncio.Event()

    async def outside() -> None:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                log.append("no")

    resists = asyncio.ensure_future(outside())

    async def body(ctx: Context) -> None:
        await resists

    run = with_tasks(execution(body, MemoryHost()), tasks)
    outcome = await cut_after_a_while(run)
    assert outcome.status == "cut"
    assert not resists.done()
    finish.set()
    await resists
    await asyncio.wait_for(asyncio.gather(*run.leftovers, return_exceptions=True), 60)


@both
async def test_a_thread_is_a_leftover_until_it_ends(tasks: bool) -> None:
    started, finish = threading.Event(), threading.Event()

    @step
    def in_thread() -> int:
        started.set()
        finish.wait(60)
        return 1

    async def body(ctx: Context) -> None:
        await ctx.step(in_thread)

    host = MemoryHost()
    run = with_tasks(execution(body, host), tasks)
    running = asyncio.ensure_future(run.run())
    await wait_until_async(started.is_set, description="the step")
    run.cut()
    assert (await running).status == "cut"
    assert len(run.leftovers) == 1
    assert not run.leftovers[0].done()
    finish.set()
    await asyncio.wait_for(asyncio.wait(run.leftovers), 60)
    await turns()
    assert not [entry for entry in host.entries if entry.kind == "value"]


@both
async def test_a_step_that_resists_is_a_leftover(tasks: bool) -> None:
    finish = asyncio.Event()

    @step
    async def resists() -> int:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                log.append("no")
        return 1

    async def body(ctx: Context) -> None:
        await ctx.step(resists)

    host = MemoryHost()
    run = with_tasks(execution(body, host), tasks)
    outcome = await cut_after_a_while(run)
    assert outcome.status == "cut"
    assert [future for future in run.leftovers if not future.done()]
    finish.set()
    await asyncio.wait_for(asyncio.gather(*run.leftovers, return_exceptions=True), 60)
    assert not [entry for entry in host.entries if entry.kind == "value"]


@both
async def test_a_cut_before_and_after(tasks: bool) -> None:
    async def body(ctx: Context) -> int:
        return 1

    run = with_tasks(execution(body, MemoryHost()), tasks)
    run.cut()
    assert (await run.run()).status == "cut"

    run = with_tasks(execution(body, MemoryHost()), tasks)
    assert (await run.run()).status == "completed"
    run.cut()
    assert run.stopped == "completed"


@both
async def test_a_cut_from_within_the_body(tasks: bool) -> None:
    async def body(ctx: Context) -> None:
        run.cut()
        await asyncio.sleep(3600)

    run = with_tasks(execution(body, MemoryHost()), tasks)
    outcome = await asyncio.wait_for(run.run(), 60)
    assert outcome.status == "cut"


@both
async def test_the_callers_cancellation_ends_the_body_and_goes_on(tasks: bool) -> None:
    async def body(ctx: Context) -> None:
        try:
            await asyncio.gather(ctx.step(work, 1, 3600), ctx.sleep(3600))
        finally:
            log.append("cleaned")

    run = with_tasks(execution(body, MemoryHost()), tasks)
    running = asyncio.ensure_future(run.run())
    await turns(60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert run.stopped == "cut"
    assert "cleaned" in log
    assert ("end", 1) in log


async def test_a_cut_and_the_callers_cancellation_at_once() -> None:
    async def body(ctx: Context) -> None:
        await asyncio.sleep(3600)

    run = execution(body, MemoryHost())
    running = asyncio.ensure_future(run.run())
    await turns(60)
    run.cut()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@both
async def test_a_body_that_cancels_itself_fails(tasks: bool) -> None:
    async def body(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(3600)

    outcome = await with_tasks(execution(body, MemoryHost()), tasks).run()
    assert outcome.status == "failed"
    assert isinstance(outcome.error, asyncio.CancelledError)
    await turns()


@both
async def test_background_tasks_end_with_the_body(tasks: bool) -> None:
    async def body(ctx: Context) -> str:
        async def background() -> None:
            try:
                await ctx.step(work, 1, 3600)
            except asyncio.CancelledError:
                log.append("background cancelled")
                await asyncio.sleep(0.01)
                await ctx.step(work, 2)

        asyncio.create_task(background())  # noqa: RUF006
        await ctx.step(work, 3)
        return "done"

    host = MemoryHost()
    run = with_tasks(execution(body, host), tasks)
    outcome = await asyncio.wait_for(run.run(), 60)
    assert outcome.value == "done"
    assert "background cancelled" in log
    assert ("start", 2) not in log
    assert [name for kind, _, name in host.kinds() if kind == "value"] == ["work"]


async def test_cleanup_may_make_tasks() -> None:
    async def body(ctx: Context) -> None:
        async def close(value: int) -> None:
            await asyncio.sleep(0.005)
            log.append(value)

        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.gather(close(1), close(2))

    outcome = await cut_after_a_while(execution(body, MemoryHost()))
    assert outcome.status == "cut"
    assert log == [1, 2]


async def test_a_resisting_body_does_not_keep_the_loop_from_ending() -> None:
    def in_another_thread() -> str:
        async def main() -> str:
            from pyrula.workflows.execution import install

            install(asyncio.get_running_loop())

            async def body(ctx: Context) -> None:
                while True:
                    try:
                        await ctx.now()
                        await asyncio.sleep(3600)
                    except BaseException:  # noqa: BLE001
                        pass

            outcome = await cut_after_a_while(execution(body, MemoryHost()))
            return outcome.status

        return asyncio.run(main())

    assert await asyncio.wait_for(asyncio.to_thread(in_another_thread), 60) == "cut"


async def test_cleanup_after_the_callers_cancellation_does_nothing() -> None:
    """A body that has no timer, group or time-out of its own: the cancellation can only be its caller's."""

    async def body(ctx: Context) -> str:
        try:
            await ctx.step(work, 1, 3600)
        except asyncio.CancelledError:
            log.append("cleaning")
            await ctx.step(work, 2)
        return "swallowed"

    run = with_tasks(execution(body, MemoryHost()), False)
    running = asyncio.ensure_future(run.run())
    await turns(60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "cleaning" in log
    assert ("start", 2) not in log


@both
async def test_a_body_that_swallows_the_callers_cancellation(tasks: bool) -> None:
    async def body(ctx: Context) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return "swallowed"

    run = with_tasks(execution(body, MemoryHost()), tasks)
    running = asyncio.ensure_future(run.run())
    await turns(60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_time_outs_of_steps_and_bodies_are_not_the_callers_cancellation() -> None:
    @step(retry=Retry(max_attempts=2, initial=0), timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(3600)

    async def body(ctx: Context) -> list[str]:
        seen = []
        for _ in range(2):
            try:
                await ctx.step(slow)
            except StepError:
                seen.append("step")
            try:
                async with asyncio.timeout(0.005):
                    await asyncio.sleep(3600)
            except TimeoutError:
                seen.append("plain")
        return seen

    task = asyncio.current_task()
    assert task is not None
    outcome = await with_tasks(execution(body, MemoryHost()), False).run()
    assert outcome.value == ["step", "plain"] * 2
    assert task.cancelling() == 0


@pytest.mark.parametrize("ending", ["returns", "raises", "suspends"])
async def test_a_body_that_cancels_itself_leaves_its_caller_alone(ending: str) -> None:
    async def body(ctx: Context) -> str:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if ending == "suspends":
            await asyncio.sleep(3600)
        if ending == "raises":
            raise LookupError
        return "returned"

    task = asyncio.current_task()
    assert task is not None
    outcome = await with_tasks(execution(body, MemoryHost()), False).run()
    assert outcome.status == ("completed" if ending == "returns" else "failed")
    await turns()
    assert task.cancelling() == 0


@both
async def test_a_cut_before_the_body_began(tasks: bool) -> None:
    async def body(ctx: Context) -> None:
        log.append("began")
        await asyncio.sleep(3600)

    run = with_tasks(execution(body, MemoryHost()), tasks)
    asyncio.get_running_loop().call_soon(run.cut)
    outcome = await asyncio.wait_for(run.run(), 60)
    assert outcome.status == "cut"
    gc.collect()  # a coroutine that was never awaited would be an error here
