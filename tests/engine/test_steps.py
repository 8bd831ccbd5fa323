"""How a step is executed: attempts, delays, time-outs, threads, and what of it is journaled."""

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.workflows import ConfigurationError, Context, ManualClock, Retry, SerializationError, StepError, step
from pyrula.workflows.model import MAX_VALUE
from tests.engine.rig import LaterClock, MemoryHost, Rows, begin, both, execution, once, play, watched, with_tasks

calls: list[Any] = []
fast = Retry(max_attempts=3, initial=0)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def rows_of(host: MemoryHost) -> Rows:
    return sorted(host.rows.items())


@both
def test_attempts_until_one_succeeds(tasks: bool) -> None:
    @step(retry=fast)
    async def third_time() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError
        return len(calls)

    outcome, host = play(once(third_time), tasks=tasks)
    assert outcome.value == 3
    assert [kind for kind, _, _ in host.kinds() if kind != "head"] == ["attempt", "attempt", "value"]


@both
def test_the_last_error_is_journaled_and_raised_as_text(tasks: bool) -> None:
    @step(retry=fast, name="charge")
    async def fails() -> None:
        calls.append(1)
        raise LookupError(f"attempt {len(calls)}")

    outcome, host = play(once(fails), tasks=tasks)
    assert outcome.value == ["failed", "charge", 3, "LookupError", "attempt 3", False]
    again, _ = play(once(fails), rows=rows_of(host), tasks=not tasks)
    assert again.value == outcome.value
    assert len(calls) == 3


