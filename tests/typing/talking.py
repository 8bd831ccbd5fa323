"""Checked by mypy --strict, never run: what a type checker sees through children, interrupts and the next link."""

from typing import Any, assert_type

from pyrula.workflows import Context, workflow
from pyrula.workflows.engine.talking import ChildHandle


class Parcel:
    weight: int


@workflow(name="ship")
async def ship(ctx: Context, weight: int) -> Parcel:
    return Parcel()


@workflow(name="parent")
async def parent(ctx: Context, n: int = 0) -> int:
    assert_type(await ctx.run_child(ship, {"weight": 5}), Parcel)
    handle = await ctx.start_child(ship, {"weight": 5}, on_parent_close="abandon")
    assert_type(handle, ChildHandle[Parcel])
    assert_type(await handle.result(), Parcel)
    assert_type(await ctx.run_child("not.imported", {"weight": 5}), Any)
    await ctx.run_child(ship, {"weight": 5}, on_parent_close="kill")  # type: ignore[call-overload]
    answer = await ctx.interrupt({"ask": "sure?"})
    assert_type(answer.action, str)
    assert_type(ctx.version, str)
    assert_type(ctx.run.owner, str)
    if n > 3:
        await ctx.continue_as_new({"n": n + 1})
    return n
