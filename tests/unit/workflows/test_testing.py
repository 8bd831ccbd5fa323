"""The test environment: time that moves when nothing else does, steps replaced, histories replayed."""

import asyncio
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyrula.workflows import (
    ConfigurationError,
    Context,
    DurableInvocationError,
    DurableInvocationTimeout,
    Limit,
    NonDeterminismError,
    Rate,
    Retry,
    step,
    workflow,
)
from pyrula.workflows.testing import MockNameWarning, NothingMoves, WorkflowTestEnv, replay

DAY = timedelta(days=1)


@step(retry=Retry(max_attempts=5, initial=3600, max_delay=86400, jitter=0))
async def charge(cents: int) -> str:
    raise ConnectionError("the bank is closed")


@workflow(name="env_trial")
async def trial(ctx: Context, user: str) -> str:
    await ctx.sleep(30 * DAY)
    return f"{user}: trial over"


@workflow(name="env_waiter")
async def waiter(ctx: Context, seconds: float | None = None) -> str:
    ctx.on_query("state", lambda: "waiting")
    ctx.on_update("poke", lambda: "poked")
    try:
        return str(await ctx.wait_for_signal("go", timeout=seconds))
    except TimeoutError:
        return "too late"


@workflow(name="env_pay")
async def pay(ctx: Context, cents: int) -> str:
    return await ctx.step(charge, cents)


@workflow(name="env_limited")
async def limited(ctx: Context) -> str:
    try:
        async with ctx.timeout(60):
            await ctx.sleep(DAY)
    except TimeoutError:
        return "limited"
    return "slept"


@workflow(name="env_asks")
async def asks(ctx: Context) -> str:
    return (await ctx.interrupt("well?")).action


@workflow(name="env_parent")
async def parent(ctx: Context, user: str) -> str:
    return "child of " + await ctx.run_child(trial, {"user": user})


async def test_a_month_is_over_at_once() -> None:
    env = WorkflowTestEnv(start=datetime(2025, 3, 1, tzinfo=UTC))
    run = await env.start(trial, {"user": "ada"})
    assert await run.status() == "sleeping"
    assert await run.result() == "ada: trial over"
    assert env.now() == datetime(2025, 3, 31, tzinfo=UTC)


async def test_advance_moves_the_clock_by_hand() -> None:
    env = WorkflowTestEnv()
    run = await env.start(trial, {"user": "ada"})
    await env.advance(29 * DAY)
    assert await run.status() == "sleeping"
    await env.advance(DAY)
    assert await run.status() == "completed"


async def test_what_falls_due_on_the_way_does_so_at_its_time() -> None:
    times: list[datetime] = []

    @workflow(name="env_ticker")
    async def ticker(ctx: Context) -> None:
        for _ in range(3):
            await ctx.sleep(DAY)
            times.append(await ctx.now())

    env = WorkflowTestEnv(start=datetime(2025, 1, 1, tzinfo=UTC))
    await env.start(ticker)
    await env.advance(10 * DAY)
    assert sorted(set(times)) == [datetime(2025, 1, day, tzinfo=UTC) for day in (2, 3, 4)]
    assert env.now() == datetime(2025, 1, 11, tzinfo=UTC)


async def test_run_until_complete_stops_where_a_signal_is_waited_for() -> None:
    env = WorkflowTestEnv()
    run = await env.start(waiter, {"seconds": 60})
    assert await env.run_until_complete(run) == "signal_waiting"
    await run.signal("go", "now")
    assert await env.run_until_complete(run) == "completed"
    assert await run.result() == "now"


async def test_signal_update_query_and_resume_drive_the_run() -> None:
    env = WorkflowTestEnv()
    run = await env.start(waiter)
    assert await run.query("state") == "waiting"
    assert await run.update("poke") == "poked"
    await run.signal("go", 1)
    assert await run.status() == "completed"
    asked = await env.start(asks)
    assert await asked.result(on_interrupt=lambda shown: "yes") == "yes"
    asked = await env.client.submit("env_asks")
    await asked.resume("no")
    assert await asked.result() == "no"


