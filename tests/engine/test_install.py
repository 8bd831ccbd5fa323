"""Preparing a loop for runs, and what else may be done to it."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import ConfigurationError, Context, PyrulaError, Retry, step
from pyrula.workflows.execution import install, uninstall
from tests.engine.rig import MemoryHost, execution, watched


@step(retry=Retry(max_attempts=1))
async def work(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def with_a_task(ctx: Context) -> int:
    return await asyncio.create_task(ctx.step(work, 1))


class OtherLoop(asyncio.SelectorEventLoop):
    """A loop that doesn't show its ready queue, like uvloop's."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden, self._ready = self._ready, None


def test_a_loop_without_a_ready_queue_is_refused() -> None:
    loop = OtherLoop()
    with pytest.raises(ConfigurationError, match=r"OtherLoop.*uvloop"):
        install(loop)
    loop._ready = loop._hidden
    loop.close()


async def test_twice_is_once_and_undone_is_undone() -> None:
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    install(loop)
    factory = loop.get_task_factory()
    install(loop)
    assert loop.get_task_factory() is factory
    uninstall(loop)
    assert loop.get_task_factory() is None
    assert loop.call_at == call_at
    uninstall(loop)


async def test_a_loop_that_was_not_prepared() -> None:
    with pytest.raises(ConfigurationError, match="install"):
        await execution(with_a_task, MemoryHost()).run()


async def test_a_factory_that_was_there_makes_the_other_tasks() -> None:
    loop = asyncio.get_running_loop()
    made: list[str] = []

    class Marked(asyncio.Task[Any]):
        pass

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        made.append(coro.__qualname__)
        return Marked(coro, loop=loop, **options)

    loop.set_task_factory(factory)
    install(loop)
    outside = asyncio.create_task(asyncio.sleep(0))
    assert (await watched(execution(with_a_task, MemoryHost()))).value == 1
    await outside
    uninstall(loop)
    assert loop.get_task_factory() is factory
    loop.set_task_factory(None)
    assert isinstance(outside, Marked)
    assert "sleep" in made
    assert "Context.step" not in made


async def test_a_factory_put_over_ours_is_noticed() -> None:
    """Its tasks have no place in the run; an operation from one must not be taken for the body's."""
    loop = asyncio.get_running_loop()
    install(loop)
    loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))
    outcome = await watched(execution(with_a_task, MemoryHost()))
    loop.set_task_factory(None)
    assert isinstance(outcome.error, PyrulaError)
    assert "task factory" in str(outcome.error)
