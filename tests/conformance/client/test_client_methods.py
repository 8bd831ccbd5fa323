"""Each row of the tables of methods, by its name: of the handle, then of the client with name and run id in front."""

import asyncio

import pytest

from pyrula.workflows import RunHandle, RunStatus, TransitionRefused, WorkflowClient
from pyrula.workflows.store.messages import Interrupt, Wait
from pyrula.workflows.store.payloads import (
    arguments_of_update,
    encode_answer,
    read_query,
    read_resume,
)
from tests.conformance.client.holder import Holder
from tests.conformance.client.workflows import Receipt, cart, pay


async def test_submit_queues_a_run_and_returns_its_handle(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_pay", {"cents": 5}, owner="t1", metadata={"from": "web"})
    assert isinstance(run, RunHandle)
    assert await run.status() == "queued"
    claimed = (await holder.take()).claimed
    assert (claimed.lease.run_id, claimed.name, claimed.version) == (str(run), "client_pay", "1")
    assert (claimed.params, claimed.owner, claimed.metadata) == (b'{"cents":5}', "t1", b'{"from":"web"}')


async def test_submit_with_an_idempotency_key_returns_the_first_run_on_a_repeat(
    client: WorkflowClient, holder: Holder, caplog: pytest.LogCaptureFixture
) -> None:
    runs = await asyncio.gather(*(client.submit("client_pay", {"cents": 5}, idempotency_key="o-7") for _ in range(100)))
    assert len(set(runs)) == 1
    assert caplog.messages == []
    held = await holder.take()
    await held.complete({"id": "r", "cents": 5})
    again = await client.submit("client_pay", {"cents": 6}, idempotency_key="o-7")
    assert again == runs[0]
    assert await again.result(timeout=180) == Receipt(id="r", cents=5)
    assert len(caplog.messages) == 1
    assert str(again) in caplog.messages[0]
    assert await client.submit("client_cart", idempotency_key="o-7") != again


async def test_handle_is_a_handle_to_an_existing_run(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_pay", {"cents": 5})
    rebuilt = client.handle("client_pay", str(run))
    assert rebuilt == run
    assert await rebuilt is rebuilt
    assert await rebuilt.status() == "queued"
    assert await client.handle(pay, run).status() == "queued"


async def test_signal_wakes_wait_for_signal(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await (await holder.take()).park(Wait("signal", "checkout"))
    assert await run.status() == "signal_waiting"
    await run.signal("checkout", {"coupon": "X"}, signal_id="s-1")
    await run.signal("checkout", {"coupon": "Y"}, signal_id="s-1")
    await client.signal("client_cart", run, "checkout")
    held = await holder.take()
    first, second = held.claimed.messages
    assert (first.message.kind, first.message.name, first.message.payload) == ("signal", "checkout", b'{"coupon":"X"}')
    assert second.message.payload == b"null"


async def test_signal_is_kept_from_submit_on(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await run.signal("checkout", Receipt(id="r", cents=1))
    (unread,) = (await holder.take()).claimed.messages
    assert unread.message.payload == b'{"id":"r","cents":1}'


async def test_query_reads_state(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await holder.take()
    for ask in (run.query("items", 1, "a", since=2), client.query("client_cart", run, "items", 1, "a", since=2)):
        task = asyncio.create_task(ask)
        query = await holder.question()
        assert (query.run_id, query.name) == (str(run), "items")
        assert read_query(query.payload) == ((1, "a"), {"since": 2})
        await holder.store.answer(query, encode_answer(["A-1"], "the answer"))
        assert await task == ["A-1"]


async def test_query_takes_any_keyword(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    task = asyncio.create_task(run.query("items", query=1, name=2, run_id=3, self=4))
    query = await holder.question()
    assert read_query(query.payload) == ((), {"query": 1, "name": 2, "run_id": 3, "self": 4})
    await holder.store.answer(query, encode_answer(None, "the answer"))
    assert await task is None


async def test_update_applies_and_returns_the_value(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.update("add", {"sku": "A-1"}, update_id="u-1"))
    message = await held.apply("ok", 1)
    assert (message.name, message.id) == ("add", "u-1")
    assert arguments_of_update(message.payload) == ((), {"sku": "A-1"})
    assert await task == 1
    assert await client.update("client_cart", run, "add", {"sku": "A-1"}, update_id="u-1") == 1
    task = asyncio.create_task(client.update("client_cart", run, "clear"))
    assert arguments_of_update((await held.apply("ok", None)).payload) == ((), {})
    assert await task is None


async def test_update_gives_its_recorded_value_after_the_runs_end(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.update("add", "A-1", update_id="u-1"))
    await held.apply("ok", 41)
    await held.complete([])
    assert await task == 41
    assert await run.update("add", "A-1", update_id="u-1") == 41


async def test_resume_answers_the_interrupt_that_the_run_waits_on(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await (await holder.take()).interrupt(Interrupt("i-1", b'"ok?"'))
    assert await run.status() == "interrupt_waiting"
    await run.resume("approve", {"by": "ada"})
    held = await holder.take()
    (unread,) = held.claimed.messages
    assert unread.message.name == "i-1"
    answer = read_resume(unread.message.payload)
    assert (answer.action, answer.value) == ("approve", {"by": "ada"})


async def test_resume_with_a_wait_id_answers_that_one(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"), Interrupt("i-2", b"2"))
    await client.resume("client_cart", run, "deny", wait_id="i-2")
    held = await holder.take()
    assert [unread.message.name for unread in held.claimed.messages] == ["i-2"]
    assert [each.wait_id for each in (await run.detail()).interrupts] == ["i-1"]


async def test_cancel_of_a_run_that_never_started_ends_it(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    assert await run.cancel() == "cancelled"
    assert await client.cancel("client_cart", run) == "cancelled"


async def test_cancel_gives_the_status_it_led_to(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.cancel())
    await held.read("cancel")
    await held.end_cancelled()
    assert await task == RunStatus.CANCELLED


async def test_cancel_that_loses_against_a_finish_says_so(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.cancel())
    await held.next_message()
    await held.complete([])
    assert await task == await run.status() == "completed"


async def test_cancel_of_a_body_that_is_still_at_it_gives_the_present_status(
    client: WorkflowClient, holder: Holder
) -> None:
    run = await client.submit("client_cart")
    await holder.take()
    assert await run.cancel(timeout=0) == "running"
    assert await run.cancel(timeout=0.01) == "running"
    assert (await run.detail()).cancel_requested


async def test_status_is_the_present_one(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    seen = [await run.status()]
    held = await holder.take()
    seen.append(await client.status("client_cart", run))
    await held.complete([])
    seen.append(await run.status())
    assert seen == ["queued", "running", "completed"]
    assert all(isinstance(status, RunStatus) for status in seen)


async def test_result_waits_for_the_run_to_finish(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_pay", {"cents": 5})
    held = await holder.take()
    one, two = asyncio.create_task(run.result(timeout=180)), asyncio.create_task(client.result(pay, str(run)))
    await asyncio.sleep(0)
    await held.complete({"id": "r", "cents": 5})
    assert await one == await two == await client.result("client_pay", run) == Receipt(id="r", cents=5)


async def test_result_of_a_workflow_that_is_not_imported_is_plain(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("elsewhere", {"any": 1})
    held = await holder.take()
    await held.complete({"id": "r", "cents": 5})
    assert await run.result() == {"id": "r", "cents": 5}


async def test_events_are_told_oldest_first(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    await run.cancel()
    events = await run.events()
    assert [event.type for event in events] == ["submitted", "cancelled"]
    assert events[0].data["name"] == "client_cart"
    assert events[0].at <= events[1].at
    assert await client.events("client_cart", run) == events


async def test_pause_and_unpause(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    assert await run.pause("deploying") == "paused"
    error = (await run.detail()).error
    assert error is not None
    assert error.message == "deploying"
    assert await run.unpause() == "queued"
    held = await holder.take()
    task = asyncio.create_task(client.pause("client_cart", run))
    unread = await held.next_message()
    await held.pause(unread.message.payload)
    assert await task == "paused"
    assert await client.unpause("client_cart", run) == "queued"
    with pytest.raises(TransitionRefused):
        await run.unpause()


async def test_retry_of_a_failed_or_cancelled_run(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    with pytest.raises(TransitionRefused):
        await run.retry()
    await (await holder.take()).fail(ValueError("no"))
    assert await run.retry() == "queued"
    held = await holder.take()
    assert (held.claimed.retried, held.claimed.attempt) == (True, 2)
    await held.end_cancelled()
    assert await client.retry("client_cart", run) == "queued"


async def test_signal_with_start_submits_if_absent_and_delivers_in_one_call(
    client: WorkflowClient, holder: Holder
) -> None:
    run = await client.signal_with_start("client_cart", {"size": 1}, "add", "A-1", idempotency_key="k")
    again = await client.signal_with_start(cart, {"size": 1}, "add", "A-2", idempotency_key="k", signal_id="s2")
    await client.signal_with_start(cart, {"size": 1}, "add", "A-2", idempotency_key="k", signal_id="s2")
    assert again == run
    held = await holder.take()
    assert [unread.message.payload for unread in held.claimed.messages] == [b'"A-1"', b'"A-2"']


async def test_history_and_detail_tell_all(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart", {"size": 2}, owner="t1", metadata={"a": 1})
    held = await holder.take()
    await held.write(rows=[(0, b"[1]")])
    history = await run.history()
    assert (history.run_id, history.name, history.version, history.params) == (
        str(run),
        "client_cart",
        "1",
        b'{"size":2}',
    )
    assert list(history.rows) == [(0, b"[1]")]
    await run.signal("later", 7)
    detail = await client.detail("client_cart", run)
    assert (detail.params, detail.owner, detail.metadata, detail.worker) == ({"size": 2}, "t1", {"a": 1}, "w")
    assert [(each.kind, each.name, each.payload) for each in detail.unread] == [("signal", "later", 7)]
    assert not detail.finished
    assert detail.created_at.tzinfo is not None


async def test_every_method_follows_a_chain_to_its_live_run(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart", {"size": 1})
    held = await holder.take()
    waiting = asyncio.create_task(run.result(timeout=180))
    updating = asyncio.create_task(run.update("add", "A-1", update_id="u-1"))
    applied = await held.apply("ok", 1)
    assert applied.id == "u-1"
    link = await held.continue_as_new({"size": 2})
    assert await updating == 1
    assert await run.status() == "running"
    assert await run.update("add", "A-1", update_id="u-1") == 1
    await run.signal("go")
    assert (await link.read("signal")).name == "go"
    task = asyncio.create_task(run.query("items"))
    query = await holder.question()
    assert query.run_id == link.lease.run_id
    await holder.store.answer(query, encode_answer([], "the answer"))
    assert await task == []
    assert (await run.detail()).params == (await client.detail("client_cart", link.lease.run_id)).params == {"size": 2}
    assert (await run.history()).params == b'{"size":2}'
    assert (await run.history(link=1)).params == b'{"size":1}'
    assert (await run.events())[0].type == "continued"
    assert not waiting.done()
    await link.complete(["A-1"])
    assert await waiting == ["A-1"]


async def test_cancel_and_the_final_status_agree_however_they_race(client: WorkflowClient, holder: Holder) -> None:
    async def race(number: int) -> None:
        run = await client.submit("client_cart")
        held = await holder.take()
        both = [held.complete([]), run.cancel(timeout=180)]
        if number % 2:
            both.reverse()
        answers = await asyncio.gather(*both)
        assert [answer for answer in answers if answer is not None] == [await run.status()] == ["completed"]

    for number in range(50):
        await race(number)


async def test_cancel_of_a_queued_run_and_its_first_claim_agree(client: WorkflowClient, holder: Holder) -> None:
    for _ in range(50):
        run = await client.submit("client_cart")
        status, claims = await asyncio.gather(run.cancel(timeout=0), holder.store.claim("w", [("client_cart", "1")], 1))
        assert status == await run.status()
        assert len(claims.runs) == (0 if status == "cancelled" else 1)
