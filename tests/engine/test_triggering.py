"""`ctx.trigger`: fed once, whatever becomes of the run between asking, feeding and writing the answer down."""

import asyncio
import contextlib
from typing import Any

import pytest

from pyrula.workflows import Collect, ConfigurationError, Context, Retry, RunCancelled, step, workflow
from pyrula.workflows.codec import loads
from pyrula.workflows.execution import without_end
from pyrula.workflows.replay.journal import Journal, decode_row
from tests.engine.rig import MemoryHost, execution
from tests.engine.talk_rig import Life

pytestmark = pytest.mark.usefixtures("prepared")


@workflow(name="engine_digest", trigger=Collect(key="user", max_events=3, window_seconds=60))
async def digest(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None: ...


@step(retry=Retry(max_attempts=1))
async def refuse() -> None:
    raise OSError("not yet")


async def one_after_another(ctx: Context) -> list[str | None]:
    answers = [await ctx.trigger(digest, {"user": "u", "n": n}) for n in range(4)]
    await ctx.step(len, "x")
    return answers


async def side_by_side(ctx: Context) -> list[str | None]:
    return await ctx.gather(*(ctx.trigger("engine_digest", {"user": "u", "n": n}) for n in range(4)))


def fed(life: Life) -> list[int]:
    """The numbers of the events that were fed, in order."""
    return [loads(event.data)["n"] for event, _ in life.stored.fed.values()]


def kinds(life: Life) -> list[tuple[str, str, str]]:
    entries = [decode_row(data)[0] for _, data in sorted(life.stored.rows.items())]
    return [(entry.kind, entry.op, entry.opkind) for entry in entries]


@pytest.mark.parametrize("body", [one_after_another, side_by_side])
async def test_events_are_fed_and_their_answers_replayed(body: Any) -> None:
    life = Life(body)
    life.begin()
    outcome = await life.end()
    assert outcome.value == [None, None, "00-run-0", None]
    assert fed(life) == [0, 1, 2, 3]
    assert sorted(life.stored.forgotten) == sorted(life.stored.fed)
    life.begin()
    assert (await life.end()).value == outcome.value
    assert fed(life) == [0, 1, 2, 3]


async def test_an_id_is_durable_before_its_event_leaves() -> None:
    life = Life(one_after_another)
    life.begin()
    await life.end()
    assert kinds(life)[:4] == [
        ("trigger", "1", "trigger"),
        ("value", "1", "trigger"),
        ("trigger", "2", "trigger"),
        ("value", "2", "trigger"),
    ]
    for event, _ in life.stored.fed.values():
        assert event.lasting
    # nothing of it is a delivery of a message, and the id is the note's
    notes = [decode_row(data)[0] for data in life.stored.rows.values() if b'"trigger"' in data]
    assert {loads(note.value or b"") for note in notes if note.kind == "trigger"} == set(life.stored.fed)


@pytest.mark.parametrize("body", [one_after_another, side_by_side])
@pytest.mark.parametrize("changes", range(1, 10))
async def test_a_crash_between_any_two_writes_feeds_nothing_twice(body: Any, changes: int) -> None:
    life = Life(body)
    # what is written behind that many changes never arrives, though what was fed meanwhile is fed
    life.begin(lost_after=changes)
    durable = life.host.durable
    never = asyncio.get_running_loop().create_future()
    life.host.durable = (  # type: ignore[method-assign]
        lambda run: never if life.stored.changes >= changes else durable(run)
    )
    await life.settle()
    await life.crash()
    life.begin()
    answers = (await life.end()).value
    assert sorted(fed(life)) == [0, 1, 2, 3]
    assert sorted(answer or "" for answer in answers) == ["", "", "", "00-run-0"]


async def test_an_id_of_the_callers_is_used_as_it_is_and_stays_known() -> None:
    async def body(ctx: Context) -> None:
        for _ in range(2):
            await ctx.trigger(digest, {"user": "u", "n": 0}, event_id="mine")

    life = Life(body)
    life.begin()
    assert (await life.end()).status == "completed"
    assert list(life.stored.fed) == ["mine"]
    assert life.stored.forgotten == []
    assert [kind for kind, _, _ in kinds(life)] == ["value", "value"]


async def test_a_cancel_waits_for_an_event_that_is_on_its_way() -> None:
    async def body(ctx: Context) -> None:
        try:
            await ctx.gather(ctx.trigger(digest, {"user": "u", "n": 0}), ctx.wait_for_signal("never"))
        except RunCancelled:
            await ctx.trigger(digest, {"user": "u", "n": 1})
            raise

    life = Life(body)
    life.begin()
    await asyncio.sleep(0)
    life.send("cancel")
    assert (await life.end()).status == "cancelled"
    assert fed(life) == [0, 1]
    life.begin()
    assert (await life.end()).status == "cancelled"
    assert fed(life) == [0, 1]


async def test_a_retry_keeps_the_answer_of_an_event_behind_the_failure() -> None:
    async def body(ctx: Context) -> list[str | None]:
        failing = asyncio.create_task(ctx.step(refuse))
        answers = []
        for n in range(3):
            await ctx.sleep(0.001)
            answers.append(await ctx.trigger(digest, {"user": "u", "n": n}))
        await failing
        return answers

    life = Life(body)
    life.begin()
    while not life.task.done():
        life.advance(1)
        await asyncio.sleep(0.002)
    assert (await life.end()).status == "failed"
    assert fed(life) == [0, 1, 2]
    journal, rows = without_end(Journal.load(life.stored.rows.items()))
    assert [decode_row(data)[0].kind for _, data in rows if data] == ["answer"] * 3
    life.attempt += 1
    life.begin(journal=journal)
    while not life.task.done():
        life.advance(1)
        await asyncio.sleep(0.002)
    await life.end()
    assert fed(life) == [0, 1, 2]


async def test_what_cannot_be_fed_is_told_before_it_counts_as_an_operation() -> None:
    @workflow(name="engine_plain")
    async def plain(ctx: Context) -> None: ...

    async def body(ctx: Context) -> str:
        for workflow_, event, kind, text in [
            (digest, 5, ValueError, "must be a dict or a model, not int"),
            (plain, {}, ConfigurationError, "'engine_plain' has no trigger"),
            ("engine_nobody", {}, ConfigurationError, "'engine_nobody' isn't imported"),
        ]:
            with pytest.raises(kind, match=text):  # type: ignore[call-overload]
                await ctx.trigger(workflow_, event)  # type: ignore[arg-type]
        await ctx.step(len, "x")
        return "done"

    life = Life(body)
    life.begin()
    assert (await life.end()).value == "done"
    assert kinds(life) == [("value", "1", "step")]


async def test_a_host_that_cannot_feed_fails_the_run_saying_so() -> None:
    async def body(ctx: Context) -> None:
        await ctx.trigger(digest, {"user": "u"})

    outcome = await execution(body, MemoryHost()).run()
    assert outcome.status == "failed"
    assert "this run can't feed triggers; do it by a client, in a step" in str(outcome.error)


async def test_what_the_store_refuses_fails_the_run() -> None:
    async def body(ctx: Context) -> None:
        with contextlib.suppress(ValueError):
            await ctx.trigger(digest, {"user": "u", "n": 0})

    life = Life(body)
    life.begin()

    async def refused(*arguments: Any) -> str:
        raise ValueError("the key of Limit failed")

    life.host.trigger = refused  # type: ignore[method-assign]
    outcome = await life.end()
    assert (outcome.status, str(outcome.error)) == ("failed", "the key of Limit failed")
