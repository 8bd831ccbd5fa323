"""Eight workers on one store, some of which die: an outside counter sees who executes at once."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pyrula.workflows import (
    Context,
    DurableInvocationCancelled,
    DurableInvocationError,
    Every,
    Limit,
    Retry,
    RunNotFoundError,
    workflow,
)
from pyrula.workflows.stamps import LimitStamp
from pyrula.workflows.store.outlook import Outlook
from tests.conformance.worker.conftest import Workers
from tests.services.waiting import wait_until_async

WORKERS, KEYS, RUNS, MAX = 8, 3, 72, 2
KINDS = ("ends", "ends", "fails", "parks", "continues", "cancelled")


class Inside:
    """The outside counter. A body that is cut leaves, too."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def hold(self, key: str, seconds: float) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now[key] -= 1


inside = Inside()


@workflow(name="gates_limited", concurrency=Limit("key", max=MAX), retry=Retry(max_attempts=2, initial=0.05))
async def limited(ctx: Context, key: str, kind: str, left: int = 1) -> None:
    await ctx.step(inside.hold, key, 0.02)
    if kind == "fails" and ctx.run.attempt == 1:
        raise ConnectionError("once")
    if kind == "parks":
        await ctx.sleep(0.5)
    if kind == "continues" and left:
        await ctx.continue_as_new({"key": key, "kind": kind, "left": left - 1})
    # the others may take their time to come
    await ctx.step(inside.hold, key, 1 if kind == "stays" else 0.05)


async def ended(handle: Any) -> None:
    with suppress(DurableInvocationCancelled, DurableInvocationError):
        await handle.result(timeout=90)


async def test_no_more_than_max_at_once_whoever_dies(workers: Workers) -> None:
    inside.now.clear()
    inside.most.clear()
    dice = random.Random(5)
    present = [workers.start(limited, lease_seconds=4, max_concurrency=20) for _ in range(WORKERS)]
    client = workers.client()
    handles = []
    for number in range(RUNS):
        params = {"key": f"k{number % KEYS}", "kind": KINDS[number % len(KINDS)]}
        handles.append(await client.submit(limited, params, owner=f"o{number % 2}"))
    for _ in range(4):
        await asyncio.sleep(0.2)
        await workers.kill(present.pop(dice.randrange(len(present))))
        present.append(workers.start(limited, lease_seconds=4, max_concurrency=20))
        for handle in dice.sample(handles[5 :: len(KINDS)], 3):
            await handle.cancel(timeout=0)
    await asyncio.gather(*map(ended, handles))
    assert inside.most == {f"k{number}": MAX for number in range(KEYS)}
    assert not +inside.now
    last = [await client.submit(limited, {"key": "k0", "kind": "stays"}) for _ in range(4)]
    inside.most.clear()
    await asyncio.gather(*map(ended, last))
    assert inside.most["k0"] == MAX


async def test_children_have_gates(workers: Workers) -> None:
    inside.now.clear()
    inside.most.clear()

    @workflow(name="gates_parent")
    async def parent(ctx: Context) -> None:
        children = [await ctx.start_child(limited, {"key": "child", "kind": "stays"}) for _ in range(5)]
        for child in children:
            await child.result()

    for _ in range(2):
        workers.start(parent, limited)
    client = workers.client()
    await (await client.submit(parent)).result(timeout=180)
    assert inside.most["child"] == MAX


async def test_signal_with_start_of_a_gated_run_starts_it_once(workers: Workers) -> None:
    @workflow(name="gates_cart", concurrency=Limit("shop", max=1))
    async def cart(ctx: Context, shop: str) -> list[Any]:
        return [await ctx.wait_for_signal("add"), await ctx.wait_for_signal("add")]

    workers.start(cart)
    client = workers.client()
    runs = await asyncio.gather(
        *(
            client.signal_with_start(cart, {"shop": f"s{number}"}, "add", number, idempotency_key="cart-1")
            for number in range(2)
        )
    )
    assert runs[0] == runs[1]
    assert sorted(await runs[0].result(timeout=180)) == [0, 1]


@workflow(name="gates_slow", concurrency=Limit("key", max=MAX))
async def slow(ctx: Context, key: str) -> None:
    await inside.hold(key, 1)


async def test_a_cold_start_on_a_backlog(workers: Workers) -> None:
    """Exact from the first claim on, and no key slows another."""
    inside.now.clear()
    inside.most.clear()
    client = workers.client()
    params = [{"key": f"cold{number % 20}"} for number in range(120)]
    handles = await asyncio.gather(*(client.submit(slow, each) for each in params))
    for _ in range(WORKERS):
        workers.start(slow, max_concurrency=10)
    await asyncio.gather(*map(ended, handles))
    assert inside.most == {f"cold{number}": MAX for number in range(20)}


async def test_a_schedules_runs_are_stamped(workers: Workers) -> None:
    client = workers.client()
    await client.schedules.create(
        "gates", limited, {"key": "timed", "kind": "ends"}, trigger=Every(timedelta(seconds=1))
    )
    workers.start(limited)

    async def fired() -> Outlook | None:
        (schedule,) = await client.schedules.list()
        # it is noted before it is submitted
        with suppress(RunNotFoundError):
            return None if schedule.last_run is None else await client.store.outlook(schedule.last_run)
        return None

    outlook = await wait_until_async(fired, description="the schedule to fire")
    assert outlook.limit == LimitStamp("key", "timed", MAX)
    await client.schedules.delete("gates")
