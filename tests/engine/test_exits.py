"""A body or a step that would end the process fails instead, and is tried again like any other."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, StepError, step
from pyrula.workflows.store.payloads import failure_of
from tests.engine.rig import MemoryHost, both, execution, play

calls: list[Any] = []
exits = pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])


@pytest.fixture(autouse=True)
def _caught() -> Iterator[None]:
    """SIGINT is caught, as a worker does it."""
    calls.clear()
    former = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, former)


@both
@exits
@pytest.mark.parametrize("suspends", [False, True])
def test_of_a_body(tasks: bool, kind: type[BaseException], suspends: bool) -> None:
    async def body(ctx: Context) -> None:
        if suspends:
            await asyncio.sleep(0)
        raise kind(3)

    outcome, _ = play(body, tasks=tasks)
    assert outcome.status == "failed"
    assert isinstance(outcome.error, Exception)  # so that a retry may be made
    assert isinstance(outcome.error.__cause__, kind)
    told = failure_of(outcome.error)
    assert told[:2] == (kind.__name__, "3")
    assert told.trace.endswith(f"\n{kind.__name__}: 3\n")
    assert "OwnExit" not in told.trace


@exits
@pytest.mark.parametrize("suspends", [False, True])
def test_of_a_task_of_a_body(kind: type[BaseException], suspends: bool) -> None:
    async def child() -> None:
        if suspends:
            await asyncio.sleep(0)
        raise kind(3)

    async def gathers(ctx: Context) -> None:
        await asyncio.gather(asyncio.sleep(0), child())

    async def groups(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    for body in (gathers, groups):
        outcome, _ = play(body)
        assert outcome.status == "failed"
        assert isinstance(outcome.error, Exception)


@both
@exits
@pytest.mark.parametrize("how", ["async", "suspended", "thread", "inline", "awaitable"])
def test_of_a_step(tasks: bool, kind: type[BaseException], how: str) -> None:
    async def at_once() -> None:
        calls.append(1)
        raise kind

    async def suspended() -> None:
        await asyncio.sleep(0)
        await at_once()

    def sync() -> None:
        calls.append(1)
        raise kind

    def awaitable() -> Any:
        return suspended()

    fn: Any = {"async": at_once, "suspended": suspended, "awaitable": awaitable}.get(how, sync)
    fails = step(retry=Retry(max_attempts=2, initial=0), name="exits", inline=how == "inline")(fn)

    async def body(ctx: Context) -> list[Any]:
        try:
            await ctx.step(fails)
        except StepError as error:
            return [error.attempts, error.error_type]
        return []

    outcome, _ = play(body, tasks=tasks)
    assert outcome.value == [2, kind.__name__]
    assert len(calls) == 2


async def test_ctrl_c_where_nothing_catches_it_goes_on() -> None:
    async def body(ctx: Context) -> None:
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        await execution(body, MemoryHost()).run()


def test_ctrl_c_that_asyncio_raises_goes_on() -> None:
    async def body(ctx: Context) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        play(body)
