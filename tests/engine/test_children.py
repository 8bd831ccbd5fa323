"""Children, the next link of a chain, and the retry of a run by another process."""

from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.workflows import (
    Context,
    DurableInvocationCancelled,
    DurableInvocationError,
    Retry,
    RunCancelled,
    StepError,
    step,
)
from pyrula.workflows.codec import loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.execution import ContinueAsNew, without_end
from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.store.messages import child_result
from pyrula.workflows.store.payloads import encode_failure, failure_of
from tests.engine.talk_rig import Life

pytestmark = pytest.mark.usefixtures("prepared")


class Parcel(BaseModel):
    weight: int


async def _ship(ctx: Context, weight: int) -> Parcel:
    return Parcel(weight=weight)


ship = WorkflowDefinition(_ship, name="ship", version="7")


def finish(life: Life, child_id: str, status: str = "completed", value: bytes = b'{"weight":5}') -> None:
    error = None if status == "completed" else encode_failure(failure_of(LookupError("lost")))
    life.send("child", child_id, loads(child_result(child_id, status, value, error)), child_id)


async def test_a_childs_result() -> None:
    async def body(ctx: Context) -> Parcel:
        return await ctx.run_child(ship, {"weight": 5})

    life = Life(body)
    life.begin()
    await life.settle()
    (request,) = life.stored.submitted
    assert request[1:] == ("ship", b'{"weight":5}', "7", "cancel", None)
    assert life.stored.children == [(request.run_id, "cancel")]
    assert await life.park() == (("child", request.run_id, None),)
    life.begin()
    await life.settle()
    finish(life, request.run_id)
    assert (await life.end()).value == Parcel(weight=5)
    assert len(life.stored.submitted) == 1
    life.begin()
    assert (await life.end()).value == Parcel(weight=5)
    assert [(kind, data["run_id"]) for kind, data in life.stored.events] == [
        ("child_started", request.run_id), ("child_finished", request.run_id),
    ]  # fmt: skip


async def test_how_a_child_fails_its_parent() -> None:
    async def body(ctx: Context, status: str) -> Any:
        handle = await ctx.start_child("somewhere.else", {"x": 1}, on_parent_close="abandon")
        try:
            await handle.result()
        except (DurableInvocationError, DurableInvocationCancelled) as error:
            first = error
        with pytest.raises(type(first)):
            await handle.result()
        return [type(first).__name__, str(first)]

    for status, kind in (("failed", "DurableInvocationError"), ("cancelled", "DurableInvocationCancelled")):
        life = Life(body, status)
        life.begin()
        await life.settle()
        (request,) = life.stored.submitted
        assert (request.version, request.on_parent_close) == (None, "abandon")
        finish(life, request.run_id, status, b"null")
        outcome = await life.end()
        assert outcome.value[0] == kind
        life.begin()
        assert (await life.end()).value == outcome.value


async def test_a_crash_before_the_submission_submits_the_same_child() -> None:
    async def body(ctx: Context) -> str:
        handle = await ctx.start_child(ship, {"weight": 1})
        return handle.run_id

    life = Life(body)
    life.begin()
    while not life.stored.children:
        await life.settle_once()
    await life.crash()
    (child,) = life.stored.children
    life.begin()
    assert (await life.end()).value == child.run_id
    assert {request.run_id for request in life.stored.submitted} == {child.run_id}
    assert life.stored.children == [child]


async def test_params_that_do_not_fit_are_told_the_body() -> None:
    async def body(ctx: Context) -> str:
        with pytest.raises(ValueError, match="workflow 'ship', weight"):
            await ctx.start_child(ship, {"weight": "heavy"})
        with pytest.raises(ValueError, match="on_parent_close"):
            await ctx.start_child(ship, {"weight": 1}, on_parent_close="kill")  # type: ignore[call-overload]
        return "told"

    life = Life(body)
    life.begin()
    assert (await life.end()).value == "told"
    assert life.stored.rows == {}


async def test_a_child_that_cannot_be_submitted_fails_the_run() -> None:
    async def body(ctx: Context) -> None:
        await ctx.run_child(ship, {"weight": 1})

    life = Life(body)
    life.begin()

    async def refuse(run: Any, request: Any) -> None:
        raise RuntimeError("refused")

    life.host.submit = refuse  # type: ignore[method-assign]
    outcome = await life.end()
    assert (outcome.status, repr(outcome.error)) == ("failed", "RuntimeError('refused')")


async def test_a_parent_that_is_cancelled_while_it_waits_for_a_child() -> None:
    async def body(ctx: Context) -> None:
        try:
            await ctx.run_child(ship, {"weight": 1})
        except RunCancelled:
            await ctx.run_child(ship, {"weight": 2})
            raise

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("cancel", message_id="cancel")
    await life.settle()
    finish(life, life.stored.submitted[1].run_id)
    assert (await life.end()).status == "cancelled"


async def test_continue_as_new() -> None:
    closed: list[int] = []

    async def body(ctx: Context, n: int) -> int:
        try:
            await ctx.step(_add, n)
            if n < 3:
                await ctx.continue_as_new({"n": n + 1})
        finally:
            closed.append(n)
        return n

    definition = WorkflowDefinition(body, name="loop", version="2")
    life = Life(definition, 2)
    for _ in range(2):
        life.begin()
        outcome = await life.end()
        assert (outcome.status, outcome.value) == ("continued_as_new", ContinueAsNew(b'{"n":3}', "2"))
    assert closed == [2, 2]


