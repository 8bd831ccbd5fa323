"""Checked by mypy --strict, never run: what a type checker sees through a client, and the wrong code it must refuse.

An `ignore` that is not needed is an error, so each says that the line is refused.
"""

from datetime import timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from pyrula.workflows import (
    Context,
    Event,
    InterruptAnswer,
    MemoryStore,
    OpenInterrupt,
    RunHandle,
    RunReport,
    RunStatus,
    ValkeyStore,
    WorkflowClient,
    workflow,
)


class Charge(BaseModel):
    amount_cents: int


class Receipt(BaseModel):
    id: str


@workflow(name="charge")
async def charge(ctx: Context, amount_cents: int) -> Receipt:
    return Receipt(id="r")


@workflow
async def silent(ctx: Context) -> None: ...


client = WorkflowClient(MemoryStore())
WorkflowClient(ValkeyStore())
WorkflowClient("valkey://localhost")  # type: ignore[arg-type]


async def _typed() -> None:
    run = await client.submit(charge, {"amount_cents": 500}, idempotency_key="order-7", owner="t1", metadata=[1])
    assert_type(run, RunHandle[Receipt])
    assert_type(await run, RunHandle[Receipt])
    assert_type(await run.result(timeout=180), Receipt)
    assert_type(
        await run.result(timeout=timedelta(minutes=1), on_interrupt=lambda each: ("approve", each.payload)), Receipt
    )
    assert_type(await client.result(charge, run), Receipt)
    assert_type(await client.result(charge, str(run)), Receipt)
    assert_type(await client.submit(charge, Charge(amount_cents=5)), RunHandle[Receipt])
    assert_type(client.handle(charge, "id"), RunHandle[Receipt])
    assert_type(await client.handle(charge, run), RunHandle[Receipt])
    assert_type(await (await client.submit(silent)).result(), None)
    assert_type(await client.signal_with_start(charge, {}, "go", idempotency_key="k"), RunHandle[Receipt])
    anything: RunHandle[BaseModel] = run
    await client.signal("charge", anything, "go")


async def _by_name() -> None:
    run = await client.submit("charge", {"amount_cents": 500})
    assert_type(run, RunHandle[Any])
    assert_type(await run.result(), Any)
    assert_type(await client.result("charge", run), Any)
    assert_type(await run.status(), RunStatus)
    assert_type(await run.cancel(), RunStatus)
    assert_type(await run.events(), list[Event])
    assert_type(await run.detail(), RunReport)
    assert_type(await run.update("add", {"sku": 1}, update_id="u", timeout=5), Any)


async def _answer(interrupt: OpenInterrupt) -> InterruptAnswer | None:
    return InterruptAnswer("approve", 5) if interrupt.payload else None


async def _wrong() -> None:
    run = await client.submit("charge")
    await run.result(on_interrupt=_answer)
    await run.result(on_interrupt=lambda _: 5)  # type: ignore[arg-type, return-value]
    await run.result(60)  # type: ignore[call-arg]
    await run.signal("go", id="s-1")  # type: ignore[call-arg]
    await client.submit("charge", 5)  # type: ignore[call-overload]
    await client.submit(silent.fn)  # type: ignore[call-overload]
    await client.signal_with_start("charge", {}, "go")  # type: ignore[call-overload]
