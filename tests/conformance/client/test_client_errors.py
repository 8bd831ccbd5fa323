"""Each row of the table of errors, by its name."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pyrula.workflows import (
    BackpressureRejected,
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    QueryError,
    QueryTimeout,
    RunFinishedError,
    RunHandle,
    RunNotFoundError,
    RunNotWaitingError,
    SerializationError,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
    WorkflowClient,
)
from pyrula.workflows.store.messages import Interrupt, Wait
from pyrula.workflows.store.payloads import Failure, encode_refusal, failure_of
from tests.conformance.client.holder import Holder
from tests.conformance.client.workflows import cart

CALLS: dict[str, Callable[[RunHandle[object]], Awaitable[object]]] = {
    "signal": lambda run: run.signal("go"),
    "query": lambda run: run.query("items"),
    "update": lambda run: run.update("add"),
    "resume": lambda run: run.resume("approve"),
    "cancel": lambda run: run.cancel(),
    "pause": lambda run: run.pause(),
    "unpause": lambda run: run.unpause(),
    "retry": lambda run: run.retry(),
    "status": lambda run: run.status(),
    "result": lambda run: run.result(timeout=1),
    "result_with_interrupts": lambda run: run.result(timeout=1, on_interrupt=lambda _: None),
    "events": lambda run: run.events(),
    "history": lambda run: run.history(),
    "detail": lambda run: run.detail(),
}


@pytest.mark.parametrize("run_id", ["01-01JDZ8Z5Y3Q4R5S6T7V8W9XABC", "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC", "order-7", ""])
async def test_run_not_found_error_for_every_method(client: WorkflowClient, run_id: str) -> None:
    for name, call in CALLS.items():
        with pytest.raises(RunNotFoundError) as caught:
            await call(client.handle("client_cart", run_id))
        assert caught.value.run_id == run_id, name


async def test_run_not_found_error_for_the_run_of_another_workflow(client: WorkflowClient) -> None:
    """A mixed-up id: nothing becomes of the run that it is the id of."""
    run = await client.submit("client_cart")
    stranger = WorkflowClient(client.store)
    for named in (client, stranger):
        for call in (*CALLS.values(), lambda run: run.explain()):
            with pytest.raises(RunNotFoundError, match="it is of workflow 'client_cart', not of 'client_pay'"):
                await call(named.handle("client_pay", run.run_id))
    assert await stranger.status("client_cart", run.run_id) == "queued"
    assert [event.type for event in await run.events()] == ["submitted"]


async def test_run_finished_error_for_a_signal_or_an_update(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart", idempotency_key="k")
    await (await holder.take()).complete([])
    for call in (run.signal("go"), run.update("add"), client.signal_with_start(cart, {}, "go", idempotency_key="k")):
        with pytest.raises(RunFinishedError) as caught:
            await call
        assert (caught.value.run_id, caught.value.status) == (str(run), "completed")


async def test_run_finished_error_for_an_update_that_the_run_left_unread(
    client: WorkflowClient, holder: Holder
) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.update("add"))
    await held.next_message()
    await held.complete([])
    with pytest.raises(RunFinishedError):
        await task


async def test_run_not_waiting_error_for_a_resume_of_what_is_not_open(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    with pytest.raises(RunNotWaitingError):
        await run.resume("approve")
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"), Interrupt("i-2", b"2"))
    with pytest.raises(RunNotWaitingError, match=r"i-1.*i-2"):
        await run.resume("approve")
    with pytest.raises(RunNotWaitingError):
        await run.resume("approve", wait_id="i-3")
    await run.resume("approve", wait_id="i-1")
    with pytest.raises(RunNotWaitingError):
        await run.resume("approve", wait_id="i-1")
    await (await holder.take()).complete([])
    with pytest.raises(RunNotWaitingError):
        await run.resume("approve", wait_id="i-2")


async def test_of_concurrent_resumes_one_succeeds(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"))
    answers = await asyncio.gather(*(run.resume("pick", number) for number in range(10)), return_exceptions=True)
    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, RunNotWaitingError) for answer in answers) == 9
    (unread,) = (await holder.take()).claimed.messages
    assert f'"value":{answers.index(None)}'.encode() in unread.message.payload


async def test_query_error_for_an_unknown_query(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await holder.take()
    task = asyncio.create_task(run.query("itmes"))
    unknown = Failure("", "the run knows no query 'itmes' (it has: items)")
    await holder.store.answer(await holder.question(), encode_refusal(unknown))
    with pytest.raises(QueryError, match="no query 'itmes'") as caught:
        await task
    assert (caught.value.run_id, caught.value.query, caught.value.error_type) == (str(run), "itmes", "")


async def test_query_error_for_a_handler_that_raised(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await holder.take()
    task = asyncio.create_task(run.query("items"))
    await holder.store.answer(await holder.question(), encode_refusal(failure_of(KeyError("sku"))))
    with pytest.raises(QueryError, match="KeyError: 'sku'"):
        await task


async def test_query_error_when_no_worker_is_there(
    client: WorkflowClient, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrula.workflows.client.calls._ANSWER_GRACE", 0.2)
    hasty = WorkflowClient(client.store, query_timeout=0.05)
    run = await hasty.submit("client_cart")
    # as long as was waited, and not only what the option says
    with pytest.raises(QueryTimeout, match=r"no worker of this workflow answered within 0\.25 s \(query_timeout=0\.05"):
        await run.query("items")


async def test_update_rejected_when_the_validator_refused(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.update("add", {"sku": ""}, update_id="u-1"))
    await held.apply("rejected", ValueError("no sku"))
    with pytest.raises(UpdateRejected, match="rejected: ValueError: no sku") as caught:
        await task
    assert (caught.value.update, caught.value.update_id, caught.value.error_type) == ("add", "u-1", "ValueError")
    # and the same id may be tried again
    task = asyncio.create_task(run.update("add", {"sku": "A-1"}, update_id="u-1"))
    await held.apply("ok", 1)
    assert await task == 1


async def test_update_error_when_the_handler_raised(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.update("add", update_id="u-1"))
    await held.apply("error", LookupError("sold out"))
    for call in (task, run.update("add", update_id="u-1")):
        with pytest.raises(UpdateError, match="failed: LookupError: sold out"):
            await call


async def test_update_timeout_when_no_worker_applied_it_in_time(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    with pytest.raises(UpdateTimeout) as caught:
        await run.update("add", {"sku": "A-1"}, timeout=0.01)
    # it stays queued, and a retry with its id applies once
    held = await holder.take()
    assert len(held.claimed.messages) == 1
    task = asyncio.create_task(run.update("add", {"sku": "A-1"}, update_id=caught.value.update_id))
    await held.apply("ok", 1)
    assert await task == 1
    await held.park(Wait("signal", "checkout"))
    assert (await run.detail()).unread == ()


async def test_twenty_updates_with_one_id_are_one(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    tasks = [asyncio.create_task(run.update("add", update_id="u-1")) for _ in range(20)]
    await held.apply("ok", 1)
    assert await asyncio.gather(*tasks) == [1] * 20
    assert (await run.detail()).unread == ()


async def test_durable_invocation_error_for_the_result_of_a_failed_run(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await (await holder.take()).fail(ValueError("no funds"))
    with pytest.raises(DurableInvocationError, match="failed: ValueError: no funds") as caught:
        await run.result()
    error = caught.value
    assert (error.run_id, error.error_type, error.message) == (str(run), "ValueError", "no funds")
    assert "ValueError: no funds" in error.trace


async def test_durable_invocation_cancelled_for_the_result_of_a_cancelled_run(
    client: WorkflowClient, holder: Holder
) -> None:
    run = await client.submit("client_cart")
    waiting = asyncio.create_task(run.result(timeout=180))
    await run.cancel()
    with pytest.raises(DurableInvocationCancelled, match=str(run)):
        await waiting


@pytest.mark.parametrize("seconds", [0, 0.02])
async def test_durable_invocation_timeout_for_the_result_of_an_unfinished_run(
    client: WorkflowClient, holder: Holder, seconds: float
) -> None:
    run = await client.submit("client_cart")
    await holder.take()
    with pytest.raises(DurableInvocationTimeout, match="status running") as caught:
        await run.result(timeout=seconds)
    assert (caught.value.run_id, caught.value.seconds) == (str(run), seconds)


async def test_backpressure_rejected_queues_nothing(client: WorkflowClient, holder: Holder) -> None:
    def behind() -> None:
        raise BackpressureRejected("the egress is behind")

    rejecting = WorkflowClient(client.store, admit=behind)
    for call in (
        rejecting.submit("client_cart"),
        rejecting.signal_with_start("client_cart", {}, "go", idempotency_key="k"),
    ):
        with pytest.raises(BackpressureRejected):
            await call
    await holder.store.relay()
    assert (await holder.store.claim("w", [("client_cart", "1")], 1)).runs == ()


async def test_what_is_too_large_is_refused_before_it_is_sent(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    large = "x" * (1 << 20)
    for call in (
        client.submit("elsewhere", {"text": large}),
        run.signal("go", large),
        run.update("add", large),
        run.query("items", large),
    ):
        with pytest.raises(SerializationError, match="1,048,576"):
            await call
    await run.signal("go", large[:-2])