def test_the_same_error_live_and_on_replay() -> None:
    class Odd(Exception):
        pass

    seen: list[Any] = []

    @step(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise Odd("lone \ud800 surrogate" + "x" * 5000)

    async def body(ctx: Context) -> None:
        try:
            await ctx.step(fails)
        except StepError as error:
            seen.append((error.args, error.error_type, error.message, error.trace, error.__cause__, error.__context__))

    _, host = play(body)
    play(body, rows=rows_of(host))
    assert seen[0] == seen[1]
    assert seen[0][1].endswith(".Odd")
    assert "raise Odd" in seen[0][3]
    assert len(seen[0][2]) == 2000


@both
def test_non_retryable_errors(tasks: bool) -> None:
    @step(retry=Retry(max_attempts=5, initial=0, non_retryable=(LookupError,)))
    async def fails() -> None:
        calls.append(1)
        raise KeyError("no")

    outcome, _ = play(once(fails), tasks=tasks)
    assert outcome.value[2:4] == [1, "KeyError"]
    assert len(calls) == 1


@both
def test_an_errors_own_retry_after(tasks: bool) -> None:
    class Later(Exception):
        retry_after = timedelta(seconds=0.05)

    @step(retry=Retry(max_attempts=2, initial=3600))
    async def later() -> float:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise Later
        return calls[1] - calls[0]

    outcome, _ = play(once(later), tasks=tasks)
    assert 0.04 < outcome.value < 2


@both
def test_a_redelivered_record_goes_on_with_the_next_attempt(tasks: bool) -> None:
    @step(retry=fast)
    async def fails() -> None:
        calls.append(1)
        raise ValueError

    _, host = play(once(fails), tasks=tasks)
    attempts = [row for row in rows_of(host) if b'"attempt"' in row[1]]
    for kept in range(3):
        calls.clear()
        outcome, _ = play(once(fails), rows=attempts[:kept], tasks=not tasks)
        assert len(calls) == 3 - kept
        assert outcome.value[2] == 3


def test_a_redelivered_record_waits_for_what_is_left_of_the_delay() -> None:
    @step(retry=Retry(max_attempts=2, initial=3600, max_delay=3600, jitter=0))
    async def fails() -> None:
        calls.append(1)
        raise ValueError

    outcome, _ = play(once(fails), rows=begin(once(fails), rows=1), clock=LaterClock())
    assert outcome.value[2] == len(calls) == 2


@both
def test_a_timeout_per_attempt(tasks: bool) -> None:
    @step(retry=Retry(max_attempts=2, initial=0), timeout=0.02)
    async def slow() -> None:
        calls.append(1)
        await asyncio.sleep(3600)

    outcome, host = play(once(slow), tasks=tasks)
    assert outcome.value[2:] == [2, "TimeoutError", "the attempt took longer than 0.02 s", True]
    again, _ = play(once(slow), rows=rows_of(host), tasks=not tasks)
    assert again.value == outcome.value
    assert len(calls) == 2


@both
def test_a_timeout_leaves_the_body_uncancelled(tasks: bool) -> None:
    @step(retry=Retry(max_attempts=1), timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(3600)

    async def body(ctx: Context) -> int:
        with pytest.raises(StepError):
            await ctx.step(slow)
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        return task.cancelling()

    assert play(body, tasks=tasks)[0].value == 0


@both
def test_a_total_timeout(tasks: bool) -> None:
    @step(retry=Retry(max_attempts=100, initial=0.05, factor=1), total_timeout=1)
    async def fails() -> None:
        calls.append(1)
        raise ValueError("no")

    outcome, _ = play(once(fails), tasks=tasks)
    assert outcome.value[3] in ("ValueError", "TimeoutError")
    assert 1 < len(calls) < 25

    @step(retry=Retry(max_attempts=5, initial=0), total_timeout=0.2)
    async def slow() -> None:
        calls.append(1)
        await asyncio.sleep(3600)

    calls.clear()
    outcome, _ = play(once(slow), tasks=tasks)
    assert outcome.value[5] is True
    assert len(calls) == 1


@both
def test_the_next_attempt_waits_for_a_body_that_swallows_its_cancellation(tasks: bool) -> None:
    running = 0

    @step(retry=Retry(max_attempts=2, initial=0), timeout=0.02)
    async def swallows() -> str:
        nonlocal running
        running += 1
        calls.append(running)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        running -= 1
        return "too late"

    outcome, _ = play(once(swallows), tasks=tasks)
    assert outcome.value[5] is True  # the late result is dropped
    assert calls == [1, 1]


@both
def test_the_next_attempt_waits_for_a_thread(tasks: bool) -> None:
    running: list[int] = []

    @step(retry=Retry(max_attempts=2, initial=0), timeout=0.2)
    def in_thread() -> str:
        running.append(1)
        calls.append(len(running))
        time.sleep(0.4)
        running.pop()
        return "too late"

    outcome, _ = play(once(in_thread), tasks=tasks)
    assert outcome.value[2:4] == [2, "TimeoutError"]
    assert outcome.value[5] is True
    assert calls == [1, 1]


@both
@pytest.mark.parametrize("is_async", [False, True])
def test_arguments_that_do_not_fit_are_no_reason_to_try_again(tasks: bool, is_async: bool) -> None:
    def sync(cents: int) -> None: ...

    async def suspending(cents: int) -> None: ...

    fn: Any = suspending if is_async else sync

    async def body(ctx: Context) -> list[Any]:
        try:
            await ctx.step(step(retry=fast)(fn), cent=1)
        except StepError as error:
            return [error.attempts, error.error_type, error.message]
        return []

    attempts, kind, message = play(body, tasks=tasks)[0].value
    assert (attempts, kind) == (1, "TypeError")
    assert "unexpected keyword argument 'cent'" in message


@both
def test_a_step_that_was_called_already(tasks: bool) -> None:
    async def charge(cents: int) -> None: ...

    async def body(ctx: Context) -> list[str]:
        told = []
        for wrong in (charge(1), 5):
            try:
                await ctx.step(wrong)  # type: ignore[call-overload]
            except ConfigurationError as error:
                told.append(str(error))
        return told

    called, value = play(body, tasks=tasks)[0].value
    assert "pass the function, ctx.step(charge, ...)" in called
    assert "not 5: pass the function" in value


@both
def test_a_step_whose_value_can_have_no_form_in_json_pauses_the_run(tasks: bool) -> None:
    class Opaque:
        pass

    def opaque() -> Opaque:
        return Opaque()

    opaque.__annotations__["return"] = Opaque

    async def body(ctx: Context) -> None:
        await ctx.step(opaque)

    outcome, _ = play(body, tasks=tasks)
    assert outcome.status == "paused"  # held for other code, neither charged nor dead-lettered
    assert isinstance(outcome.error, ConfigurationError)
    assert "Opaque have no form in JSON" in str(outcome.error)


@both
def test_a_thread_past_its_time_is_warned_of_once(tasks: bool, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    @step(retry=Retry(max_attempts=1), timeout=0.02, name="hangs")
    def hangs() -> None:
        while not told:
            time.sleep(0.01)
            told.extend(record.getMessage() for record in caplog.records)
        time.sleep(0.05)

    @step(timeout=60)
    def in_time() -> None: ...

    play(once(in_time), tasks=tasks)
    play(once(hangs), tasks=tasks)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("step `hangs` of run 00-test is past its timeout=0.02 s and can't be stopped")


@both
def test_sync_steps_run_on_daemon_threads(tasks: bool) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @step
    def where(value: int) -> list[Any]:
        thread = threading.current_thread()
        return [value, thread.daemon, thread is threading.main_thread(), variable.get()]

    @step(inline=True)
    def inline() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def body(ctx: Context) -> list[Any]:
        variable.set("set")
        return [await ctx.step(where, 5), await ctx.step(inline)]

    assert play(body, tasks=tasks)[0].value == [[5, True, False, "set"], True]


@both
def test_errors_of_threads(tasks: bool) -> None:
    @step(retry=Retry(max_attempts=2, initial=0))
    def fails() -> None:
        calls.append(1)
        raise SystemError("no")

    outcome, _ = play(once(fails), tasks=tasks)
    assert outcome.value[2:5] == [2, "SystemError", "no"]
    assert len(calls) == 2


def test_many_threads_at_once() -> None:
    barrier = threading.Barrier(8)

    @step(retry=Retry(max_attempts=1))
    def meet(value: int) -> int:
        barrier.wait(120)
        return value

    async def body(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.step(meet, value) for value in range(8)))

    assert play(body)[0].value == list(range(8))


@both
def test_a_step_that_raises_cancelled_error_failed(tasks: bool) -> None:
    @step(retry=Retry(max_attempts=2, initial=0))
    async def cancelled(turns: int) -> None:
        calls.append(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    for turns in (0, 2):
        calls.clear()
        outcome, _ = play(once(cancelled, turns), tasks=tasks)
        assert outcome.value[2:4] == [2, "CancelledError"]
        assert len(calls) == 2


@both
def test_whatever_can_be_called_is_a_step(tasks: bool) -> None:
    class Caller:
        async def method(self, value: int) -> int:
            return value + 1

        async def __call__(self, value: int) -> int:
            return value + 2

    async def plain(value: int, *, more: int = 0) -> int:
        return value + more

    def gives_awaitable(value: int) -> Awaitable[int]:
        return plain(value, more=9)

    async def body(ctx: Context) -> list[int]:
        return [
            await ctx.step(plain, 1),
            await ctx.step(plain, 1, more=5),
            await ctx.step(functools.partial(plain, more=6), 1),
            await ctx.step(Caller().method, 1),
            await ctx.step(Caller(), 1),
            await ctx.step(gives_awaitable, 1),
            await ctx.step(lambda: 4),
        ]

    outcome, host = play(body, tasks=tasks)
    assert outcome.value == [1, 6, 7, 2, 3, 10, 4]
    again, _ = play(body, rows=rows_of(host), tasks=not tasks)
    assert again.value == outcome.value


@both
def test_a_step_sees_the_bodys_context_variables_and_keeps_its_own(tasks: bool) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @step
    async def sets() -> str:
        before = variable.get()
        await asyncio.sleep(0)
        variable.set("by the step")
        await asyncio.sleep(0)
        return before

    async def body(ctx: Context) -> list[str]:
        variable.set("by the body")
        return [await ctx.step(sets), variable.get()]

    assert play(body, tasks=tasks)[0].value == ["by the body", "by the body"]


class Money(BaseModel):
    cents: int
    at: datetime


@both
def test_a_value_is_the_same_live_and_on_replay(tasks: bool) -> None:
    @step
    async def annotated() -> dict[int, tuple[int, Money]]:
        return {1: (2, Money(cents=3, at=datetime(2025, 1, 1, tzinfo=UTC)))}

    @step
    async def bare():  # type: ignore[no-untyped-def]
        return {"pair": (1, 2)}

    async def body(ctx: Context) -> list[Any]:
        values: list[Any] = [await ctx.step(annotated), await ctx.step(bare)]
        return [repr(values), values]

    outcome, host = play(body, tasks=tasks)
    again, _ = play(body, rows=rows_of(host), tasks=not tasks)
    assert again.value == outcome.value
    assert outcome.value[1][0][1][1].cents == 3
    assert outcome.value[1][1] == {"pair": [1, 2]}


@both
def test_a_value_that_cannot_be_journaled(tasks: bool) -> None:
    @step(retry=fast)
    async def unfit() -> Any:
        calls.append(1)
        return object()

    async def body(ctx: Context) -> list[Any]:
        try:
            await ctx.step(unfit)
        except SerializationError as error:
            return [str(error), repr(error.__cause__), await ctx.step(lambda: 1)]
        return []

    outcome, host = play(body, tasks=tasks)
    assert "unfit" in outcome.value[0]
    assert len(calls) == 1  # another attempt would do the work again for the same value
    again, more = play(body, rows=rows_of(host), tasks=not tasks)
    assert again.value == outcome.value
    assert not more.entries
    assert len(calls) == 1


@both
def test_the_size_limit_of_a_value(tasks: bool) -> None:
    @step
    async def large(size: int) -> str:
        return "x" * (size - 2)

    async def body(ctx: Context, size: int) -> int:
        return len(await ctx.step(large, size))

    assert play(body, MAX_VALUE, tasks=tasks)[0].value == MAX_VALUE - 2
    outcome, host = play(body, MAX_VALUE + 1, tasks=tasks)
    assert isinstance(outcome.error, SerializationError)
    assert "large" in str(outcome.error)
    assert "1,048,577" in str(outcome.error)
    assert all(len(data) < 1000 for data in host.rows.values())


async def test_total_time_used_up_while_the_record_was_away(prepared: None) -> None:
    """A redelivery long after the step's first attempt makes no further one."""

    @step(retry=Retry(max_attempts=5, initial=0), total_timeout=60)
    async def fails() -> None:
        calls.append(1)
        raise ValueError

    clock, host = ManualClock(), MemoryHost()
    await watched(execution(once(fails), host, clock=clock))
    assert len(calls) == 5
    clock.advance(3600)
    first = rows_of(host)[:1]
    outcome = await watched(execution(once(fails), MemoryHost(), rows=first, clock=clock))
    assert len(calls) == 5
    assert outcome.value[5] is True


async def test_a_step_with_a_timeout_that_ends_at_once_arms_no_timer(prepared: None) -> None:
    @step(timeout=30)
    async def quick() -> int:
        return 1

    loop: Any = asyncio.get_running_loop()
    before = len(loop._scheduled)
    outcome = await watched(with_tasks(execution(once(quick), MemoryHost()), False))
    assert outcome.value == 1
    assert len(loop._scheduled) <= before + 1  # the watchdog's
