"""Checked by mypy --strict, never run: what a type checker sees through definitions, and the wrong code it must refuse.

An `ignore` that is not needed is an error, so each says that the line is refused.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, assert_type

from pyrula.workflows import (
    Collect,
    Context,
    Limit,
    ManualClock,
    Rate,
    Retry,
    SystemClock,
    WorkflowDefinition,
    step,
    workflow,
)
from pyrula.workflows.clock import Clock
from pyrula.workflows.definition import step_of


class Order:
    id: str


class Receipt:
    id: str


@step(retry=Retry(max_attempts=5, initial=timedelta(seconds=1)), timeout=10)
async def charge(order: Order, cents: int = 0) -> str:
    return order.id


@step
def render(order: Order) -> bytes:
    return b""


async def plain(order: Order) -> list[int]:
    return []


@workflow(
    name="charge_order", concurrency=Limit("order", max=2), rate_limit=Rate(key=lambda p: p["order"], per_second=5)
)
async def charge_order(ctx: Context, order: Order, note: str | None = None) -> Receipt:
    assert_type(await ctx.step(charge, order), str)
    assert_type(await ctx.step(charge, order, cents=5), str)
    assert_type(await ctx.step(render, order), bytes)
    assert_type(await ctx.step(plain, order), list[int])
    assert_type(await ctx.step(charge.options(timeout=None), order), str)
    await ctx.step(charge, 5)  # type: ignore[call-overload]
    await ctx.step(charge)  # type: ignore[call-overload]
    await ctx.step(plain, order, cents=5)  # type: ignore[call-arg]
    return Receipt()


@workflow
async def bare(ctx: Any) -> None: ...


@workflow(name="batch", trigger=Collect(key="user_id", max_events=50, window_seconds=60))
async def batch(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> int:
    return count


assert_type(render(Order()), bytes)
assert_type(bare, WorkflowDefinition[[], None])
charge.options(retries=5)  # type: ignore[call-arg]


async def _results() -> None:
    assert_type(await charge_order(None, Order(), note="x"), Receipt)
    await charge_order(None, "order")  # type: ignore[arg-type]
    await charge_order(None)  # type: ignore[call-arg]
    assert_type(await step_of(plain)(Order()), list[int])
    assert_type(await batch(None, "k", [], 1), int)
    assert_type(await charge(Order()), str)


@workflow(name="sync")  # type: ignore[arg-type]
def not_async(ctx: Context) -> None: ...


@workflow(name="no_ctx")  # type: ignore[arg-type]
async def no_ctx() -> None: ...


@workflow(name="generator")  # type: ignore[arg-type]
async def generator(ctx: Context) -> AsyncIterator[int]:
    yield 1


@workflow(name="options", retries=3)  # type: ignore[call-overload,untyped-decorator]
async def options(ctx: Context) -> None: ...


Limit("k")  # type: ignore[call-arg]
Limit("k", max="2")  # type: ignore[arg-type]
Retry(attempts=3)  # type: ignore[call-arg]
clocks: list[Clock] = [SystemClock(), ManualClock()]