async def test_timeouts_and_the_delays_of_retries_are_virtual() -> None:
    env = WorkflowTestEnv()
    start = env.now()
    assert await (await env.start(waiter, {"seconds": 3600})).result() == "too late"
    assert await (await env.start(limited)).result() == "limited"
    assert env.now() - start == timedelta(seconds=3660)
    with pytest.raises(DurableInvocationError, match="after 5 attempts"):
        await (await env.start(pay, {"cents": 5})).result()
    assert env.now() - start == timedelta(seconds=3660 + 3600 * (1 + 2 + 4 + 8))


async def test_params_and_the_result_are_of_the_declared_types_at_the_first_start() -> None:
    @workflow(name="env_typed")
    async def typed(ctx: Context, due: datetime) -> datetime:
        return due + DAY

    env = WorkflowTestEnv()
    run = await env.start(typed, {"due": datetime(2026, 1, 1, tzinfo=UTC)})
    assert await run.result() == datetime(2026, 1, 2, tzinfo=UTC)


async def test_a_step_can_be_replaced() -> None:
    env = WorkflowTestEnv()
    env.mock(charge, lambda cents: f"ch_{cents}")
    assert await (await env.start(pay, {"cents": 5})).result() == "ch_5"
    attempts: list[int] = []

    async def second_time(cents: int) -> str:
        attempts.append(cents)
        if len(attempts) == 1:
            raise ConnectionError("once")
        return "ch"

    env.mock("charge", second_time)
    assert await (await env.start(pay, {"cents": 7})).result() == "ch"
    assert attempts == [7, 7]


@workflow(name="env_pay_twice")
async def pay_twice(ctx: Context) -> list[str]:
    async def refund(cents: int) -> str:
        return f"re_{cents}"

    return [await ctx.step(charge, 5), await ctx.step(step(name="give_back")(refund), 5)]


@pytest.mark.parametrize(("misspelt", "real"), [("chareg", "charge"), ("refund", "give_back")])
async def test_a_step_that_runs_beside_a_mock_of_a_misspelt_name_is_warned_of(misspelt: str, real: str) -> None:
    env = WorkflowTestEnv()
    if real != "charge":
        env.mock(charge, lambda cents: "ch")
    env.mock(misspelt, lambda cents: "mocked")
    with pytest.warns(
        MockNameWarning, match=rf"step '{real}' runs itself.* named '{misspelt}'.*env.mock\('{real}'"
    ) as said:
        await env.run_until_complete(await env.start(pay_twice))
    assert {warning.filename for warning in said} == {__file__}


async def test_mocks_of_steps_that_are_there_or_by_the_step_itself_are_not_warned_of() -> None:
    @step
    async def charges(cents: int) -> str:
        return "not replaced"

    @step
    async def change(cents: int) -> str:
        return "not replaced"

    @workflow(name="env_near_names")
    async def near_names(ctx: Context) -> list[str]:
        return [await ctx.step(charge, 5), await ctx.step(charges, 5)]

    env = WorkflowTestEnv()
    env.mock("charge", lambda cents: "ch")
    env.mock(change, lambda cents: "never asked for")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await (await env.start(near_names)).result() == ["ch", "not replaced"]


async def test_an_idle_environment_says_what_each_run_waits_for() -> None:
    env = WorkflowTestEnv()
    run = await env.start(waiter)
    with pytest.raises(NothingMoves, match=rf"{run} \(env_waiter\) waits for signal go since"):
        await run.result()
    sleeping = await env.start(trial, {"user": "ada"})
    assert await env.waiting() == {
        run.run_id: "(env_waiter) waits for signal go since 2025-01-01 00:00:00 UTC",
        sleeping.run_id: (
            "(env_trial) waits for its sleep until 2025-01-31 00:00:00 UTC since 2025-01-01 00:00:00 UTC"
        ),
    }


