"""A body that was changed under its journal: what the error says, and that the run is paused."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyrula.workflows import Context, NonDeterminismError, Retry, step
from pyrula.workflows.replay import mismatch
from tests.engine.rig import MemoryHost, Rows, play

executed: list[str] = []


@step(retry=Retry(max_attempts=1))
async def charge() -> int:
    executed.append("charge")
    return 1


@step(retry=Retry(max_attempts=1))
async def refund() -> int:
    executed.append("refund")
    return 2


async def recorded(ctx: Context) -> None:
    await ctx.step(charge)
    await ctx.send("topic", 1)
    await ctx.step(refund)


async def recorded_with_tasks(ctx: Context) -> None:
    await ctx.step(charge)
    await asyncio.gather(ctx.step(refund), ctx.now())


def rows_of(body: Any, tasks: bool = False) -> Rows:
    return sorted(play(body, tasks=tasks)[1].rows.items())


async def other_name(ctx: Context) -> None:
    await ctx.step(refund)
    await ctx.step(charge)


async def other_kind(ctx: Context) -> None:
    await ctx.now()


async def one_more_before(ctx: Context) -> None:
    await ctx.step(charge)
    await ctx.send("topic", 1)
    await ctx.now()
    await ctx.step(refund)


async def no_longer_sends(ctx: Context) -> None:
    await ctx.step(charge)
    await ctx.step(refund)


async def sends_once_more(ctx: Context) -> None:
    await ctx.step(charge)
    await ctx.send("topic", 1)
    await ctx.send("topic", 2)
    await ctx.step(refund)


async def ends_early(ctx: Context) -> None:
    await ctx.step(charge)


async def fails_early(ctx: Context) -> None:
    await ctx.step(charge)
    raise LookupError("gone")


async def in_a_task(ctx: Context) -> None:
    await asyncio.create_task(ctx.step(charge))


async def in_a_gather(ctx: Context) -> None:
    await asyncio.gather(ctx.step(charge), ctx.step(refund))


CHANGED: list[tuple[Any, list[str]]] = [
    (other_name, ["step `charge` (operation 1)", "step `refund` (operation 1)", "name 'charge' -> 'refund'"]),
    (other_kind, ["step `charge` (operation 1)", "now (operation 1)", "kind 'step' -> 'now'"]),
    (one_more_before, ["entry 1", "step `refund` (operation 3)", "now (operation 3)"]),
    (no_longer_sends, ["step `refund` (operation 3)", "step `refund` (operation 2)"]),
    (sends_once_more, ["step `refund` (operation 3)", "step `refund` (operation 4)"]),
    (ends_early, ["step `refund` (operation 3)", "the body ended after 1 operations"]),
    (fails_early, ["step `refund` (operation 3)", "the body ended after 1 operations"]),
    (in_a_task, ["step `charge` (operation 1)", "step `charge` (operation 1 of task step.0)"]),
    (in_a_gather, ["step `charge` (operation 1)", "step `charge` (operation 1 of task step.0)"]),
]


@pytest.mark.parametrize(("changed", "texts"), CHANGED, ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_both_operations_are_named_and_the_run_is_paused(
    changed: Callable[[Context], Any], texts: list[str], tasks: bool
) -> None:
    rows = rows_of(recorded)
    executed.clear()
    outcome, host = play(changed, rows=rows, tasks=tasks)
    assert outcome.status == "paused"
    assert isinstance(outcome.error, NonDeterminismError)
    for text in [*texts, "Usual cause", 'ctx.patched("change-id")', "version"]:
        assert text in str(outcome.error)
    assert not executed
    assert not host.entries
    if changed is fails_early:
        assert isinstance(outcome.error.__cause__, LookupError)


async def swapped(ctx: Context) -> None:
    await ctx.step(charge)
    await asyncio.gather(ctx.now(), ctx.step(refund), ctx.random())


async def one_task_less(ctx: Context) -> None:
    await ctx.step(charge)
    await asyncio.gather(ctx.step(refund))


async def not_in_tasks_any_more(ctx: Context) -> None:
    await ctx.step(charge)
    await ctx.step(refund)
    await ctx.now()


@pytest.mark.parametrize("changed", [swapped, one_task_less, not_in_tasks_any_more], ids=lambda one: one.__name__)
@pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])
def test_with_several_tasks(changed: Callable[[Context], Any], tasks: bool) -> None:
    rows = rows_of(recorded_with_tasks)
    executed.clear()
    outcome, host = play(changed, rows=rows, tasks=tasks)
    assert outcome.status == "paused"
    assert "operations asked for 3 -> " in str(outcome.error)
    assert not executed
    assert not host.entries


def test_a_body_that_swallows_the_end_is_paused_all_the_same() -> None:
    async def swallows(ctx: Context) -> None:
        try:
            await ctx.now()
        except BaseException:  # noqa: BLE001
            executed.append("swallowed")
        await ctx.step(charge)

    executed.clear()
    for tasks in (False, True):
        outcome, _ = play(swallows, rows=rows_of(recorded), tasks=tasks)
        assert outcome.status == "paused"
    assert "swallowed" in executed
    assert executed.count("charge") == 2  # by the recordings


def test_a_changed_return_annotation_is_a_mismatch() -> None:
    @step(name="charge")
    async def changed() -> list[str]:
        return []

    async def body(ctx: Context) -> None:
        await ctx.step(changed)

    for tasks in (False, True):
        outcome, _ = play(body, rows=rows_of(recorded)[:1], tasks=tasks)
        assert outcome.status == "paused"
        assert "return annotation was changed" in str(outcome.error)


def test_another_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(index, data.replace(mismatch.PYTHON.encode(), b"3.9")) for index, data in rows_of(recorded_with_tasks)]
    outcome, _ = play(one_task_less, rows=rows)
    assert "written by Python 3.9" in str(outcome.error)


def test_patched_lets_old_runs_take_the_old_way() -> None:
    async def patched(ctx: Context) -> list[Any]:
        await ctx.step(charge)
        new = ctx.patched("refund-first")
        if new:
            await ctx.now()
        await ctx.send("topic", 1)
        return [new, await ctx.step(refund), ctx.patched("refund-first") is new]

    for tasks in (False, True):
        old, _ = play(patched, rows=rows_of(recorded), tasks=tasks)
        assert old.value == [False, 2, True], old.error
        fresh, host = play(patched, tasks=tasks)
        assert fresh.value == [True, 2, True]
        rows = sorted(host.rows.items())
        for length in range(len(rows) + 1):
            again, _ = play(patched, rows=rows[:length], tasks=not tasks)
            assert again.status == "completed", again.error
        # a run that had done the first step only takes the new way
        fresh, _ = play(patched, rows=rows_of(recorded)[:1], tasks=tasks)
        assert fresh.value == [True, 2, True]


def test_iterating_a_set_of_texts_is_caught_as_a_mismatch() -> None:
    order = ["a", "b", "c"]

    async def body(ctx: Context) -> None:
        for name in order:  # as if it was a set, in another process
            await ctx.step(step(name=name)(charge.fn))

    rows = rows_of(body)
    order.reverse()
    outcome, _ = play(body, rows=rows)
    assert outcome.status == "paused"
    assert "name 'a' -> 'c'" in str(outcome.error)


def test_the_error_is_the_same_on_every_try() -> None:
    rows = rows_of(recorded)
    texts = {str(play(other_name, rows=rows, host=MemoryHost(rows))[0].error) for _ in range(3)}
    assert len(texts) == 1
