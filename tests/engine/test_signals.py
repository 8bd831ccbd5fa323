"""Signals, interrupts and sleeps: what waits for a message or for long, and how such a run is parked."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows import Context, Retry, step
from tests.engine.talk_rig import Life
from tests.services.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("prepared")


async def test_a_signal_that_comes_while_the_body_waits() -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("signal", "other", 1)
    await life.settle()
    life.send("signal", "go", {"n": 5})
    outcome = await life.end()
    assert (outcome.status, outcome.value) == ("completed", {"n": 5})
    assert [unread.message.name for unread in life.stored.inbox] == ["other"]
    assert life.stored.events == [("signal_received", {"signal": "go", "id": "m2"})]


async def test_early_signals_are_kept_in_order() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go")]

    life = Life(body)
    life.stored.put("signal", "go", 1)
    life.stored.put("signal", "go", 2)
    life.begin()
    assert (await life.end()).value == [1, 2]
    assert life.stored.inbox == []


async def test_a_run_that_waits_is_parked_and_goes_on_elsewhere() -> None:
    calls: list[str] = []

    async def body(ctx: Context) -> Any:
        await ctx.step(calls.append, "before")
        value = await ctx.wait_for_signal("go")
        await ctx.step(calls.append, "after")
        return value

    life = Life(body)
    life.begin()
    await wait_until_async(lambda: life.host.idles == 1, description="it to wait")
    assert await life.park() == (("signal", "go", None),)
    life.stored.put("signal", "go", 7)
    life.begin()
    assert (await life.end()).value == 7
    assert calls == ["before", "after"]


async def test_a_signal_in_time_and_a_time_out() -> None:
    async def body(ctx: Context) -> list[Any]:
        seen = []
        for _ in range(2):
            try:
                seen.append(await ctx.wait_for_signal("go", timeout=3600))
            except TimeoutError as error:
                seen.append(str(error))
        return seen

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("signal", "go", "here")
    await life.settle()
    ((kind, name, deadline),) = await life.park()
    assert (kind, name) == ("signal", "go")
    assert deadline == life.clock.now().timestamp() + 3600
    life.advance(3601)
    for _ in range(2):
        life.begin()
        assert (await life.end()).value == ["here", "no signal 'go' came within 3600.0 s"]


async def test_a_long_sleep_is_parked_and_a_short_one_not() -> None:
    async def body(ctx: Context) -> str:
        await ctx.sleep(0.01)
        await ctx.sleep(30 * 24 * 3600)
        return "over"

    life = Life(body)
    life.begin()
    await wait_until_async(lambda: life.host.idles, description="the long sleep")
    ((kind, _, deadline),) = await life.park()
    assert kind == "sleep"
    assert deadline == pytest.approx(life.clock.now().timestamp() + 30 * 24 * 3600, abs=1)
    life.advance(29 * 24 * 3600)
    life.begin()
    await life.settle()
    assert life.host.idles == 1
    await life.park()
    life.advance(24 * 3600 + 1)
    life.begin()
    assert (await life.end()).value == "over"


async def test_a_retry_that_is_far_off_is_parked() -> None:
    calls: list[int] = []

    @step(retry=Retry(max_attempts=3, initial=600, max_delay=600, jitter=0))
    async def fragile() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return "done"

    async def body(ctx: Context) -> str:
        return await ctx.step(fragile)

    life = Life(body)
    life.begin()
    await life.settle()
    ((kind, name, deadline),) = await life.park()
    assert kind == "retry"
    assert name.endswith("fragile")
    assert deadline == pytest.approx(life.clock.now().timestamp() + 600)
    assert len(calls) == 1
    life.advance(601)
    life.begin()
    await life.settle()
    assert len(calls) == 2
    await life.park()
    life.advance(601)
    life.begin()
    assert (await life.end()).value == "done"
    kinds = [(kind, data.get("attempt")) for kind, data in life.stored.events]
    assert kinds == [
        ("step_started", 1), ("step_failed", 1), ("step_started", 2), ("step_failed", 2), ("step_started", 3),
        ("step_completed", 3),
    ]  # fmt: skip


async def test_what_comes_while_the_run_is_held_is_delivered_when_it_goes_on() -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    life = Life(body)
    life.begin()
    await life.settle()
    assert life.execution.hold() is not None
    life.send("signal", "go", 1)
    await life.settle()
    assert not life.task.done()
    life.execution.go_on()
    assert (await life.end()).value == 1


async def test_a_run_that_was_just_sent_what_it_waits_for_is_not_parked() -> None:
    async def body(ctx: Context) -> Any:
        ctx.on_update("add", print)
        return await ctx.wait_for_signal("go")

    life = Life(body)
    life.begin()
    for kind, name, parked in (("signal", "other", True), ("update", "none", False), ("signal", "go", False)):
        await life.settle()
        life.send(kind, name)  # type: ignore[arg-type]
        assert (life.execution.hold() is not None) is parked
        life.execution.go_on()
    assert (await life.end()).status == "completed"


async def test_a_body_at_a_plain_await_or_a_lock_stays_in_memory() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    done = asyncio.Event()

    async def body(ctx: Context, what: str) -> None:
        async def other() -> None:
            if what == "lock":
                async with lock:
                    pass
            else:
                await asyncio.get_running_loop().create_task(_set_by_nobody(done))

        async with asyncio.TaskGroup() as group:
            group.create_task(other())
            await ctx.wait_for_signal("go")

    for what in ("lock", "plain"):
        life = Life(body, what)
        life.begin()
        await life.settle()
        assert life.host.idles == 0
        assert life.execution.hold() is None
        await life.crash()


async def _set_by_nobody(done: asyncio.Event) -> None:
    await asyncio.sleep(60)


async def test_a_body_that_waits_for_what_its_update_handlers_do() -> None:
    async def body(ctx: Context, what: str) -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        seen: list[int] = []
        ready = asyncio.Condition()

        async def add(item: int) -> None:
            queue.put_nowait(item)
            async with ready:
                seen.append(item)
                ready.notify_all()

        ctx.on_update("add", add)
        if what == "queue":
            return [await queue.get(), await queue.get()]
        async with ready:
            await ready.wait_for(lambda: len(seen) == 2)
        return seen

    for what in ("queue", "condition"):
        life = Life(body, what)
        life.begin()
        for item in (1, 2):
            await life.settle()
            assert await life.park() == (("signal", "", None),)
            life.stored.put("update", "add", item)
            life.begin()
        assert (await life.end()).value == [1, 2]


async def test_a_body_that_waits_for_nothing_stays() -> None:
    async def body(ctx: Context) -> None:
        ctx.on_query("x", lambda: 1)
        await ctx.step(_nothing)
        await asyncio.Event().wait()

    life = Life(body)
    life.begin()
    await life.settle()
    assert await life.query("x") == 1
    assert life.execution.hold() is None
    await life.crash()


async def _nothing() -> None: ...


async def test_a_body_that_is_not_talked_to_keeps_the_short_way() -> None:
    async def body(ctx: Context) -> Any:
        await ctx.step(_nothing)
        await ctx.sleep(0.001)
        ctx.on_query("x", lambda: 1)
        await asyncio.sleep(0)
        await ctx.step(_nothing)
        return await ctx.now()

    life = Life(body)
    life.begin()
    life.send("signal", "early")
    assert (await life.end()).status == "completed"
    assert life.execution.crew is None
    assert [unread.message.name for unread in life.stored.inbox] == ["early"]


async def test_a_group_of_waits_is_parked() -> None:
    async def body(ctx: Context) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.wait_for_signal(name)) for name in "ab"]
            group.create_task(ctx.sleep(3600))
        return [task.result() for task in tasks]

    life = Life(body)
    life.begin()
    await life.settle()
    life.send("signal", "b", 2)
    await life.settle()
    waits = await life.park()
    assert [(kind, name) for kind, name, _ in waits] == [("signal", "a"), ("sleep", "")]
    life.advance(3601)
    life.stored.put("signal", "a", 1)
    life.begin()
    assert (await life.end()).value == [1, 2]


async def test_interrupts_side_by_side_are_answered_by_their_ids() -> None:
    async def body(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.interrupt({"ask": 1}), ctx.interrupt({"ask": 2}))

    life = Life(body)
    life.begin()
    await life.settle()
    first, second = life.stored.open
    assert life.stored.open == {first: b'{"ask":1}', second: b'{"ask":2}'}
    waits = await life.park()
    assert [(wait.kind, wait.name) for wait in waits] == [("interrupt", first), ("interrupt", second)]
    life.stored.put("resume", second, {"action": "no", "value": 2})
    life.begin()
    await life.settle()
    life.send("resume", first, {"action": "yes", "value": [1]})
    outcome = await life.end()
    assert [tuple(answer) for answer in outcome.value] == [("yes", [1]), ("no", 2)]
    assert [(kind, data["wait_id"]) for kind, data in life.stored.events] == [
        ("interrupt_raised", first), ("interrupt_raised", second), ("interrupt_resumed", second),
        ("interrupt_resumed", first),
    ]  # fmt: skip


async def test_an_interrupt_that_is_given_up_is_closed() -> None:
    async def body(ctx: Context) -> str:
        try:
            async with ctx.timeout(60):
                await ctx.interrupt("sure?")
        except TimeoutError:
            await ctx.wait_for_signal("go")
        return "late"

    life = Life(body)
    life.begin()
    await life.settle()
    (wait_id,) = life.stored.open
    waits = await life.park()
    assert [wait.kind for wait in waits] == ["interrupt", "sleep"]
    life.advance(61)
    life.begin()
    await life.settle()
    assert life.stored.open == {}
    life.send("resume", wait_id, {"action": "yes", "value": None})
    await life.settle()
    life.send("signal", "go")
    assert (await life.end()).value == "late"
    assert life.stored.inbox == []


async def test_who_the_run_is() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [ctx.version, *ctx.run]

    life = Life(body)
    life.begin()
    assert (await life.end()).value == ["1", "00-test", "body", "1", 1, "ada", {"plan": "free"}]