async def _add(n: int) -> int:
    return n + 1


async def test_continue_as_new_waits_for_handlers_and_is_not_for_them() -> None:
    async def body(ctx: Context, n: int = 0) -> None:
        async def slow() -> str:
            await ctx.wait_for_signal("slow")
            return "done"

        async def wrong() -> None:
            await ctx.continue_as_new({})

        ctx.on_update("slow", slow)
        ctx.on_update("wrong", wrong)
        await ctx.wait_for_signal("go")
        await ctx.continue_as_new({"n": n + 1})

    life = Life(WorkflowDefinition(body, name="loop"))
    life.begin()
    life.send("update", "slow", None, "u1")
    life.send("update", "wrong", None, "u2")
    life.send("signal", "go")
    await life.settle()
    assert not life.task.done()
    life.send("signal", "slow")
    assert (await life.end()).status == "continued_as_new"
    assert life.stored.applied["u1"][0].value == b'"done"'
    assert b"asked for by the body" in life.stored.applied["u2"][0].value


async def test_a_run_that_failed_is_retried_elsewhere() -> None:
    calls: list[str] = []

    @step(retry=Retry(max_attempts=1))
    async def fragile() -> str:
        calls.append("fragile")
        if calls.count("fragile") < 2:
            raise ValueError("broken")
        return "mended"

    async def charge() -> None:
        calls.append("charge")

    async def body(ctx: Context) -> list[Any]:
        await ctx.step(charge)
        seen = [await ctx.wait_for_signal("a")]
        seen.append(await ctx.step(fragile))
        seen.append(await ctx.wait_for_signal("b"))
        return seen

    life = Life(body)
    life.begin()
    life.send("signal", "a", 1)
    outcome = await life.end()
    assert (outcome.status, type(outcome.error)) == ("failed", StepError)
    retry(life)
    life.begin()
    await life.settle()
    life.send("signal", "b", 2)
    assert (await life.end()).value == [1, "mended", 2]
    assert calls == ["charge", "fragile", "fragile"]


def retry(life: Life) -> None:
    _, rows = without_end(Journal.load(life.stored.rows.items()))
    for index, data in rows:
        if data:
            life.stored.rows[index] = data
        else:
            del life.stored.rows[index]


async def test_a_retry_after_a_signal_did_not_come_waits_anew() -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go", timeout=60)

    life = Life(body)
    life.begin()
    await life.settle()
    await life.park()
    life.advance(61)
    life.begin()
    outcome = await life.end()
    assert (outcome.status, type(outcome.error)) == ("failed", TimeoutError)
    retry(life)
    life.begin()
    await life.settle()
    assert not life.task.done()
    life.send("signal", "go", 5)
    assert (await life.end()).value == 5


async def test_a_retry_without_a_step_to_blame_keeps_the_journal() -> None:
    async def body(ctx: Context) -> None:
        await ctx.step(_add, 1)
        raise KeyError("bug")

    life = Life(body)
    life.begin()
    assert (await life.end()).status == "failed"
    rows = dict(life.stored.rows)
    retry(life)
    assert [loads(data)[1] for data in life.stored.rows.values()] == ["value"]
    assert len(rows) == 2


async def test_what_a_retry_takes_back_is_delivered_again() -> None:
    failing = [True]

    async def body(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        ctx.on_update("add", seen.append)

        @step(retry=Retry(max_attempts=1))
        async def fragile() -> None:
            if failing:
                raise ValueError("broken")

        try:
            await ctx.step(fragile)
        except StepError:
            await ctx.wait_for_signal("more")
            await ctx.wait_for_signal("never")
            raise
        seen.append(await ctx.wait_for_signal("more"))
        return seen

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("update", "add", "u", "u1")
    life.send("signal", "more", "m")
    await life.settle()
    life.send("signal", "never")
    outcome = await life.end()
    assert outcome.status == "failed"
    retry(life)
    failing.clear()
    for crash in (1, 0):
        life.begin()
        if crash:
            await life.settle_once()
            await life.crash()
    assert (await life.end()).value == ["u", "m"]
    assert len(life.stored.applied["u1"]) == 1


@pytest.mark.parametrize("later", [False, True])
async def test_what_a_handler_changes_meanwhile_goes_along_by_a_function(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(ctx: Context, items: list[str]) -> None:
        async def add(sku: str) -> None:
            await ctx.wait_for_signal("priced")
            items.append(sku)

        ctx.on_update("add", add)
        await ctx.wait_for_signal("go")
        await ctx.continue_as_new((lambda: {"items": items}) if later else {"items": items})

    life = Life(WorkflowDefinition(body, name="loop"), [])
    life.begin()
    life.send("update", "add", {"sku": "a"}, "u1")
    life.send("signal", "go")
    life.send("signal", "priced")
    outcome = await life.end()
    assert (outcome.status, outcome.value.params) == (
        "continued_as_new",
        b'{"items":["a"]}' if later else b'{"items":[]}',
    )
    said = [record.message for record in caplog.records if "continues as new while 1 of its updates" in record.message]
    assert len(said) == (not later)


async def test_a_function_that_gives_no_params_fails_the_run() -> None:
    async def body(ctx: Context, n: int) -> None:
        await ctx.continue_as_new(lambda: {"n": "many"})

    life = Life(WorkflowDefinition(body, name="loop"), 1)
    life.begin()
    outcome = await life.end()
    assert outcome.status == "failed"
    assert "workflow 'loop', n: " in str(outcome.error)
