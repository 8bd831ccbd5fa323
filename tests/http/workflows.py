"""The workflows that the tests of the HTTP API start, with whatever a run can do to whoever talks to it."""

from typing import Any

from pydantic import BaseModel

from pyrula.workflows import Collect, Context, Limit, workflow


class Order(BaseModel):
    id: str
    amount_cents: int


@workflow(name="http_charge")
async def charge(ctx: Context, order: Order, note: str = "") -> dict[str, Any]:
    paid = await ctx.step(_pay, order.amount_cents)
    return {"order": order.id, "paid": paid, "note": note}


def _pay(cents: int) -> int:
    return cents


@workflow(name="http_cart")
async def cart(ctx: Context, size: int = 3) -> list[str]:
    items: list[str] = []

    async def add(sku: str) -> int:
        await ctx.step(len, sku)
        items.append(sku)
        return len(items)

    def check(sku: str) -> None:
        if len(items) >= size:
            raise ValueError("the cart is full")

    def explode() -> None:
        raise LookupError("boom")

    ctx.on_update("add", add, check)
    ctx.on_update("explode", explode)
    ctx.on_query("items", lambda last=None: items if last is None else items[-last:])
    ctx.on_query("broken", explode)
    await ctx.wait_for_signal("checkout")
    return items


@workflow(name="http_asks")
async def asks(ctx: Context) -> list[Any]:
    answer = await ctx.interrupt({"question": "go on?"})
    return [answer.action, answer.value]


@workflow(name="http_echo")
async def echo(ctx: Context) -> Any:
    return await ctx.wait_for_signal("go")


@workflow(name="http_fails")
async def fails(ctx: Context) -> None:
    raise ValueError("broken")


@workflow(name="http_counts")
async def counts(ctx: Context, left: int = 3, steps: int = 2) -> int:
    """A chain of runs: each takes some steps, then continues as new, down to the last."""
    for number in range(steps):
        await ctx.step(_pay, number)
    if left > 1:
        await ctx.continue_as_new({"left": left - 1, "steps": steps})
    return left


@workflow(name="http steps/a b%é", version="2")
async def steps(ctx: Context, steps: int = 5, seconds: float = 0.0, hold_at: int | None = None) -> int:
    """At hold_at it executes on and on, never parked, until the update "go"."""
    held = True

    def go() -> None:
        nonlocal held
        held = False

    ctx.on_update("go", go)
    for number in range(steps):
        while number == hold_at and held:
            await ctx.sleep(0.1)
        await ctx.step(_pay, number)
        await ctx.emit({"done": number})
        if seconds:
            await ctx.sleep(seconds)
    return steps


@workflow(name="http_digest", trigger=Collect(key="user_id", max_events=2, window_seconds=600))
async def digest(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> int:
    return count


@workflow(name="http_gated", concurrency=Limit(key="account", max=2))
async def gated(ctx: Context, account: str) -> None:
    """Executes until it is cancelled: a run that is parked would give its slot back."""
    while True:
        await ctx.sleep(0.1)


ALL = [charge, cart, asks, echo, fails, counts, steps, digest, gated]
