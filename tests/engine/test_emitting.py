"""`ctx.emit`: each item once in the run's events, whatever becomes of the run in between."""

from typing import Any

import pytest

from pyrula.workflows import Context, SerializationError
from pyrula.workflows.replay.journal import decode_row
from tests.engine.talk_rig import Life

pytestmark = pytest.mark.usefixtures("prepared")


async def one_after_another(ctx: Context) -> int:
    for number in range(3):
        await ctx.emit({"n": number})
        await ctx.step(len, "x")
    await ctx.emit(None)
    return 3


async def side_by_side(ctx: Context) -> int:
    async def each(number: int) -> None:
        await ctx.emit({"n": number})
        await ctx.step(len, "x")

    await ctx.gather(*(each(number) for number in range(3)))
    await ctx.emit(None)
    return 3


def items(life: Life) -> list[Any]:
    return [data["item"] for type_, data in life.stored.events if type_ == "emitted"]


def entries(life: Life) -> int:
    return sum(decode_row(data)[0].opkind == "emit" for data in life.stored.rows.values())


@pytest.mark.parametrize("body", [one_after_another, side_by_side])
async def test_items_are_events_and_a_replay_emits_none(body: Any) -> None:
    life = Life(body)
    for _ in range(3):
        life.begin()
        assert (await life.end()).value == 3
        assert items(life) == [{"n": 0}, {"n": 1}, {"n": 2}, None]


@pytest.mark.parametrize("body", [one_after_another, side_by_side])
@pytest.mark.parametrize("changes", range(1, 9))
async def test_a_crash_between_any_two_writes_emits_nothing_twice(body: Any, changes: int) -> None:
    life = Life(body)
    life.begin(lost_after=changes)
    await life.end()
    # what was written was written whole
    assert len(items(life)) == entries(life)
    life.begin()
    assert (await life.end()).value == 3
    assert sorted(items(life), key=str) == sorted([{"n": 0}, {"n": 1}, {"n": 2}, None], key=str)
    assert items(life)[-1] is None


@pytest.mark.parametrize("item", [float("nan"), object(), "x" * 1_048_577])
async def test_what_cannot_be_emitted(item: Any) -> None:
    async def body(ctx: Context) -> str:
        try:
            await ctx.emit(item)
        except SerializationError as error:
            return str(error)
        return "emitted"

    life = Life(body)
    life.begin()
    assert "the emitted item" in (await life.end()).value
    assert items(life) == []
