"""Cancel: told once to every task, at an operation or at the next one; cleanup works; the same again on replay."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, RunCancelled, step
from pyrula.workflows.codec import loads
from pyrula.workflows.execution import Outcome, without_end
from pyrula.workflows.replay.journal import Journal
from tests.engine.talk_rig import Life

pytestmark = pytest.mark.usefixtures("prepared")


class Calls(list[str]):
    async def __call__(self, name: str) -> str:
        self.append(name)
        return name


async def cancelled(body: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> tuple[Life, Outcome]:
    """The outcome of a run that is cancelled once it waits, after it was replayed from every part of its journal."""
    life = Life(body, *args)
    life.begin()
    await asyncio.sleep(0.03)
    await life.settle()
    assert not life.task.done()
    life.send("cancel", message_id="cancel")
    outcome = await life.end()
    assert life.stored.inbox == []
    await replay_prefixes(life, outcome)
    return life, outcome


async def replay_prefixes(life: Life, outcome: Outcome) -> None:
    rows = sorted(life.stored.rows.items())
    cancel = next(number for number, (_, data) in enumerate(rows) if loads(data)[1] == "cancel")
    for length in range(cancel + 1, len(rows) + 1):
        again = Life(life.definition, *life.args)
        again.stored.rows = dict(rows[:length])
        again.begin()
        replayed = await again.end()
        assert (replayed.status, replayed.value, repr(replayed.error)) == (
            outcome.status, outcome.value, repr(outcome.error),
        ), f"{length} of {len(rows)} rows"  # fmt: skip


@pytest.mark.parametrize("wait", ["sleep", "signal", "interrupt", "long sleep", "gather", "group", "event", "plain"])
async def test_where_the_body_waits(wait: str) -> None:
    calls = Calls()

    async def body(ctx: Context) -> None:
        try:
            if wait == "sleep":
                await ctx.sleep(30)
            elif wait == "long sleep":
                await ctx.sleep(3600)
            elif wait == "signal":
                await ctx.wait_for_signal("go")
            elif wait == "interrupt":
                await ctx.interrupt()
            elif wait == "gather":
                await asyncio.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("b"))
            elif wait == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.wait_for_signal("a"))
                    group.create_task(asyncio.Event().wait())
            elif wait == "event":
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(3600)
        finally:
            await ctx.step(calls, "refund")
            await ctx.sleep(0.001)
            await asyncio.gather(ctx.step(calls, "mail"), ctx.step(calls, "log"))

    life = Life(body)
    life.begin()
    await asyncio.sleep(0.03)
    await life.settle()
    life.send("cancel", message_id="cancel")
    outcome = await life.end()
    assert outcome.status == "cancelled"
    assert sorted(calls) == ["log", "mail", "refund"]
    assert life.stored.open == {}
    life.begin()
    assert (await life.end()).status == "cancelled"
    assert len(calls) == 3
    await replay_prefixes(life, outcome)


async def test_a_step_that_is_under_way_finishes() -> None:
    for gathered in (False, True):
        gate = asyncio.Event()
        calls = Calls()

        async def charge(gate: asyncio.Event, calls: Calls) -> str:
            await gate.wait()
            return await calls("charge")

        async def body(ctx: Context, gathered: bool, gate: asyncio.Event, calls: Calls) -> None:
            first = ctx.step(charge, gate, calls)
            try:
                if gathered:
                    await asyncio.gather(first, ctx.wait_for_signal("x"))
                else:
                    await calls("got " + await first)
                    await ctx.step(calls, "never")
            except RunCancelled:
                await ctx.step(calls, "refund")
                raise

        life = Life(body, gathered, gate, calls)
        life.begin()
        await life.settle()
        life.send("cancel", message_id="cancel")
        await life.settle()
        assert calls == ([] if not gathered else ["refund"])
        gate.set()
        assert (await life.end()).status == "cancelled"
        # A gather doesn't wait for its other tasks when one of them raises, so that body ends before the step does.
        assert sorted(calls) == (["refund"] if gathered else ["charge", "got charge", "refund"])
        life.begin()
        assert (await life.end()).status == "cancelled"


async def test_a_step_between_attempts_ends_at_once() -> None:
    @step(retry=Retry(max_attempts=5, initial=50, jitter=0))
    async def fragile() -> None:
        raise ValueError("not yet")

    async def body(ctx: Context) -> None:
        await ctx.step(fragile)

    for park_after in (1.0, math.inf):
        life = Life(body)
        life.park_after = park_after
        life.begin()
        await life.settle()
        life.send("cancel", message_id="cancel")
        assert (await life.end()).status == "cancelled"


async def test_a_time_out_that_goes_off_meanwhile_does_not_hide_it() -> None:
    calls = Calls()
    asked = asyncio.Event()

    async def body(ctx: Context) -> None:
        try:
            async with ctx.timeout(0.01):
                try:
                    await asyncio.Event().wait()
                finally:
                    asked.set()
                    await ctx.step(calls, "in time-out")
        except TimeoutError:
            await ctx.step(calls, "after it")

    life = Life(body)
    life.begin()
    await asked.wait()
    life.send("cancel", message_id="cancel")
    outcome = await life.end()
    assert (outcome.status, list(calls)) == ("cancelled", ["in time-out"])
    await replay_prefixes(life, outcome)


async def test_told_once() -> None:
    calls = Calls()

    async def body(ctx: Context) -> list[str]:
        seen = []
        for number in range(4):
            try:
                await ctx.wait_for_signal("go") if number < 2 else await ctx.step(calls, str(number))
            except RunCancelled:
                seen.append(f"cancelled at {number}")
        return seen

    life = Life(body)
    life.begin()
    life.send("cancel", message_id="cancel")
    life.send("cancel", message_id="cancel")
    await life.settle()
    life.send("signal", "go")
    outcome = await life.end()
    assert (outcome.status, outcome.value) == ("completed", ["cancelled at 0"])
    assert calls == ["2", "3"]
    assert life.stored.inbox == []


async def test_a_task_that_was_not_at_an_operation_gets_it_at_its_next() -> None:
    calls = Calls()

    async def body(ctx: Context) -> list[str]:
        seen: list[str] = []
        free = asyncio.Event()

        async def other() -> None:
            await free.wait()
            try:
                await ctx.step(calls, "other")
            except RunCancelled:
                seen.append("other")
                await ctx.step(calls, "other cleans up")

        task = asyncio.ensure_future(other())
        try:
            await ctx.wait_for_signal("go")
        except RunCancelled:
            seen.append("main")
            free.set()
            await task
        return seen

    _, outcome = await cancelled(body)
    assert outcome.value == ["main", "other"]
    assert "other" not in calls


async def test_gather_with_return_exceptions_swallows_it_for_its_tasks_only() -> None:
    async def body(ctx: Context) -> None:
        await asyncio.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("b"), return_exceptions=True)
        await ctx.step(Calls(), "next")

    _, outcome = await cancelled(body)
    assert outcome.status == "cancelled"


async def test_a_time_out_around_the_wait() -> None:
    calls = Calls()

    async def body(ctx: Context) -> None:
        try:
            async with ctx.timeout(3600):
                await ctx.wait_for_signal("go")
        finally:
            await ctx.step(calls, "cleanup")

    life, outcome = await cancelled(body)
    assert outcome.status == "cancelled"
    assert calls[0] == "cleanup"
    assert life.execution.machine is not None
    assert life.execution.machine.waiting == {}


async def test_an_update_handler_is_told_too() -> None:
    calls = Calls()

    async def body(ctx: Context) -> None:
        async def slow() -> None:
            try:
                await ctx.wait_for_signal("slow")
            finally:
                await ctx.step(calls, "handler cleans up")

        ctx.on_update("slow", slow)
        await ctx.wait_for_signal("go")

    life = Life(body)
    life.begin()
    life.send("update", "slow", None, "u1")
    await life.settle()
    life.send("cancel", message_id="cancel")
    outcome = await life.end()
    assert outcome.status == "cancelled"
    assert calls == ["handler cleans up"]
    assert life.stored.applied["u1"][0].outcome == "error"


async def test_a_handler_that_waits_for_nothing_is_ended() -> None:
    async def body(ctx: Context) -> str:
        async def stuck() -> None:
            await asyncio.Event().wait()

        ctx.on_update("stuck", stuck)
        await ctx.wait_for_signal("go")
        return "over"

    life = Life(body)
    life.begin()
    life.send("update", "stuck", None, "u1")
    life.send("signal", "go")
    await asyncio.sleep(0.03)
    await life.settle()
    assert not life.task.done()
    life.send("cancel", message_id="cancel")
    assert (await life.end()).status == "completed"
    assert life.stored.applied["u1"][0].outcome == "error"


async def test_cancelled_before_it_begins_in_this_process() -> None:
    async def body(ctx: Context) -> None:
        await ctx.step(Calls(), "first")
        await ctx.wait_for_signal("go")

    life = Life(body)
    life.stored.put("cancel", message_id="cancel")
    life.begin()
    assert (await life.end()).status == "cancelled"


async def test_crashes_during_cleanup() -> None:
    calls = Calls()

    async def body(ctx: Context) -> None:
        try:
            await asyncio.gather(ctx.wait_for_signal("a"), ctx.sleep(3600))
        finally:
            for name in ("one", "two", "three"):
                await ctx.step(calls, name)

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("cancel", message_id="cancel")
    for changes in range(20):
        if life.task.done() and (await life.end()).status == "cancelled":
            break
        await life.crash()
        life.begin(lost_after=changes)
        await life.settle()
        await life.crash()
        life.begin()
        await asyncio.sleep(0)
    assert (await life.end()).status == "cancelled"
    assert set(calls) == {"one", "two", "three"}


async def test_a_retry_goes_on_before_the_cancellation() -> None:
    gate = asyncio.Event()
    calls = Calls()

    async def charge() -> str:
        await gate.wait()
        return await calls("charge")

    async def body(ctx: Context) -> list[Any]:
        try:
            first = await ctx.wait_for_signal("first")
            return [first, *await asyncio.gather(ctx.step(charge), ctx.wait_for_signal("go"))]
        except RunCancelled:
            await ctx.wait_for_signal("cleanup")
            await ctx.step(calls, "refund")
            raise

    life = Life(body)
    life.begin()
    life.send("signal", "first", 1)
    await life.settle()
    life.send("cancel", message_id="cancel")
    await life.settle()
    gate.set()
    await life.settle()
    life.send("signal", "cleanup", "taken")
    assert (await life.end()).status == "cancelled"
    assert calls == ["charge", "refund"]
    journal, rows = without_end(Journal.load(life.stored.rows.items()))
    for index, data in rows:
        if data:
            life.stored.rows[index] = data
        else:
            del life.stored.rows[index]
    assert Journal.load(life.stored.rows.items()).entries() == journal.entries()
    for crash in (True, False):
        life.begin()
        await life.settle()
        assert life.execution.desk is not None
        assert list(life.execution.desk.letters) == [("signal", "cleanup")]
        assert not life.task.done()
        if crash:
            await life.crash()
    life.send("signal", "go", 2)
    outcome = await life.end()
    assert (outcome.status, outcome.value) == ("completed", [1, "charge", 2])
    assert calls == ["charge", "refund"]


async def test_pause_waits_for_the_step_and_starts_no_other() -> None:
    gate = asyncio.Event()
    calls = Calls()

    async def slow() -> str:
        await gate.wait()
        return await calls("slow")

    async def body(ctx: Context) -> str:
        await ctx.step(slow)
        return await ctx.step(calls, "next")

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("pause", "", "by hand")
    await asyncio.sleep(0.03)
    await life.settle()
    assert not life.task.done()
    gate.set()
    outcome = await life.end()
    assert (outcome.status, outcome.value, outcome.error) == ("paused", b'"by hand"', None)
    assert calls == ["slow"]
    assert life.stored.inbox == []
    life.begin()
    assert (await life.end()).value == "next"
    assert calls == ["slow", "next"]


@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("rows", [0, 1])
async def test_a_replay_that_begins_with_a_pause_starts_nothing(rows: int, signalled: bool) -> None:
    """Whoever has the run next is to stop where it stood, whether it was told before or after it began."""
    calls = Calls()

    async def body(ctx: Context) -> list[str]:
        return [await ctx.step(calls, "first"), await ctx.wait_for_signal("go"), await ctx.step(calls, "next")]

    former = Life(body)
    former.begin()
    await former.settle()
    assert calls == ["first"]
    life = Life(former.definition)
    life.stored.rows = dict(sorted(former.stored.rows.items())[:rows])
    if signalled:
        life.stored.put("signal", "go", "gone")
    life.stored.put("pause", "", "by hand")
    calls.clear()
    life.begin()
    outcome = await life.end()
    assert (outcome.status, outcome.value) == ("paused", b'"by hand"')
    assert calls == []
    if not signalled:
        life.stored.put("signal", "go", "gone")
    life.begin()
    assert (await life.end()).value == ["first", "gone", "next"]
    assert calls == ["first", "next"][rows:]
    former.task.cancel()
    await asyncio.wait([former.task])


async def test_pause_of_a_run_that_waits() -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("pause")
    assert (await life.end()).status == "paused"
    life.stored.put("signal", "go", 1)
    life.begin()
    assert (await life.end()).value == 1
