"""The next round of a failed run: its journal without the last error."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from pyrula.workflows import Context, ManualClock, Retry, SerializationError, StepError, step
from pyrula.workflows.execution import Execution
from tests.engine.rig import MemoryHost, execution, watched
from tests.services.waiting import wait_until_async

log: list[Any] = []
pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture(autouse=True)
def _no_log() -> None:
    log.clear()


@step(retry=Retry(max_attempts=1))
async def work(value: int) -> int:
    log.append(value)
    return value


class Flaky:
    """Fails as often as told."""

    def __init__(self, failures: int, attempts: int = 1) -> None:
        self.failures = failures
        self.step = step(retry=Retry(max_attempts=attempts, initial=0), name="flaky")(self._run)

    async def _run(self) -> str:
        log.append("flaky")
        if self.failures:
            self.failures -= 1
            raise ValueError("not yet")
        return "at last"


class Subclass(Execution):
    __slots__ = ("partition",)
    partition: str


async def test_a_step_error_is_cut_off_and_the_step_tried_again() -> None:
    flaky = Flaky(1)

    async def body(ctx: Context) -> list[Any]:
        first = await ctx.step(work, 1)
        return [first, await ctx.step(flaky.step), ctx.run.attempt]

    host = MemoryHost()
    run = execution(body, host)
    assert (await watched(run)).status == "failed"
    again = run.retry()
    assert again.attempt == 2
    assert (await watched(again)).value == [1, "at last", 2]
    assert log == [1, "flaky", "flaky"]
    kinds = [data.split(b'"')[1] for _, data in sorted(host.rows.items())]
    assert kinds == [b"value", b"attempt", b"value"]


async def test_indexes_are_not_used_again() -> None:
    flaky = Flaky(2)

    async def body(ctx: Context) -> Any:
        return await ctx.step(flaky.step)

    host = MemoryHost()
    run = execution(body, host)
    seen: list[int] = []
    append = host.append

    def watch(run: Any, index: int, entry: Any) -> None:
        if entry is not None:
            seen.append(index)
        append(run, index, entry)

    host.append = watch  # type: ignore[method-assign]
    for _ in range(2):
        assert (await watched(run)).status == "failed"
        run = run.retry()
    assert (await watched(run)).value == "at last"
    assert seen == sorted(set(seen))


async def test_the_attempt_is_kept_in_the_journal() -> None:
    flaky = Flaky(3)

    async def body(ctx: Context) -> Any:
        return await ctx.step(flaky.step)

    host = MemoryHost()
    run = execution(body, host)
    for attempt in (1, 2):
        assert run.attempt == attempt
        assert (await watched(run)).status == "failed"
        run = run.retry()
    loaded = execution(body, MemoryHost(host.rows), rows=sorted(host.rows.items()))
    assert loaded.attempt == 3


async def test_a_step_gets_all_its_attempts_in_a_further_round() -> None:
    flaky = Flaky(5, attempts=3)

    async def body(ctx: Context) -> Any:
        return await ctx.step(flaky.step)

    host = MemoryHost()
    run = execution(body, host)
    assert (await watched(run)).status == "failed"
    assert log.count("flaky") == 3
    assert (await watched(run.retry())).value == "at last"
    assert log.count("flaky") == 6


@pytest.mark.parametrize("how", ["raised from it", "raised beside it", "in a group"])
async def test_the_step_error_behind_another_error(how: str) -> None:
    flaky = Flaky(1)

    async def body(ctx: Context) -> Any:
        await ctx.step(work, 1)
        if how == "in a group":
            async with asyncio.TaskGroup() as group:
                task = group.create_task(ctx.step(flaky.step))
            return task.result()
        try:
            return await ctx.step(flaky.step)
        except StepError as error:
            await ctx.step(work, 2)
            if how == "raised beside it":
                raise RuntimeError("beside")  # noqa: B904
            raise RuntimeError("from") from error

    run = execution(body, MemoryHost())
    assert (await watched(run)).status == "failed"
    outcome = await watched(run.retry())
    assert outcome.value == "at last", outcome.error
    assert log.count("flaky") == 2
    assert log.count(1) == 1


async def test_a_failure_of_the_body_keeps_the_journal() -> None:
    failing = True

    async def body(ctx: Context) -> Any:
        with suppress(StepError):
            await ctx.step(Flaky(9).step)
        value = await ctx.step(work, 1)
        if failing:
            raise LookupError
        return value

    host = MemoryHost()
    run = execution(body, host)
    assert (await watched(run)).status == "failed"
    rows = dict(host.rows)
    again = run.retry()
    assert {index: host.rows[index] for index in rows} == rows
    failing = False
    assert (await watched(again)).value == 1
    assert log == ["flaky", 1]


async def test_a_value_that_could_not_be_journaled_is_made_again() -> None:
    values: list[Any] = [object(), 5]

    @step
    async def unfit() -> Any:
        return values.pop(0)

    async def body(ctx: Context) -> Any:
        return await ctx.step(unfit)

    run = execution(body, MemoryHost())
    outcome = await watched(run)
    assert isinstance(outcome.error, SerializationError)
    assert (await watched(run.retry())).value == 5


async def test_a_timeout_begins_anew_and_a_sleep_does_not() -> None:
    flaky = Flaky(1)

    async def body(ctx: Context) -> Any:
        await ctx.sleep(0.001)
        async with ctx.timeout(3600):
            return await ctx.step(flaky.step)

    host, clock = MemoryHost(), ManualClock()
    run = execution(body, host, clock=clock)
    running = asyncio.ensure_future(watched(run))
    await wait_until_async(lambda: host.rows, description="the sleep")
    clock.advance(1)
    assert (await running).status == "failed"
    clock.advance(4000)
    again = run.retry()
    kinds = [data.split(b'"')[1:6:2] for _, data in sorted(host.rows.items())]
    assert [b"deadline", b"1", b"sleep"] in kinds
    assert not [one for one in kinds if one[2] == b"timeout"]
    assert (await watched(again)).value == "at last"


async def test_the_next_round_is_of_the_same_class_with_its_slots() -> None:
    async def body(ctx: Context) -> None:
        await ctx.send("topic", 1)
        raise ValueError

    like = execution(body, MemoryHost())
    run = Subclass(like.definition, "00-id", like.host, (), clock=like.clock, origin="the record")
    run.partition = "p0"
    await watched(run)
    again = run.retry()
    assert isinstance(again, Subclass)
    assert (again.partition, again.origin, again.run_id, again.outputs) == ("p0", "the record", "00-id", None)


async def test_any_part_of_the_deletions_leaves_a_journal_that_replays() -> None:
    """They are written from the end, so that a crash between two flushes does no harm."""
    flaky = Flaky(1)

    async def body(ctx: Context) -> Any:
        try:
            return await ctx.step(flaky.step)
        except StepError:
            for value in range(3):
                await ctx.step(work, value)
            raise

    host = MemoryHost()
    run = execution(body, host)
    await watched(run)
    before = dict(host.rows)
    states: list[dict[int, bytes]] = []
    append = host.append

    def watch(run: Any, index: int, entry: Any) -> None:
        append(run, index, entry)
        states.append(dict(host.rows))

    host.append = watch  # type: ignore[method-assign]
    run.retry()
    assert len(states) == 5
    for rows in [before, *states]:
        flaky.failures = 1
        outcome = await watched(execution(body, MemoryHost(rows), rows=sorted(rows.items())))
        assert outcome.status in ("failed", "completed")
