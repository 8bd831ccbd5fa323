"""A step that a body calls like any function is warned of, with the line; in other places it is a function."""

import warnings

import pytest

from pyrula.workflows import Context, PlainCallWarning, step, workflow
from pyrula.workflows.testing import WorkflowTestEnv


@step
async def charge(cents: int) -> str:
    return f"ch_{cents}"


@step
async def charge_twice(cents: int) -> list[str]:
    return [await charge(cents), await charge(cents)]


@step(inline=True)
def price(sku: str) -> int:
    return len(sku)


@step
def price_of_all(skus: list[str]) -> int:
    return sum(map(price, skus))


@workflow(name="plain_calls")
async def careless(ctx: Context) -> str:
    return await charge(5)


@workflow(name="plain_calls_well_made")
async def careful(ctx: Context) -> int:
    await ctx.step(charge, 5)
    await ctx.step(charge_twice, 5)
    return await ctx.step(price, "a") + await ctx.step(price_of_all, ["a", "b"])


async def test_a_plain_call_in_a_body_is_warned_of_with_its_line() -> None:
    env = WorkflowTestEnv()
    with pytest.warns(PlainCallWarning, match=r"'plain_calls' calls step `charge` like .* `await ctx.step") as said:
        assert await (await env.start(careless)).result() == "ch_5"
    line = careless.fn.__code__.co_firstlineno + 2
    assert [(warning.filename, warning.lineno) for warning in said] == [(__file__, line)]


async def test_steps_that_call_steps_and_calls_elsewhere_are_fine() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await charge(5) == "ch_5"
        env = WorkflowTestEnv()
        assert await (await env.start(careful)).result() == 3
