"""Waiting: wake-ups, polling, interrupts answered by the way."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import (
    DurableInvocationTimeout,
    InterruptAnswer,
    MemoryStore,
    OpenInterrupt,
    RunFinishedError,
    WorkflowClient,
)
from pyrula.workflows.store.messages import Interrupt, Unread
from pyrula.workflows.store.payloads import read_resume
from tests.conformance.client.holder import Holder


def answers(messages: tuple[Unread, ...]) -> dict[str, tuple[str, Any]]:
    return {unread.message.name: tuple(read_resume(unread.message.payload)) for unread in messages}


@pytest.mark.parametrize("given", [("approve", 5), InterruptAnswer("approve", 5)])
async def test_on_interrupt_is_called_with_the_interrupt_and_answers_it(
    client: WorkflowClient, holder: Holder, given: Any
) -> None:
    run = await client.submit("client_cart")
    shown = []

    def on_interrupt(interrupt: OpenInterrupt) -> Any:
        shown.append((interrupt.run_id, interrupt.wait_id, interrupt.payload))
        return given

    waiting = asyncio.create_task(run.result(timeout=180, on_interrupt=on_interrupt))
    await (await holder.take()).interrupt(Interrupt("i-1", b'{"cents":5}'))
    held = await holder.take()
    assert answers(held.claimed.messages) == {"i-1": ("approve", 5)}
    await held.complete(["x"])
    assert await waiting == ["x"]
    assert shown == [(str(run), "i-1", {"cents": 5})]


async def test_on_interrupt_may_be_async_and_answer_several_at_a_time(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    both = asyncio.Barrier(2)

    async def on_interrupt(interrupt: OpenInterrupt) -> str | None:
        await both.wait()
        if interrupt.wait_id == "i-1":
            return "approve"
        await interrupt.resume("deny", interrupt.payload)
        return None

    waiting = asyncio.create_task(run.result(timeout=180, on_interrupt=on_interrupt))
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"), Interrupt("i-2", b"2"))
    held = await holder.take()
    came = (await held.next_message(), await held.next_message())
    assert answers(came) == {"i-1": ("approve", None), "i-2": ("deny", 2)}
    await held.complete([])
    assert await waiting == []


async def test_an_interrupt_left_open_is_shown_once_and_somebody_else_may_answer(
    client: WorkflowClient, holder: Holder
) -> None:
    run = await client.submit("client_cart")
    shown = asyncio.Queue[str]()
    waiting = asyncio.create_task(run.result(timeout=180, on_interrupt=lambda each: shown.put_nowait(each.wait_id)))
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"))
    assert await shown.get() == "i-1"
    await run.resume("approve")
    held = await holder.take()
    await held.interrupt(Interrupt("i-2", b"1"))
    assert await shown.get() == "i-2"
    await run.resume("approve")
    await (await holder.take()).complete([])
    assert await waiting == []
    assert shown.empty()


async def test_an_answer_that_comes_too_late_is_dropped(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    asked, go = asyncio.Event(), asyncio.Event()

    async def on_interrupt(interrupt: OpenInterrupt) -> str:
        asked.set()
        await go.wait()
        return "late"

    waiting = asyncio.create_task(run.result(timeout=180, on_interrupt=on_interrupt))
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"))
    await asked.wait()
    await run.resume("first")
    go.set()
    held = await holder.take()
    assert answers(held.claimed.messages) == {"i-1": ("first", None)}
    await held.complete([])
    assert await waiting == []


async def test_what_on_interrupt_raises_result_raises(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    waiting = asyncio.create_task(run.result(timeout=180, on_interrupt=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"))
    with pytest.raises(ZeroDivisionError):
        await waiting
    assert await run.status() == "interrupt_waiting"
    with pytest.raises(TypeError, match="on_interrupt must give"):
        await run.result(timeout=180, on_interrupt=lambda _: 5)  # type: ignore[arg-type, return-value]


async def test_on_interrupt_is_stopped_when_the_time_is_over_or_the_run_ends(
    client: WorkflowClient, holder: Holder
) -> None:
    run = await client.submit("client_cart")
    await (await holder.take()).interrupt(Interrupt("i-1", b"1"))
    stopped: list[str] = []
    asked = asyncio.Event()

    async def on_interrupt(interrupt: OpenInterrupt) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(interrupt.wait_id)

    with pytest.raises(DurableInvocationTimeout):
        await run.result(timeout=0.05, on_interrupt=on_interrupt)
    assert stopped == ["i-1"]
    asked.clear()
    waiting = asyncio.create_task(run.result(timeout=180, on_interrupt=on_interrupt))
    await asked.wait()
    await run.resume("approve")
    await (await holder.take()).complete([])
    assert await waiting == []
    assert stopped == ["i-1", "i-1"]


async def test_a_wake_up_is_enough(client: WorkflowClient, holder: Holder) -> None:
    patient = WorkflowClient(client.store, poll_interval=3600)
    run = await patient.submit("client_cart")
    held = await holder.take()
    one, two = asyncio.create_task(run.result(timeout=180)), asyncio.create_task(run.update("add", timeout=180))
    await held.apply("ok", 1)
    assert await two == 1
    await held.complete([])
    assert await one == []


async def test_polling_is_enough(client: WorkflowClient, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def close(self) -> None: ...

    monkeypatch.setattr(client.store, "on_change", lambda run_id, callback: Silent())
    runs = [await client.submit("client_cart") for _ in range(20)]
    waiting = [asyncio.create_task(run.result(timeout=180)) for run in runs]
    for _ in runs:
        held = await holder.take()
        await held.complete([held.lease.run_id])
    assert await asyncio.gather(*waiting) == [[str(run)] for run in runs]


async def test_a_wait_that_is_given_up_leaves_nothing(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    waiting = asyncio.create_task(run.result())
    for _ in range(20):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    polling: Any = client._waits
    assert (polling._waiting, polling._ticker) == (set(), None)
    if isinstance(client.store, MemoryStore):
        assert client.store._board.on_change == {}


async def test_a_client_may_be_used_again_after_it_was_closed(client: WorkflowClient, holder: Holder) -> None:
    async with client:
        run = await client.submit("client_cart")
    assert await run.status() == "queued"


async def test_a_waiting_update_of_a_run_that_is_cancelled_meanwhile(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart")
    held = await holder.take()
    task = asyncio.create_task(run.update("add", timeout=180))
    await held.next_message()
    await held.end_cancelled()
    with pytest.raises(RunFinishedError, match="cancelled"):
        await task
