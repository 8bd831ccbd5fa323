"""What ctx gives beside steps: instants, messages, sleeps, patches, and what is plain."""

import logging
import math
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.workflows import Context, ManualClock, PyrulaError, SerializationError, step
from pyrula.workflows.execution import Output
from pyrula.workflows.model import MAX_VALUE
from tests.engine.rig import MemoryHost, both, execution, play, watched, with_tasks


@step
async def work(value: int) -> int:
    return value


@both
def test_instants_are_journaled(tasks: bool) -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.now(), await ctx.random(), await ctx.uuid()]

    outcome, host = play(body, tasks=tasks)
    now, number, unique = outcome.value
    assert now.tzinfo is not None
    assert abs(now - datetime.now(UTC)) < timedelta(seconds=30)
    assert 0 <= number < 1
    assert isinstance(unique, uuid.UUID)
    assert unique.version == 4
    again, _ = play(body, rows=sorted(host.rows.items()), tasks=not tasks)
    assert again.value == outcome.value


class Receipt(BaseModel):
    cents: int
    at: datetime


class Reading(BaseModel):
    celsius: float


@pytest.mark.usefixtures("prepared")
@both
async def test_messages_are_buffered_as_they_will_be_produced(tasks: bool) -> None:
    at = datetime(2025, 1, 1, tzinfo=UTC)

    async def body(ctx: Context) -> None:
        await ctx.send("a", Receipt(cents=1, at=at), key="k")
        await ctx.send("a", {"b": [1, None]}, key=b"\x00")
        await ctx.send("b", b"\xff", key=5, headers={"h": "text", "i": b"\x01"})
        await ctx.send("b", None, headers=[("h", "1"), ("h", "2")], partition=3, timestamp=at)
        await ctx.send("b", "text", timestamp=17)
        await ctx.step(work, 1)

    host = MemoryHost()
    run = with_tasks(execution(body, host), tasks)
    await watched(run)
    expected = [
        Output("a", b'{"cents":1,"at":"2025-01-01T00:00:00Z"}', b"k", (), None, None),
        Output("a", b'{"b":[1,null]}', b"\x00", (), None, None),
        Output("b", b"\xff", b"5", (("h", b"text"), ("i", b"\x01")), None, None),
        Output("b", None, None, (("h", b"1"), ("h", b"2")), 3, 1735689600000),
        Output("b", b'"text"', None, (), None, 17),
    ]
    assert run.outputs == expected
    assert [entry.clock for entry in host.entries if entry.kind == "value"] == [6]  # they count, and write nothing

    again = with_tasks(execution(body, MemoryHost(), rows=sorted(host.rows.items())), not tasks)
    assert (await watched(again)).status == "completed"
    assert again.outputs == expected


@both
def test_messages_that_cannot_be_written(tasks: bool) -> None:
    async def body(ctx: Context) -> list[str]:
        refused = []
        too_long = ((b"x" * (MAX_VALUE + 1), None), ("x" * MAX_VALUE, None))
        for value, key in ((object(), None), *too_long, (1, 1.5), (Reading(celsius=math.nan), None)):
            try:
                await ctx.send("topic", value, key=key)  # type: ignore[arg-type]
            except SerializationError as error:
                refused.append(str(error))
        with pytest.raises(SerializationError, match="header 'h' is str or bytes, not 1"):
            await ctx.send("topic", 1, headers={"h": 1})  # type: ignore[dict-item]
        with pytest.raises(SerializationError, match="name of a header is str, not b'h'"):
            await ctx.send("topic", 1, headers={b"h": "1"})  # type: ignore[dict-item]
        for topic in ("a b/\u00fc", "", "..", "x" * 250, 5):
            with pytest.raises(ValueError, match="the name of a topic is 1 to 249"):
                await ctx.send(topic, 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="aware"):
            await ctx.send("topic", 1, timestamp=datetime(2025, 1, 1))  # noqa: DTZ001
        return refused

    outcome, _ = play(body, tasks=tasks)
    assert len(outcome.value) == 5
    assert all("'topic'" in text for text in outcome.value)


