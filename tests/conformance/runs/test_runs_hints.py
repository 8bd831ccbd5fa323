"""Wake-ups, queries and schedules."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyrula.workflows.store.messages import Applied, Change, Interrupt, Message, Wait
from pyrula.workflows.store.runs import Query, Schedule
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.waiting import wait_until_async

GO = Wait("signal", "go")


async def heard(counts: list[str], number: int, description: str) -> None:
    await wait_until_async(lambda: len(counts) >= number, description=description)


async def test_workers_hear_of_runs_to_claim(rig: Rig) -> None:
    calls: list[str] = []
    listening = rig.other.on_ready(lambda: calls.append("ready"))
    await asyncio.sleep(0)
    await wait_until_async(lambda: rig.submit(), description="a run")
    await heard(calls, 1, "word of a queued run")
    listening.close()
    listening.close()


async def test_a_holder_hears_of_messages(rig: Rig) -> None:
    runs: list[str] = []
    listening = rig.store.on_inbox("w", runs.append)
    lease = (await rig.started()).lease

    async def told() -> bool:
        await rig.signal(lease.run_id)
        return lease.run_id in runs

    await wait_until_async(told, description="word of a message")
    listening.close()


async def test_a_waiter_hears_of_changes(rig: Rig) -> None:
    lease = (await rig.started()).lease
    changes: list[str] = []
    listening = rig.other.on_change(lease.run_id, lambda: changes.append("x"))
    another = rig.other.on_change(lease.run_id, lambda: changes.append("y"))
    await wait_until_async(lambda: rig.store.status(lease.run_id), description="the run")
    await rig.store.deliver(lease.run_id, Message("update", "u1", "add"))
    before = len(changes)
    await rig.store.append(lease, Change(1, seen=1, consumed=[1], applied=[Applied("u1", "ok", b"1")]))
    await heard(changes, before + 1, "word of an applied update")
    another.close()
    before = len(changes)
    await rig.store.append(lease, Change(2, seen=1, opened=[Interrupt("i1", b"1")]))
    await heard(changes, before + 1, "word of an open interrupt")
    before = len(changes)
    await rig.complete(lease, 3)
    await heard(changes, before + 1, "word of the end")
    listening.close()


async def test_a_query_goes_to_the_holder_alone(rig: Rig) -> None:
    lease = (await rig.started()).lease
    query = Query("q1", lease.run_id, "items", b"[]")
    await rig.store.ask(lease.run_id, query, seconds=100)
    before = await rig.store.detail(lease.run_id)
    assert await rig.other.questions("stranger", SERVED, 10) == ()
    assert await rig.store.questions("w", [("cart", "2")], 10) == ()
    assert await rig.store.questions("w", SERVED, 10) == (query,)
    assert await rig.store.questions("w", SERVED, 10) == ()
    assert await rig.store.read_answer(query) is None
    await rig.store.answer(query, b'["A-1"]')
    assert await rig.other.read_answer(query) == b'["A-1"]'
    assert await rig.store.detail(lease.run_id) == before


async def test_a_query_of_a_run_nobody_holds_goes_to_any_worker_of_it(rig: Rig) -> None:
    parked = await rig.parked(GO)
    lease = (await rig.started()).lease
    await rig.complete(lease)
    for number, run_id in enumerate((parked, lease.run_id)):
        query = Query(f"q{number}", run_id, "items", b"[]")
        await rig.store.ask(run_id, query, seconds=100)
        assert await rig.other.questions("stranger", [("cart", "2"), ("x", "1")], 10) == ()
        assert await rig.other.questions("stranger", SERVED, 10) == (query,)
        history = await rig.other.history(run_id)
        assert (history.name, history.version) == ("cart", "1")


async def test_a_query_nobody_took_in_time_is_gone(rig: Rig) -> None:
    run_id = await rig.parked(GO)
    await rig.store.ask(run_id, Query("q", run_id, "items", b"[]"), seconds=0)
    assert await rig.store.questions("w", SERVED, 10) == ()


async def test_a_schedule_is_written_by_revision(rig: Rig) -> None:
    plan = Schedule("nightly {x}", "cart", b'{"cron":"0 9 * * *"}', due=1.0)
    assert await rig.store.put_schedule(plan, expected=0)
    assert not await rig.other.put_schedule(replace(plan, due=2.0), expected=0)
    assert await rig.other.read_schedule("nightly {x}") == replace(plan, revision=1)
    assert await rig.store.due_schedules() == [replace(plan, revision=1)]
    fired = replace(plan, due=4e9, last_run="00-x")
    answers = [await rig.store.put_schedule(replace(fired, due=4e9 + n), expected=1) for n in range(3)]
    assert answers == [True, False, False]
    assert await rig.store.due_schedules() == []
    assert await rig.store.schedules() == [replace(fired, revision=2)]
    assert await rig.store.put_schedule(replace(plan, paused=True))
    assert await rig.store.due_schedules() == []
    assert await rig.store.put_schedule(replace(plan, id="b"))
    assert [schedule.id for schedule in await rig.store.schedules()] == ["b", "nightly {x}"]
    assert await rig.store.delete_schedule("b")
    assert not await rig.store.delete_schedule("b")
    assert await rig.store.read_schedule("b") is None
    assert [schedule.id for schedule in await rig.store.due_schedules()] == []


async def test_ten_workers_start_one_run_a_fire_time(rig: Rig) -> None:
    await rig.store.put_schedule(Schedule("s", "cart", b"{}", due=100.0))

    async def fire(number: int) -> None:
        store = (rig.store, rig.other)[number % 2]
        for plan in await store.due_schedules():
            await rig.submit(idempotency_key=f"schedule:{plan.id}:{plan.due}")
            await store.put_schedule(replace(plan, due=4e9), expected=plan.revision)

    await asyncio.gather(*map(fire, range(10)))
    assert len((await rig.store.claim("w", SERVED, 10)).runs) == 1


@pytest.mark.parametrize("change", [{"due": 4e9}, {"paused": True}], ids=["fired", "paused"])
async def test_a_schedule_that_changes_while_it_is_read_is_not_due(
    server: Server, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    store, other = (ValkeyStore(server.url, namespace=server.namespace, shards=1) for _ in range(2))
    plan = Schedule("s", "cart", b"{}", due=100.0)
    await store.put_schedule(plan)
    funnel: Any = store._runs.funnel
    ask = funnel.ask

    async def overtaken(command: bytes, *arguments: Any) -> Any:
        if command == b"HMGET":
            await other.put_schedule(replace(plan, **change))
        return await ask(command, *arguments)

    monkeypatch.setattr(funnel, "ask", overtaken)
    assert await store.due_schedules() == []
    await asyncio.gather(store.close(), other.close())
