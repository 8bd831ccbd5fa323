"""Saved histories of records' runs against today's code: the record is read as its binding reads it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.kafka import Binding, Record, RecordError
from pyrula.kafka.answering import answered
from pyrula.kafka.record import run_id
from pyrula.kafka.stored_record import StoredRecord, encode_record
from pyrula.kafka.testing import replay_record_run
from pyrula.workflows import Context, History, NonDeterminismError, SystemClock, step, workflow
from pyrula.workflows.loops import give_back, prepare
from pyrula.workflows.store.payloads import encode_query, read_answer
from pyrula.workflows.store.runs import Query
from pyrula.workflows.testing import WorkflowTestEnv, replay

RUN_ID = run_id(3, "default", "billing", "orders", 2, 7)


class Order(BaseModel):
    id: str
    cents: int


class Csv:
    def decode(self, data: bytes | None) -> dict[str, str]:
        number, cents = (data or b"").decode().split(",")
        return {"id": number, "cents": cents}


@step
async def reserve(order: str) -> str:
    return f"reserved {order}"


@step
async def charge(order: str, cents: int) -> int:
    return cents


def bound(fn: Callable[..., Any], **options: Any) -> Binding:
    return Binding(workflow(name="replayed_order")(fn), topic="orders", group="billing", **options)


async def history(value: bytes = b'{"id":"o1","cents":5}', waits: bool = False) -> History:
    """What a store gives of the run of a record with this value: the rows are of a run with the same steps."""

    @workflow(name="replayed_order")
    async def body(ctx: Context) -> None:
        await ctx.step(reserve, "o1")
        await ctx.step(charge, "o1", 5)
        if waits:
            await ctx.wait_for_signal("paid")

    env = WorkflowTestEnv()
    run = await env.start(body)
    await env.run_until_complete(run)
    record = StoredRecord("orders", 2, 7, 1_700_000_000_000, b"k1", value, (("source", b"web"),))
    saved = await run.history()
    assert len(saved.rows) == 2
    return saved._replace(run_id=RUN_ID, params=encode_record(record, record.place))


async def of_a_model(ctx: Context, order: Order) -> None:
    await ctx.step(reserve, order.id)
    await ctx.step(charge, order.id, order.cents)


async def of_a_record(ctx: Context, order: Record[Order]) -> None:
    assert (order.topic, order.partition, order.offset, order.key) == ("orders", 2, 7, b"k1")
    assert order.headers == (("source", b"web"),)
    await of_a_model(ctx, order.value)


async def of_fields(ctx: Context, id: str, cents: int) -> None:  # noqa: A002
    await of_a_model(ctx, Order(id=id, cents=cents))


async def of_a_keyword(ctx: Context, *, order: Order) -> None:
    await of_a_model(ctx, order)


async def of_what_ctx_has(ctx: Context) -> None:
    await of_a_model(ctx, Order.model_validate_json(ctx.record.value))
    assert ctx.record.key == b"k1"


async def swapped(ctx: Context, order: Order) -> None:
    await ctx.step(charge, order.id, order.cents)
    await ctx.step(reserve, order.id)


async def swapped_for_a_record(ctx: Context, order: Record[Order]) -> None:
    await swapped(ctx, order.value)


async def shorter(ctx: Context, order: Order) -> None:
    await ctx.step(reserve, order.id)


@pytest.mark.parametrize("body", [of_a_model, of_a_record, of_fields, of_a_keyword, of_what_ctx_has])
async def test_the_record_comes_as_the_body_takes_it(body: Callable[..., Any], tmp_path: Path) -> None:
    saved = await history()
    await replay_record_run(bound(body), saved)
    saved.dump(tmp_path / "order.json")
    await replay_record_run(bound(body), History.load(tmp_path / "order.json"))


@pytest.mark.parametrize("body", [swapped, swapped_for_a_record])
async def test_changed_code_is_told_with_both_operations(body: Callable[..., Any]) -> None:
    with pytest.raises(NonDeterminismError) as told:
        await replay_record_run(bound(body), await history())
    assert "reserve" in str(told.value)
    assert "charge" in str(told.value)


async def test_a_body_that_asks_for_less_is_told() -> None:
    with pytest.raises(NonDeterminismError, match="charge"):
        await replay_record_run(bound(shorter), await history())


async def test_a_body_that_goes_on_fits() -> None:
    async def longer(ctx: Context, order: Order) -> None:
        await of_a_model(ctx, order)
        await ctx.wait_for_signal("paid")
        await ctx.step(reserve, "never asked for")

    await replay_record_run(bound(longer), await history(waits=True))


async def test_value_serde_reads_the_record() -> None:
    saved = await history(b"o1,5")
    await replay_record_run(bound(of_a_model, value_serde=Csv()), saved)
    with pytest.raises(RecordError, match="not JSON"):
        await replay_record_run(bound(of_a_model), saved)


async def test_a_history_without_its_record_is_refused_with_the_way_out() -> None:
    saved = (await history())._replace(params=b"{}")
    with pytest.raises(ValueError, match=rf"{RUN_ID} \(completed\) lacks its record: .*keep=\"all\""):
        await replay_record_run(bound(of_a_model), saved)


async def test_each_replay_names_the_other() -> None:
    saved, binding = await history(), bound(of_a_model)
    with pytest.raises(ValueError, match=rf"run {RUN_ID} is a record's.*replay_record_run\(binding, history\)"):
        await replay(binding.workflow, saved)
    with pytest.raises(TypeError, match=r"takes the workflow, not <Binding.*replay_record_run\(binding, history\)"):
        await replay(binding, saved)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes the Binding.*testing.replay\(workflow, history\)"):
        await replay_record_run(binding.workflow, saved)  # type: ignore[arg-type]
    submitted = saved._replace(run_id="0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC", params=b'{"order":{"id":"o1","cents":5}}')
    with pytest.raises(ValueError, match=r"is no record's.*testing.replay\(workflow, history\)"):
        await replay_record_run(binding, submitted)
    await replay(binding.workflow, submitted)
    with pytest.raises(ValueError, match="one of workflow 'other', not of 'replayed_order'"):
        await replay_record_run(binding, saved._replace(name="other"))


async def test_a_query_is_answered_by_a_body_that_looks_at_its_record() -> None:
    async def tells(ctx: Context) -> None:
        key, topic = ctx.record.key, ctx.record.topic
        ctx.on_query("where", lambda: f"{topic} {key.decode()}")
        await of_what_ctx_has(ctx)

    query = Query("1", RUN_ID, "where", encode_query((), {}, "query 'where'"))
    saved, loop = await history(), asyncio.get_running_loop()
    prepare(loop)  # as a worker does
    try:
        answer = await answered(bound(tells), saved, query, SystemClock())
    finally:
        give_back(loop)
    assert read_answer(answer) == ("orders k1", None)
