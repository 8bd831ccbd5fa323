"""Updates, queries and their replay: applied once, in one order, when the run is settled."""

import asyncio
import itertools
from typing import Any

import pytest

from pyrula.workflows import Context
from pyrula.workflows.codec import loads
from pyrula.workflows.execution import LetGo
from pyrula.workflows.replaying import replayed
from pyrula.workflows.store.payloads import encode_query, read_answer, read_failure
from tests.engine.talk_rig import Life

pytestmark = pytest.mark.usefixtures("prepared")


async def cart(ctx: Context) -> list[str]:
    items: list[str] = []

    async def add(sku: str, count: int = 1) -> int:
        items.extend([sku] * count)
        return len(items)

    def check(sku: str, count: int = 1) -> None:
        if sku == "sold-out":
            raise ValueError("sold out")

    ctx.on_update("add", add, validator=check)
    ctx.on_query("items", lambda: list(items))
    await ctx.wait_for_signal("checkout")
    return items


def rows_of(life: Life, kind: str) -> list[Any]:
    return [row for row in (loads(data) for data in life.stored.rows.values()) if row[1] == kind]


async def test_an_update_its_answer_and_a_query() -> None:
    life = Life(cart)
    life.begin()
    await life.settle()
    life.send("update", "add", {"sku": "A-1"}, "u1")
    await life.settle()
    assert life.stored.applied == {"u1": [("u1", "ok", b"1")]}
    assert life.stored.inbox == []
    assert await life.query("items") == ["A-1"]
    before = dict(life.stored.rows)
    assert await life.query("items") == ["A-1"]
    assert life.stored.rows == before
    life.send("signal", "checkout")
    assert (await life.end()).value == ["A-1"]


async def test_its_entry_consumption_and_answer_are_one_change() -> None:
    life = Life(cart)
    life.begin()
    await life.settle()
    changes: list[tuple[bool, bool, bool]] = []
    life.host.on_change = lambda: changes.append(
        (bool(rows_of(life, "update")), not life.stored.inbox, bool(life.stored.applied))
    )
    life.send("update", "add", {"sku": "A-1"}, "u1")
    await life.settle()
    assert changes == [(True, True, True)]
    await life.crash()


async def test_payloads_become_arguments() -> None:
    seen: list[Any] = []

    async def body(ctx: Context) -> None:
        def one(value: Any = "none") -> None:
            seen.append(value)

        ctx.on_update("one", one)
        await ctx.wait_for_signal("end")

    life = Life(body)
    life.begin()
    for number, payload in enumerate([None, 5, [1, 2], "text", {"value": {"a": 1}}, False]):
        life.send("update", "one", payload, f"u{number}")
    await life.settle()
    assert seen == ["none", 5, [1, 2], "text", {"a": 1}, False]
    await life.crash()


@pytest.mark.parametrize(
    ("name", "payload", "text"),
    [
        ("add", {"sku": "sold-out"}, "sold out"),
        ("add", {"sku": ["no", "text"]}, "sku"),
        ("add", {"sku": "A", "colour": "red"}, "colour"),
        ("add", None, "sku"),
        ("remove", {"sku": "A"}, "the run knows no update 'remove' (it has: add)"),
    ],
)
async def test_a_rejected_update_leaves_no_trace(name: str, payload: Any, text: str) -> None:
    life = Life(cart)
    life.begin()
    await life.settle()
    before = dict(life.stored.rows)
    life.send("update", name, payload, "u1")
    await life.settle()
    ((_, outcome, failure),) = life.stored.applied["u1"]
    assert outcome == "rejected"
    assert text in read_failure(failure).message
    assert life.stored.rows == before
    assert life.stored.inbox == []
    assert life.stored.events[-1][0] == "update_rejected"
    assert await life.query("items") == []
    await life.crash()


