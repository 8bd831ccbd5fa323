"""What the client's tables promise, row by row, with a worker that executes the runs."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import (
    BackpressureRejected,
    Context,
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    EgressEvent,
    InterruptAnswer,
    QueryError,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
    workflow,
)
from tests.conformance.worker.conftest import Workers
from tests.services.waiting import wait_until_async


@workflow(name="worker_cart")
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


@workflow(name="worker_busy")
async def busy(ctx: Context, ticks: int = 0) -> int:
    seen = 0
    ctx.on_query("seen", lambda: seen)
    ctx.on_update("tick", lambda: ticks)
    while seen < ticks:
        await ctx.sleep(0.02)
        seen += 1
    return seen


@workflow(name="worker_asks")
async def asks(ctx: Context) -> list[Any]:
    answer = await ctx.interrupt({"question": "go on?"})
    return [answer.action, answer.value]


@workflow(name="worker_echo")
async def echo(ctx: Context) -> Any:
    return await ctx.wait_for_signal("go")


@workflow(name="worker_fails")
async def fails(ctx: Context) -> None:
    raise ValueError("broken")


@workflow(name="worker_loop")
async def loop(ctx: Context, rounds: int = 0, heard: int = 0) -> int:
    ctx.on_query("rounds", lambda: rounds)
    while heard < 3 * (rounds + 1):
        await ctx.wait_for_signal("next")
        heard += 1
    if rounds < 2:
        await ctx.continue_as_new({"rounds": rounds + 1, "heard": heard})
    return heard


@workflow(name="worker_parent")
async def parent(ctx: Context, cents: int) -> int:
    return await ctx.run_child(child, {"cents": cents}) + 1


@workflow(name="worker_child")
async def child(ctx: Context, cents: int) -> int:
    await ctx.sleep(0.05)
    if cents < 0:
        raise ValueError("no such amount")
    return cents * 2


# more than any test waits for
ENDLESS = 10**9

ALL = (cart, busy, asks, echo, fails, loop, parent, child)


async def waiting(run: Any, status: str = "signal_waiting") -> None:
    async def there() -> bool:
        return bool(await run.status() == status)

    await wait_until_async(there, description=f"the run to be {status}")


async def test_submit_queues_a_run_and_returns_its_handle(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit("worker_echo")
    again = workers.client().handle("worker_echo", run.run_id)
    await again.signal("go", {"to": [1, None]})
    assert await run.result(timeout=180) == {"to": [1, None]}


async def test_signal_wakes_wait_for_signal(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(echo)
    await waiting(run)
    await run.signal("go", "now", signal_id="s1")
    await run.signal("go", "twice", signal_id="s1")
    assert await run.result(timeout=180) == "now"


async def test_signal_that_comes_before_the_body_waits_is_kept(workers: Workers) -> None:
    client = workers.client()
    run = await client.submit(echo)
    await run.signal("other", 1)
    await run.signal("go", "early")
    workers.start(*ALL)
    assert await run.result(timeout=180) == "early"
    assert [message.name for message in (await run.detail()).unread] == ["other"]


async def test_query_reads_state_and_writes_nothing(workers: Workers) -> None:
    worker = workers.start(*ALL, park_after=60, drain_timeout=0)
    run = await worker.client.submit(busy, {"ticks": ENDLESS})
    await wait_until_async(lambda: worker.held, description="the run to be held")
    first = await run.query("seen")
    assert await run.query("seen") >= first
    assert worker.held == (run.run_id,)
    with_queries = {entry for _, entry in (await run.history()).rows if b"seen" in entry}
    assert not with_queries


async def test_query_of_a_parked_and_of_a_finished_run_replays_it(workers: Workers) -> None:
    worker = workers.start(*ALL, park_after=0)
    run = await worker.client.submit(cart)
    await run.update("add", {"sku": "A-1"})
    await run.update("add", {"sku": "A-2"})
    await waiting(run)
    assert await run.query("items", last=1) == ["A-2"]
    await run.signal("checkout")
    await run.result(timeout=180)
    assert await run.query("items") == ["A-1", "A-2"]


async def test_a_full_worker_still_answers_queries(workers: Workers) -> None:
    worker = workers.start(*ALL, max_concurrency=1, park_after=60, drain_timeout=0)
    other = await worker.client.submit(cart)
    await other.update("add", {"sku": "A-1"})
    await worker.client.submit(busy, {"ticks": ENDLESS})
    await wait_until_async(lambda: worker.held and other.run_id not in worker.held, description="a full worker")
    assert await other.query("items") == ["A-1"]


async def test_update_applies_and_returns_the_value(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart)
    assert await run.update("add", {"sku": "A-1"}) == 1
    assert await run.update("add", "A-2") == 2
    await run.signal("checkout")
    assert await run.result(timeout=180) == ["A-1", "A-2"]


async def test_update_timeout_then_the_same_update_id_applies_once(workers: Workers) -> None:
    client = workers.client()
    run = await client.submit(cart)
    with pytest.raises(UpdateTimeout) as caught:
        await run.update("add", {"sku": "A-1"}, timeout=0.05)
    workers.start(*ALL)
    update_id = caught.value.update_id
    assert await run.update("add", {"sku": "A-1"}, update_id=update_id) == 1
    await run.signal("checkout")
    assert await run.result(timeout=180) == ["A-1"]
    assert await run.update("add", {"sku": "A-1"}, update_id=update_id) == 1


async def test_update_rejected_and_update_error(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart, {"size": 0})
    with pytest.raises(UpdateRejected, match="the cart is full"):
        await run.update("add", {"sku": "A-1"}, update_id="u1")
    with pytest.raises(UpdateRejected, match="knows no update"):
        await run.update("nonsense")
    with pytest.raises(UpdateError, match="boom"):
        await run.update("explode", update_id="u2")
    with pytest.raises(UpdateError, match="boom"):
        await run.update("explode", update_id="u2")


async def test_query_error(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart)
    with pytest.raises(QueryError, match=r"knows no query 'nonsense'.*items"):
        await run.query("nonsense")
    with pytest.raises(QueryError, match="boom"):
        await run.query("broken")


async def test_resume_answers_the_interrupt(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(asks)
    await waiting(run, "interrupt_waiting")
    with pytest.raises(RunNotWaitingError):
        await run.resume("approve", wait_id="another")
    await run.resume("approve", {"by": "ada"})
    assert await run.result(timeout=180) == ["approve", {"by": "ada"}]
    assert InterruptAnswer("approve").value is None


async def test_result_answers_interrupts(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(asks)
    result = await run.result(timeout=180, on_interrupt=lambda shown: ("ok", shown.payload["question"]))
    assert result == ["ok", "go on?"]


async def test_cancel_stops_the_run(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart)
    await waiting(run)
    assert await run.cancel() == "cancelled"
    assert await run.cancel() == "cancelled"
    with pytest.raises(DurableInvocationCancelled):
        await run.result(timeout=180)
    with pytest.raises(RunFinishedError):
        await run.signal("checkout")


async def test_retry_of_a_cancelled_run_goes_on_without_the_cancellation(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart)
    await run.update("add", {"sku": "A-1"})
    assert await run.cancel() == "cancelled"
    await run.retry()
    await waiting(run)
    await run.signal("checkout")
    assert await run.result(timeout=180) == ["A-1"]


async def test_retry_of_a_cancelled_run_opens_its_interrupt_again(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(asks)
    await waiting(run, "interrupt_waiting")
    (before,) = (await run.detail()).interrupts
    assert await run.cancel() == "cancelled"
    assert (await run.detail()).interrupts == ()
    await run.retry()
    await waiting(run, "interrupt_waiting")
    (after,) = (await run.detail()).interrupts
    assert after == before
    await run.resume("yes", 5)
    assert await run.result(timeout=180) == ["yes", 5]


async def test_an_answered_interrupt_is_not_opened_again_by_a_replay(workers: Workers) -> None:
    quick = {"lease_seconds": 1, "heartbeat_interval": 0.1, "park_after": 0}
    first = workers.start(*ALL, **quick)
    client = workers.client()
    run = await client.submit(asks)
    await waiting(run, "interrupt_waiting")
    await workers.kill(first)
    await run.resume("yes")
    workers.start(*ALL, **quick)
    with pytest.raises(RunNotWaitingError):
        await run.resume("no")
    assert await run.result(timeout=180) == ["yes", None]
    assert (await run.detail()).unread == ()


async def test_pause_and_unpause(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart)
    await waiting(run)
    assert await run.pause("a look at it") == "paused"
    error = (await run.detail()).error
    assert error is not None
    assert error.message == "a look at it"
    await run.unpause()
    await run.signal("checkout")
    assert await run.result(timeout=180) == []


async def test_pause_of_a_run_that_is_held(workers: Workers) -> None:
    worker = workers.start(*ALL, park_after=60)
    run = await worker.client.submit(busy, {"ticks": ENDLESS})
    await wait_until_async(lambda: worker.held, description="the run to be held")
    assert await run.pause() == "paused"
    await wait_until_async(lambda: not worker.held, description="the place to be free")
    seen = await run.query("seen")
    await run.unpause()
    await wait_until_async(lambda: worker.held, description="the run to be held again")

    async def goes_on() -> bool:
        return await run.query("seen") > seen

    await wait_until_async(goes_on, description="the run to go on")


async def test_result_of_a_failed_and_of_an_unfinished_run(workers: Workers) -> None:
    worker = workers.start(*ALL)
    failed, unfinished = await worker.client.submit(fails), await worker.client.submit(echo)
    with pytest.raises(DurableInvocationError, match="ValueError: broken"):
        await failed.result(timeout=180)
    with pytest.raises(DurableInvocationTimeout):
        await unfinished.result(timeout=0.05)


async def test_run_not_found_error(workers: Workers) -> None:
    worker = workers.start(*ALL)
    with pytest.raises(RunNotFoundError):
        await worker.client.status("worker_cart", worker.store.new_run_id(name="worker_cart"))


async def test_events_tell_the_runs_history(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(cart)
    await run.update("add", {"sku": "A-1"})
    await run.signal("checkout")
    await run.result(timeout=180)
    types = [event.type for event in await run.events()]
    assert types[0] == "submitted"
    assert types[-1] == "completed"
    assert {"started", "step_completed", "update_applied", "signal_received"} <= set(types)


async def test_every_call_follows_a_chain_to_its_live_run_and_no_signal_is_lost(workers: Workers) -> None:
    worker = workers.start(*ALL)
    run = await worker.client.submit(loop)
    for number in range(9):
        await run.signal("next", signal_id=f"s{number}")
    assert await run.result(timeout=180) == 9
    assert await run.query("rounds") == 2


async def test_a_child_gives_its_result_to_its_parent(workers: Workers) -> None:
    worker = workers.start(*ALL, park_after=0)
    run = await worker.client.submit(parent, {"cents": 20})
    assert await run.result(timeout=180) == 41


async def test_a_childs_failure_is_its_parents(workers: Workers) -> None:
    worker = workers.start(*ALL, park_after=0)
    run = await worker.client.submit(parent, {"cents": -1})
    with pytest.raises(DurableInvocationError, match="no such amount"):
        await run.result(timeout=180)


async def test_backpressure_rejected_while_the_egress_is_behind(workers: Workers) -> None:
    class Slow:
        def __init__(self) -> None:
            self.open = asyncio.Event()
            self.types: list[str] = []

        async def send(self, events: Any) -> None:
            await self.open.wait()
            assert all(isinstance(event, EgressEvent) for event in events)
            self.types += [event.type for event in events]

    egress = Slow()
    worker = workers.start(*ALL, egress=egress, egress_buffer=4)
    first, _ = await worker.client.submit(fails), await worker.client.submit(fails)
    with pytest.raises(DurableInvocationError):
        await first.result(timeout=180)

    async def refused() -> bool:
        try:
            await worker.client.submit(fails)
        except BackpressureRejected:
            return True
        return False

    await wait_until_async(refused, description="the egress to be behind")
    await workers.client().submit(fails)
    egress.open.set()
    await wait_until_async(lambda: "failed" in egress.types, description="the events to be sent")
    await worker.client.submit(fails)
