"""When schedules fire: over the nights when clocks are changed, after a time away, and in the test environment."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyrula.workflows import (
    ConfigurationError,
    Context,
    Cron,
    Every,
    ManualClock,
    MemoryStore,
    WorkflowClient,
    workflow,
)
from pyrula.workflows.schedules import Plan, fires_of
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.runs import Submission, Submitted
from pyrula.workflows.testing import WorkflowTestEnv
from pyrula.workflows.worker.firing import Firing
from pyrula.workflows.worker.served import Served

HOUR = timedelta(hours=1)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("zone", "before", "fires"),
    [
        ("Europe/Paris", "2025-03-29T12:00", ["2025-03-30T03:00:00+02:00", "2025-03-31T02:30:00+02:00"]),
        ("Europe/Paris", "2025-10-25T12:00", ["2025-10-26T02:30:00+02:00", "2025-10-27T02:30:00+01:00"]),
        ("America/New_York", "2025-03-08T12:00", ["2025-03-09T03:00:00-04:00", "2025-03-10T02:30:00-04:00"]),
        ("America/New_York", "2025-11-01T12:00", ["2025-11-02T02:30:00-05:00", "2025-11-03T02:30:00-05:00"]),
        ("Australia/Lord_Howe", "2025-10-04T12:00", ["2025-10-05T02:30:00+11:00", "2025-10-06T02:30:00+11:00"]),
    ],
)
def test_a_time_of_day_fires_once_a_day_also_when_clocks_are_changed(zone: str, before: str, fires: list[str]) -> None:
    found = islice(Cron("30 2 * * *", tz=zone).after(at(before)), 2)
    assert [datetime.fromtimestamp(moment, ZoneInfo(zone)).isoformat() for moment in found] == fires


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("day", ["2025-03-08", "2025-03-29", "2025-04-05", "2025-10-04", "2025-10-25", "2025-11-01"])
def test_even_steps_stay_even(zone: str, day: str) -> None:
    found = list(islice(Cron("*/15 * * * *", tz=zone).after(at(day)), 200))
    assert {later - earlier for earlier, later in pairwise(found)} == {900.0}


def test_every_gives_the_same_times_in_each_process() -> None:
    every = Every(HOUR)
    assert list(islice(every.after(at("2025-01-01T00:30")), 2)) == [at("2025-01-01T01:00"), at("2025-01-01T02:00")]
    assert next(every.after(at("2025-01-01T01:00"))) == at("2025-01-01T02:00")


@pytest.mark.parametrize("expression", ["", "* * * *", "61 * * * *", "nonsense", "0 0 30 2 *"])
def test_expressions_that_mean_nothing_are_refused(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="Cron"):
        Cron(expression)


def test_a_number_is_no_expression_and_the_fix_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"Cron\(5\): .*Cron\('\*/5 \* \* \* \*'\).* Every\(seconds\)"):
        Cron(5)  # type: ignore[arg-type]


def test_zones_and_intervals_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no time zone"):
        Cron("* * * * *", tz="Mars/Olympus")
    with pytest.raises(ConfigurationError, match="at least a second"):
        Every(0.5)


@pytest.mark.parametrize(
    ("catch_up", "started", "skipped"),
    [("one", ["12:00"], 720), ("all", [f"{n // 60:02}:{n % 60:02}" for n in range(721)], 0), ("none", ["12:00"], 720)],
)
def test_after_twelve_hours_away_a_minutely_schedule_catches_up(
    catch_up: str, started: list[str], skipped: int
) -> None:
    plan = Plan(workflow="w", trigger=Cron("* * * * *"), catch_up=catch_up)  # type: ignore[arg-type]
    fires = fires_of(plan, at("2025-01-01T00:00"), at("2025-01-01T12:00:30"))
    assert [f"{datetime.fromtimestamp(moment, UTC):%H:%M}" for moment in fires.times] == started
    assert fires.skipped == skipped
    assert fires.following == at("2025-01-01T12:01")


def test_what_was_missed_too_long_ago_does_not_count() -> None:
    daily = Cron("0 0 * * *")
    due, now = at("2025-01-01T00:00"), at("2025-01-03T06:00")
    assert fires_of(Plan(workflow="w", trigger=daily, window=3600), due, now).times == ()
    assert fires_of(Plan(workflow="w", trigger=daily, catch_up="none"), due, now).times == ()
    assert fires_of(Plan(workflow="w", trigger=daily), due, now).times == (at("2025-01-03T00:00"),)


def test_a_plan_survives_the_store() -> None:
    plan = Plan(
        workflow="w", trigger=Cron("0 9 * * mon-fri", tz="Europe/Paris"), params=b'{"a":1}', owner="o", overlap="allow"
    )
    assert Plan.decode(plan.encode()) == plan
    every = Plan(workflow="w", trigger=Every(90))
    assert Plan.decode(every.encode()) == every


@workflow(name="sched_report")
async def report(ctx: Context, kind: str = "daily", hours: int = 0) -> str:
    if hours:
        await ctx.sleep(hours * HOUR)
    return kind


async def started(env: WorkflowTestEnv) -> list[str]:
    """The fire times of all runs, in order."""
    details = [await env.store.detail(run_id) for run_id in env._driver._known]
    metadata = [env.client.handle(detail.name, detail.run_id) for detail in details]
    return [(await handle.detail()).metadata["fire_time"][:16] for handle in metadata]


async def test_schedules_fire_on_the_virtual_clock() -> None:
    env = WorkflowTestEnv(start=datetime(2025, 1, 3, 12, tzinfo=UTC))
    info = await env.client.schedules.create("r", report, {"kind": "x"}, trigger=Cron("0 9 * * mon-fri"))
    assert info.due == datetime(2025, 1, 6, 9, tzinfo=UTC)
    await env.advance(timedelta(days=4))
    assert await started(env) == ["2025-01-06T09:00", "2025-01-07T09:00"]
    (info,) = await env.client.schedules.list()
    assert (info.due, info.paused) == (datetime(2025, 1, 8, 9, tzinfo=UTC), False)
    assert info.last_run is not None
    assert await env.client.result(report, info.last_run) == "x"


async def test_a_fire_is_skipped_while_the_run_before_goes_on_unless_that_is_allowed() -> None:
    env = WorkflowTestEnv(start=datetime(2025, 1, 1, tzinfo=UTC))
    await env.client.schedules.create("r", report, {"hours": 3}, trigger=Every(2 * HOUR))
    await env.advance(9 * HOUR)
    assert await started(env) == ["2025-01-01T02:00", "2025-01-01T06:00"]
    env = WorkflowTestEnv(start=datetime(2025, 1, 1, tzinfo=UTC))
    await env.client.schedules.create("r", report, {"hours": 3}, trigger=Every(2 * HOUR), overlap="allow")
    await env.advance(9 * HOUR)
    assert await started(env) == [f"2025-01-01T0{hour}:00" for hour in (2, 4, 6, 8)]


async def test_pause_delete_and_trigger_now() -> None:
    env = WorkflowTestEnv(start=datetime(2025, 1, 1, tzinfo=UTC))
    schedules = env.client.schedules
    await schedules.create("r", report, trigger=Every(HOUR))
    await schedules.pause("r")
    await env.advance(5 * HOUR)
    assert await started(env) == []
    await schedules.unpause("r")
    await env.advance(HOUR)
    assert await started(env) == ["2025-01-01T06:00"]
    run = await schedules.trigger_now("r")
    assert await run.result() == "daily"
    await schedules.delete("r")
    assert await schedules.list() == []
    with pytest.raises(Exception, match="no schedule has the id 'r'"):
        await schedules.pause("r")


async def test_params_are_checked_when_the_schedule_is_made() -> None:
    env = WorkflowTestEnv()
    with pytest.raises(ValueError, match="sched_report"):
        await env.client.schedules.create("r", report, {"nonsense": 1}, trigger=Every(HOUR))


async def test_over_the_nights_when_clocks_change_a_daily_run_is_started_once_a_day() -> None:
    @workflow(name="sched_nightly")
    async def nightly(ctx: Context) -> str:
        return f"{(await ctx.now()).astimezone(ZoneInfo('Europe/Paris')):%d %H:%M}"

    env = WorkflowTestEnv(start=datetime(2025, 3, 28, 12, tzinfo=UTC))
    half_past_two = Cron("30 2 * * *", tz="Europe/Paris")
    await env.client.schedules.create("n", nightly, trigger=half_past_two)
    await env.advance(timedelta(days=4))
    # the 30th has no half past two: it is run at three
    assert await started(env) == ["2025-03-29T01:30", "2025-03-30T01:00", "2025-03-31T00:30", "2025-04-01T00:30"]
    env = WorkflowTestEnv(start=datetime(2025, 10, 25, 12, tzinfo=UTC))
    await env.client.schedules.create("n", nightly, trigger=half_past_two)
    await env.advance(timedelta(days=2))
    # half past two comes twice on the 26th
    assert await started(env) == ["2025-10-26T00:30", "2025-10-27T01:30"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["12:00"]),
        ({"catch_up": "all", "window": 3 * HOUR, "overlap": "allow"}, ["10:00", "11:00", "12:00"]),
        ({"catch_up": "all", "window": 3 * HOUR}, ["10:00"]),
        ({"catch_up": "none"}, []),
        ({"window": timedelta(minutes=10)}, []),
    ],
)
async def test_what_was_missed_while_nobody_looked(options: dict[str, Any], expected: list[str]) -> None:
    env = WorkflowTestEnv(start=datetime(2025, 1, 1, tzinfo=UTC))
    await env.client.schedules.create("r", report, {"hours": 1}, trigger=Every(HOUR), **options)
    env.clock.advance(12.5 * 3600)  # as if all workers had been away
    await env.advance(0)
    assert [text[11:] for text in await started(env)] == expected
    (info,) = await env.client.schedules.list()
    assert info.due == datetime(2025, 1, 1, 13, tzinfo=UTC)


class DiesAfterSubmit(MemoryStore):
    """As if its process had ended between the submission of a run and what is written after it."""

    async def submit(self, submission: Submission) -> Submitted:
        await super().submit(submission)
        raise asyncio.CancelledError


async def test_the_next_fire_knows_of_a_run_whose_worker_died_before_it_could_say_so() -> None:
    clock = ManualClock()
    dying = DiesAfterSubmit(clock)
    store = MemoryStore(clock)
    store._board = dying._board
    client = WorkflowClient(store)
    served = Served([report])
    await client.schedules.create("r", report, {"hours": 5}, trigger=Every(HOUR))
    clock.advance(HOUR)
    with pytest.raises(asyncio.CancelledError):
        await Firing(dying, served, poll_interval=1).fire_due()
    (run,) = [RunId.parse(chain).chain for chain in store._board.chains]
    # the fire of that time is the run that is there; the later ones are left out
    clock.advance(HOUR)
    assert await Firing(store, served, poll_interval=1).fire_due() == 0
    assert list(store._board.chains) == [run]
    (info,) = await client.schedules.list()
    assert info.last_run == run
    await client.cancel("sched_report", run)
    clock.advance(HOUR)
    assert await Firing(store, served, poll_interval=1).fire_due() == 1


class DiesBeforeSubmit(MemoryStore):
    async def submit(self, submission: Submission) -> Submitted:
        raise asyncio.CancelledError


async def test_a_fire_whose_worker_died_before_the_submission_is_made_up_for() -> None:
    clock = ManualClock()
    dying = DiesBeforeSubmit(clock)
    store = MemoryStore(clock)
    store._board = dying._board
    client = WorkflowClient(store)
    await client.schedules.create("r", report, trigger=Every(HOUR))
    clock.advance(HOUR)
    with pytest.raises(asyncio.CancelledError):
        await Firing(dying, Served([report]), poll_interval=1).fire_due()
    assert await Firing(store, Served([report]), poll_interval=1).fire_due() == 1
    assert len(store._board.chains) == 1