async def test_a_handler_that_raises() -> None:
    async def body(ctx: Context) -> None:
        async def fail() -> None:
            raise LookupError("no such thing")

        ctx.on_update("fail", fail)
        await ctx.wait_for_signal("end")

    life = Life(body)
    life.begin()
    life.send("update", "fail", None, "u1")
    await life.settle()
    ((_, outcome, failure),) = life.stored.applied["u1"]
    assert (outcome, read_failure(failure)[:2]) == ("error", ("LookupError", "no such thing"))
    await life.crash()
    life.begin()
    await life.settle()
    assert len(life.stored.applied["u1"]) == 1
    life.send("signal", "end")
    assert (await life.end()).status == "completed"


async def test_a_handler_whose_group_fails() -> None:
    async def body(ctx: Context) -> None:
        async def work() -> None:
            await ctx.wait_for_signal("begin")
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.wait_for_signal("a"))
                group.create_task(ctx.wait_for_signal("b"))

        ctx.on_update("work", work)
        await ctx.wait_for_signal("end")

    life = Life(body)
    life.begin()
    life.send("update", "work", None, "u1")
    life.send("signal", "begin")
    await life.settle()
    life.send("cancel", message_id="cancel")
    assert (await life.end()).status == "cancelled"
    assert b"ExceptionGroup" in life.stored.applied["u1"][0].value


async def test_a_handler_asks_for_operations_and_reports_once() -> None:
    calls: list[str] = []

    async def body(ctx: Context) -> list[str]:
        done: list[str] = []

        async def pay(order: str) -> str:
            answer = await ctx.step(_charge, calls, order)
            await ctx.wait_for_signal(f"paid-{order}")
            done.append(order)
            return answer

        ctx.on_update("pay", pay)
        ctx.on_query("done", lambda: list(done))
        await ctx.wait_for_signal("end")
        return done

    life = Life(body)
    life.begin()
    for order in "ab":
        life.send("update", "pay", {"order": order}, f"id/{order}:1")
    await life.settle()
    assert sorted(calls) == ["a", "b"]
    assert life.stored.applied == {}
    assert {kind for kind, _, _ in await life.park()} == {"signal"}
    life.stored.put("signal", "paid-b")
    life.begin()
    await life.settle()
    assert await life.query("done") == ["b"]
    assert life.stored.applied == {"id/b:1": [("id/b:1", "ok", b'"charge-b"')]}
    await life.crash()
    life.begin()
    await life.settle()
    assert await life.query("done") == ["b"]
    life.send("signal", "paid-a")
    await life.settle()
    assert len(rows_of(life, "applied")) == 2
    life.send("signal", "end")
    assert (await life.end()).value == ["b", "a"]
    assert len(calls) == 2
    assert [len(answers) for answers in life.stored.applied.values()] == [1, 1]


async def _charge(calls: list[str], order: str) -> str:
    calls.append(order)
    return f"charge-{order}"


async def test_the_run_ends_when_the_handlers_have() -> None:
    async def body(ctx: Context) -> str:
        async def slow() -> str:
            await ctx.wait_for_signal("go")
            return "done"

        ctx.on_update("slow", slow)
        await ctx.wait_for_signal("end")
        return "over"

    for tasks in (False, True):
        life = Life(body)
        if tasks:
            life.begin()
            await life.crash()
        life.begin()
        life.send("update", "slow", None, "u1")
        await life.settle()
        life.send("signal", "end")
        await life.settle()
        assert not life.task.done()
        life.send("update", "slow", None, "u2")  # too late: nothing is delivered to a body that has returned
        await life.settle()
        await life.park()
        life.stored.put("signal", "go")
        life.begin()
        outcome = await life.end()
        assert (outcome.status, outcome.value) == ("completed", "over")
        assert life.stored.applied == {"u1": [("u1", "ok", b'"done"')]}
        assert [unread.message.id for unread in life.stored.inbox] == ["u2"]