async def test_a_sleep_for_ever_is_told_and_no_error_of_the_clock() -> None:
    @workflow(name="env_for_ever")
    async def for_ever(ctx: Context) -> None:
        await ctx.sleep(until=datetime.max.replace(tzinfo=UTC))

    env = WorkflowTestEnv()
    run = await env.start(for_ever)
    assert "waits for its sleep until after the year 9999" in (await run.explain()).text
    with pytest.raises(NothingMoves, match="waits for its sleep until after the year 9999"):
        await run.result()


async def test_a_wait_with_a_time_ends_in_virtual_time() -> None:
    env = WorkflowTestEnv()
    run = await env.start(waiter)
    start = env.now()
    with pytest.raises(DurableInvocationTimeout):
        await run.result(timeout=DAY)
    assert env.now() - start == DAY


async def test_children_are_driven_too() -> None:
    env = WorkflowTestEnv()
    assert await (await env.start(parent, {"user": "ada"})).result() == "child of ada: trial over"


async def test_cancel_and_the_end_of_all_tasks() -> None:
    env = WorkflowTestEnv()
    run = await env.start(trial, {"user": "ada"})
    assert await run.cancel() == "cancelled"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_path_is_no_history() -> None:
    with pytest.raises(TypeError, match=r"replay\(\) takes a History, not 'pay.json': .*History.load\(path\)"):
        await replay(pay, "pay.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["2025", datetime(2025, 1, 1)])  # noqa: DTZ001
def test_a_start_that_is_no_aware_datetime_is_refused(start: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"start= must be an aware datetime.*not ['d]"):
        WorkflowTestEnv(start=start)


async def test_a_history_is_replayed_against_todays_code() -> None:
    env = WorkflowTestEnv()
    env.mock(charge, lambda cents: "ch")
    finished = await env.start(pay, {"cents": 5})
    parked = await env.start(trial, {"user": "ada"})
    await replay(pay, await finished.history())
    await replay(trial, await parked.history())

    @workflow(name="env_pay")
    async def changed(ctx: Context, cents: int) -> str:
        await ctx.sleep(5)
        return await ctx.step(charge, cents)

    with pytest.raises(NonDeterminismError, match="charge"):
        await replay(changed, await finished.history())

    @workflow(name="env_pay")
    async def shorter(ctx: Context, cents: int) -> str:
        return "ch"

    with pytest.raises(NonDeterminismError):
        await replay(shorter, await finished.history())


@workflow(name="env_throttled", concurrency=Limit("tenant", max=1), rate_limit=Rate("tenant", per_second=0.5, burst=1))
async def throttled(ctx: Context, tenant: str) -> None:
    await ctx.step(note_time)
    await ctx.wait_for_signal("go")


async def note_time() -> None: ...


async def test_gates_in_virtual_time() -> None:
    env = WorkflowTestEnv()
    begun = env.now()
    runs = [await env.start(throttled, {"tenant": "acme"}) for _ in range(3)]
    told = await env.waiting()
    assert "waits for signal go" in told[runs[0].run_id]
    assert "queued 0.1 s: Rate, next token in 2.0 s" in told[runs[1].run_id]
    await env.advance(1.5)
    assert "queued 1.5 s: Rate, next token in 0.5 s" in (await env.waiting())[runs[1].run_id]
    await env.advance(0.5)
    assert await runs[1].status() == "signal_waiting"
    assert await runs[2].status() == "queued"
    await env.advance(10)
    assert await runs[2].status() == "signal_waiting"
    for run in runs:
        await run.signal("go")
        await run.result()
    assert (env.now() - begun).total_seconds() == 12
    assert await env.waiting() == {}


@workflow(name="env_single", concurrency=Limit("tenant", max=1))
async def single(ctx: Context, tenant: str) -> None:
    inside.append(tenant)
    await ctx.step(stay, tenant)


inside: list[str] = []


async def stay(tenant: str) -> None:
    await asyncio.sleep(0)
    assert inside.count(tenant) == 1
    inside.remove(tenant)


async def test_one_at_a_time_in_the_environment() -> None:
    env = WorkflowTestEnv()
    runs = await asyncio.gather(*(env.start(single, {"tenant": "acme"}) for _ in range(5)))
    for run in runs:
        await run.result()
