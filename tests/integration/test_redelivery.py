"""What a body sees when its record comes again: the same values, or, where the code has changed, a pause."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from pyrula.kafka import Record
from pyrula.kafka.record import record_identity
from pyrula.workflows import Context, Retry, StepError, WorkflowDefinition, step, workflow
from pyrula.workflows.store.port import Batch
from tests.integration.rig import Rig
from tests.services.topics import Message

runs: Counter[str] = Counter()
release: asyncio.Event


@pytest.fixture(autouse=True)
def fresh() -> None:
    global release
    release = asyncio.Event()  # it belongs to the test's loop
    runs.clear()


class Color(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    price: Decimal


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@step
async def give_int() -> int:
    return -(2**62)


@step
async def give_float() -> float:
    return 1.0


@step
async def give_text() -> str:
    return "grüße \u2028 \U0001f600 \x00"


@step
async def give_none() -> None:
    return None


@step
async def give_bool() -> bool:
    return True


@step
async def give_bytes() -> bytes:
    return b"\x00\xff"


@step
async def give_tuple() -> tuple[int, str, None]:
    return 1, "a", None


@step
async def give_moment() -> datetime:
    return datetime(2024, 2, 29, 12, 30, 1, 123456, tzinfo=UTC)


@step
async def give_day() -> date:
    return date(2024, 2, 29)


@step
async def give_delta() -> timedelta:
    return timedelta(days=1, microseconds=1)


@step
async def give_decimal() -> Decimal:
    return Decimal("1.10")


@step
async def give_uuid() -> UUID:
    return UUID(int=7)


@step
async def give_enum() -> Color:
    return Color.RED


@step
async def give_set() -> set[int]:
    return {3, 1}


@step
async def give_model() -> Line:
    return Line(sku="a", price=Decimal("2.50"))


@step
async def give_nested() -> dict[str, list[Line | Point]]:
    return {"a": [Line(sku="b", price=Decimal("0")), Point(1, 2.0)]}


@step
async def give_bare():  # type: ignore[no-untyped-def]
    return {"i": 1, "f": 1.0, "l": [None, True, "x"]}


@step
def give_from_a_thread() -> tuple[int, ...]:
    return 1, 2


@step(retry=Retry(max_attempts=2, initial=0.01))
async def fail() -> int:
    raise LookupError("nothing there")


GIVING = (
    give_int, give_float, give_text, give_none, give_bool, give_bytes, give_tuple, give_moment, give_day, give_delta,
    give_decimal, give_uuid, give_enum, give_set, give_model, give_nested, give_bare, give_from_a_thread,
)  # fmt: skip


def with_types(value: Any) -> Any:
    """The value with the types of all its parts, for a comparison that knows 1 from 1.0 and a tuple from a list."""
    if isinstance(value, dict):
        return dict, {key: with_types(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [with_types(part) for part in value]
    return type(value), value


async def test_a_step_gives_exactly_what_it_gave_before(rig: Rig) -> None:
    seen: list[list[Any]] = []

    @workflow(name="redelivery.values")
    async def body(ctx: Context, record: Record[dict]) -> None:  # type: ignore[type-arg]
        values = [record, ctx.run]
        values += [await ctx.step(giving) for giving in GIVING]
        try:
            await ctx.step(fail)
        except StepError as error:
            values += [error.step, error.attempts, error.error_type, error.message, error.trace, error.timed_out]
        values += [await ctx.now(), await ctx.random(), await ctx.uuid()]
        values += await asyncio.gather(ctx.step(give_tuple), ctx.step(give_bytes), ctx.step(give_set))
        seen.append(values)
        await release.wait()

    await rig.create()
    await rig.produce([Message(b"k", b'{"a": 1.0}', (("h", b"v"),))])
    for attempt in (1, 2, 3):
        async with rig.running(rig.binding(body)):
            await rig.until(lambda expected=attempt: len(seen) == expected, "the body to run")
            if attempt == 3:
                release.set()
                await rig.until_drained()
    first = [with_types(value) for value in seen[0]]
    assert [with_types(value) for value in seen[1]] == first
    assert [with_types(value) for value in seen[2]] == first
    assert await rig.read(rig.letters) == []


@step
async def reserve(n: int) -> str:
    runs[f"reserve {n}"] += 1
    return f"reserved {n}"


@step
async def charge(n: int) -> str:
    runs[f"charge {n}"] += 1
    return f"charged {n}"


def bodies() -> tuple[WorkflowDefinition[..., Any], WorkflowDefinition[..., Any]]:
    """Two deploys of one workflow: the second asks for another step first."""

    @workflow(name="redelivery.deployed")
    async def before(ctx: Context, n: int) -> None:
        runs[f"before {n}"] += 1
        assert await ctx.step(reserve, n) == f"reserved {n}"
        if n < 50:
            await release.wait()
        await ctx.step(charge, n)

    @workflow(name="redelivery.deployed")
    async def after(ctx: Context, n: int) -> None:
        runs[f"after {n}"] += 1
        await ctx.step(charge, n)
        await ctx.step(reserve, n)

    return before, after


async def test_a_body_that_changed_under_a_journal_is_paused_with_its_lane(rig: Rig) -> None:
    before, after = bodies()
    await rig.create()
    await rig.produce([Message(b"a", b"0"), Message(b"a", b"60"), Message(b"b", b"61")])
    async with rig.running(rig.binding(before)):
        await rig.until(lambda: runs["reserve 0"] and runs["charge 61"], "the first record to block")
    assert runs["before 60"] == 0
    for start in (1, 2):
        async with rig.running(rig.binding(after)) as running:
            (event,) = await rig.until(lambda running=running: running.told("paused"), "the record to be paused")
            assert (event.offset, event.attempt) == (0, 1)
            await rig.produce([Message(b"c", b"%d" % (70 + start))])
            await rig.until(lambda start=start: runs[f"reserve {70 + start}"], "another lane to go on")
            await asyncio.sleep(0.5)  # time enough for a loop to show
            assert len(running.told("paused")) == 1
            (stats,) = running.worker.stats()
            assert (stats.failed, stats.retried, stats.dead_lettered) == (0, 0, 0)
            assert running.health.state == "degraded"
            for word in ("offset 0", "reserve", "charge"):
                assert word in running.reasons
        assert runs["after 0"] == start
        assert runs["after 60"] == 0
        assert await rig.offset() == 0
    assert runs["charge 0"] == 0
    release.set()
    async with rig.running(rig.binding(before)) as running:
        await rig.until_drained()
        assert [event.attempt for event in running.told("completed")] == [1, 1]
    assert (runs["reserve 0"], runs["charge 0"], runs["before 0"]) == (1, 1, 2)
    assert await rig.read(rig.letters) == []


async def test_a_deploy_that_fits_no_journal_stops_its_binding(rig: Rig) -> None:
    before, after = bodies()
    await rig.create()
    await rig.produce(Message(None, b"%d" % n) for n in range(50))
    async with rig.running(rig.binding(before)):
        await rig.until(lambda: sum(runs[f"reserve {n}"] for n in range(50)) == 50, "all records to block")
    async with rig.running(rig.binding(after)) as running:
        await rig.until(lambda: running.health.state == "unhealthy", "the binding to stop")
        assert "can't go on with today's code" in running.reasons
        paused = len(running.told("paused"))
        assert 20 <= paused <= 50
        await rig.produce([Message(None, b"80")])
        await asyncio.sleep(0.5)  # time enough for it to start
        assert runs["after 80"] == 0
    release.set()
    async with rig.running(rig.binding(before)):
        await rig.until_drained()
    assert {runs[f"reserve {n}"] for n in range(50)} == {1}
    assert {runs[f"charge {n}"] for n in range(50)} == {1}


ROWS = {
    "newer": b'[99,"value","1","step","reserve",1,null,"reserved 0",null]',
    "damaged": b'[1,"value","1","st',
    "nonsense": b"\xff\x00",
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_journal_that_cannot_be_read_holds_its_record(rig: Rig, row: bytes) -> None:
    """Written by a later version, or damaged: running the steps again would be worse than waiting for a person."""
    _, body = bodies()
    await rig.create()
    await rig.produce([Message(b"a", b"0"), Message(b"a", b"60"), Message(b"b", b"61")])
    store = rig.store()
    await store.open()
    source = record_identity("default", rig.group, rig.topic, 0)
    claim = await store.claim_source(source, 0)
    assert await store.append_rows([Batch(source, claim.token, [(0, 0, row)], 0, None)]) == [None]
    await store.release_source(source, claim.token)
    await store.close()
    async with rig.running(rig.binding(body)) as running:
        await rig.until(lambda: runs["reserve 61"], "another lane to go on")
        await rig.until(lambda: "offset 0" in running.reasons, "health to name the record")
        assert running.health.state == "degraded"
        if row == ROWS["newer"]:
            assert "99" in running.reasons
        await asyncio.sleep(0.3)  # time enough for a loop to show
        assert len(running.told("stopped")) == 1
        assert running.worker.stats()[0].failed == 0
    assert (runs["after 0"], runs["after 60"]) == (0, 0)
    assert await rig.offset() == 0
    assert await rig.read(rig.letters) == []