@both
def test_sleeps(tasks: bool) -> None:
    async def body(ctx: Context) -> list[str]:
        await ctx.sleep(0)
        await ctx.sleep(-5)
        await ctx.sleep(timedelta(days=-1))
        await ctx.sleep(timedelta(milliseconds=1))
        await ctx.sleep(until=await ctx.now() + timedelta(milliseconds=300))
        await ctx.sleep(until=datetime(2000, 1, 1, tzinfo=UTC))
        refused = []
        for arguments in ({}, {"seconds": 1, "until": datetime.now(UTC)}, {"until": datetime(2025, 1, 1)}):  # noqa: DTZ001
            try:
                await ctx.sleep(**arguments)  # type: ignore[arg-type]
            except TypeError as error:
                refused.append(str(error))
        return refused

    outcome, host = play(body, tasks=tasks)
    assert len(outcome.value) == 3
    kinds = [entry.kind for entry in host.entries]
    assert kinds.count("deadline") == 2
    again, more = play(body, rows=sorted(host.rows.items()), tasks=not tasks)
    assert again.value == outcome.value
    assert not more.entries


@both
def test_plain_properties(tasks: bool) -> None:
    host = MemoryHost()
    host.the_record = "the record"

    async def body(ctx: Context) -> list[Any]:
        return [ctx.record, ctx.run]

    outcome, _ = play(body, tasks=tasks, host=host)
    assert outcome.value == ["the record", ("00-test", "body", "1", 1, "", None)]


@pytest.mark.usefixtures("prepared")
async def test_the_id_is_made_when_it_is_first_asked_for() -> None:
    made = []

    def make() -> str:
        made.append(1)
        return "00-made"

    async def silent(ctx: Context) -> None: ...

    async def asks(ctx: Context) -> list[str]:
        return [ctx.run.id, ctx.run.id]

    assert (await watched(execution(silent, MemoryHost(), run_id=make))).status == "completed"  # type: ignore[arg-type]
    assert not made
    assert (await watched(execution(asks, MemoryHost(), run_id=make))).value == ["00-made"] * 2  # type: ignore[arg-type]
    assert len(made) == 1


@both
def test_the_logger_is_silent_while_replaying(tasks: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def body(ctx: Context) -> None:
        ctx.logger.info("begins")
        await ctx.step(work, 1)
        ctx.logger.info("after %d", 1, extra={"more": 2})
        await ctx.step(work, 2)
        ctx.logger.warning("after 2")

    with caplog.at_level(logging.INFO):
        _, host = play(body, tasks=tasks)
        rows = sorted((i, data) for i, data in host.rows.items() if b'"head"' not in data)
        assert [record.getMessage() for record in caplog.records] == [
            "[00-test] begins",
            "[00-test] after 1",
            "[00-test] after 2",
        ]
        assert caplog.records[1].run_id == "00-test"  # type: ignore[attr-defined]
        assert caplog.records[1].more == 2  # type: ignore[attr-defined]
        assert caplog.records[0].name == "pyrula.run.body"
        caplog.clear()
        play(body, rows=rows[:1], tasks=not tasks)
        assert [record.getMessage() for record in caplog.records] == ["[00-test] after 1", "[00-test] after 2"]


@pytest.mark.usefixtures("prepared")
async def test_now_is_the_clock_that_was_passed_in() -> None:
    clock = ManualClock()

    async def body(ctx: Context) -> list[datetime]:
        first = await ctx.now()
        clock.advance(90)
        return [first, await ctx.now()]

    outcome = await watched(execution(body, MemoryHost(), clock=clock))
    assert outcome.value[1] - outcome.value[0] == timedelta(seconds=90)


@pytest.mark.usefixtures("prepared")
@both
async def test_an_operation_after_the_end_is_refused(tasks: bool) -> None:
    kept: list[Context] = []

    async def body(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.step(work, 1)

    host = MemoryHost()
    await watched(with_tasks(execution(body, host), tasks))
    written = len(host.entries)
    with pytest.raises(BaseException, match=r"torn down|outside of the run") as raised:
        await kept[0].step(work, 2)
    assert not isinstance(raised.value, PyrulaError) or "outside" in str(raised.value)
    assert len(host.entries) == written