async def test_messages_come_while_a_step_is_under_way() -> None:
    gate = asyncio.Event()

    async def body(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        ctx.on_query("seen", lambda: list(seen))

        async def wait() -> str:
            await gate.wait()
            return "step"

        async def add(item: Any) -> None:
            seen.append(item)

        if ctx.run.metadata:
            ctx.on_update("add", add)
        seen.append(await ctx.step(wait))
        return seen

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("update", "add", "u", "u1")
    await life.settle()
    assert await life.query("seen") == ["u"]
    gate.set()
    assert (await life.end()).value == ["u", "step"]
    life.begin()
    assert (await life.end()).value == ["u", "step"]


async def test_an_update_for_a_body_that_has_none_while_its_step_is_under_way() -> None:
    gate = asyncio.Event()

    async def body(ctx: Context) -> str:
        async def wait() -> str:
            await gate.wait()
            return "step"

        return await ctx.step(wait) + await ctx.step(wait)

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("update", "add", None, "u1")
    await life.settle()
    assert life.stored.applied["u1"][0].outcome == "rejected"
    gate.set()
    assert (await life.end()).value == "stepstep"
    life.begin()
    assert (await life.end()).value == "stepstep"


async def test_queries_that_are_refused() -> None:
    async def body(ctx: Context) -> None:
        async def later() -> None: ...

        def broken() -> None:
            raise LookupError("x")

        ctx.on_query("broken", broken)
        with pytest.raises(TypeError, match="async"):
            ctx.on_query("later", later)
        with pytest.raises(TypeError, match="async"):
            ctx.on_update("later", later, validator=later)
        await ctx.wait_for_signal("end")

    life = Life(body)
    life.begin()
    with pytest.raises(AssertionError, match="knows no query 'items'"):
        await life.query("items")
    with pytest.raises(AssertionError, match="LookupError: x"):
        await life.query("broken")
    life.send("signal", "end")
    await life.end()
    with pytest.raises(AssertionError, match="LookupError: x"):
        await life.query("broken")


async def test_a_query_of_a_run_that_is_let_go() -> None:
    async def body(ctx: Context) -> None:
        ctx.on_update("x", print)
        for _ in itertools.count():  # it never comes to rest
            await asyncio.sleep(0)

    life = Life(body)
    life.begin()
    await life.settle()
    asked = asyncio.ensure_future(life.execution.query("x", encode_query((), {}, "q")))
    await life.settle()
    assert not asked.done()
    await life.crash()
    with pytest.raises(LetGo):
        await asked


async def read(life: Life, name: str) -> Any:
    async with replayed(life.definition, life.run_id, {}, sorted(life.stored.rows.items()), clock=life.clock) as run:
        async with asyncio.timeout(60):
            answer = await run.query(name, encode_query((), {}, "q"))
    value, failure = read_answer(answer)
    return value if failure is None else failure


async def test_a_journal_is_read_without_a_step_or_a_row() -> None:
    calls: list[str] = []

    async def body(ctx: Context) -> None:
        seen: list[Any] = []
        ctx.on_query("seen", lambda: list(seen))
        ctx.on_update("add", seen.append)
        seen.append(await ctx.step(_charge, calls, "a"))
        seen.append(await ctx.wait_for_signal("go"))
        await ctx.step(_charge, calls, "b")

    life = Life(body)
    assert await read(life, "seen") == []
    life.begin()
    await life.settle()
    life.send("update", "add", [1], "u1")
    await life.settle()
    await life.park()
    assert await read(life, "seen") == ["charge-a", [1]]
    assert (await read(life, "other")).message.startswith("the run knows no query")
    assert calls == ["a"]
    life.stored.put("signal", "go", "now")
    life.begin()
    await life.end()
    rows = dict(life.stored.rows)
    assert await read(life, "seen") == ["charge-a", [1], "now"]
    assert calls == ["a", "b"]
    assert life.stored.rows == rows


async def test_reading_a_journal_that_the_code_does_not_fit() -> None:
    way = ["old"]

    async def body(ctx: Context) -> None:
        ctx.on_query("x", lambda: 1)
        await ctx.wait_for_signal(way[0])
        await ctx.wait_for_signal("end")

    life = Life(body)
    life.begin()
    life.send("signal", "old")
    await life.settle()
    await life.park()
    way[0] = "new"
    failure = await read(life, "x")
    assert failure.type.endswith("NonDeterminismError")
