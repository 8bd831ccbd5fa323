"""What stays of a run, and for how long."""

import asyncio

import pytest

from pyrula.workflows.clock import ManualClock
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.messages import Applied, Change, Child, End, Interrupt, Message, Parent, Wait
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import RETENTION_SECONDS, Query, RunStore
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.waiting import wait_until_async

CANCEL = Message("cancel", "cancel")


async def live_through(rig: Rig) -> list[str]:
    """Runs that leave something in every kind of key."""
    lease = (await rig.started(idempotency_key="k", owner="o")).lease
    run_id = lease.run_id
    await rig.signal(run_id)
    await rig.store.deliver(run_id, Message("update", "u", "add"))
    child = await rig.submit("child", parent=Parent(run_id, "c"))
    change = Change(
        1,
        seen=2,
        rows=[(0, b"a")],
        consumed=[2],
        applied=[Applied("u", "ok", b"1")],
        opened=[Interrupt("i", b"1")],
        children=[Child(child)],
        events=[b'["started",1.0,{}]'],
    )
    await rig.store.append(lease, change)
    link = (await rig.store.finish(lease, Change(2), End("continued_as_new", params=b"{}"))).next
    assert link is not None
    await rig.store.append(link.lease, Change(1, rows=[(0, b"b")], opened=[Interrupt("j", b"1")]))
    query = Query("q", run_id, "items", b"[]")
    await rig.store.ask(run_id, query, seconds=100)
    await rig.store.questions("w", SERVED, 1)
    await rig.store.answer(query, b"1")
    await rig.complete(link.lease, 2)
    failed = (await rig.started(owner="o2")).lease
    await rig.store.finish(failed, Change(1), End("failed", error=b'"x"'))
    cancelled = await rig.submit(idempotency_key="k2")
    await rig.store.deliver(cancelled, CANCEL)
    await rig.store.leave("w")
    return [run_id, child, failed.run_id, cancelled]


async def test_all_keys_of_finished_runs_have_the_retention(server: Server) -> None:
    store, other = (ValkeyStore(server.url, namespace=server.namespace, shards=1) for _ in range(2))
    await asyncio.gather(store.open(), other.open())
    runs = await live_through(Rig(store, other))
    assert [await store.status(run_id) for run_id in runs] == ["completed", "cancelled", "failed", "cancelled"]
    tag = b"{%b" % server.namespace.encode()
    assert await server.keys_without_ttl() == {tag + b"}meta", tag + b":0}meta", tag + b":0}list"}
    lives = [await server.call("TTL", key) for key in await server.keys() if not key.endswith(b"list")]
    assert max(lives) <= RETENTION_SECONDS
    assert sorted(lives)[len(lives) // 2] > RETENTION_SECONDS - 100
    await store.retry(runs[2])
    lasting = await server.keys_without_ttl()
    assert any(runs[2].encode() in key for key in lasting)
    await asyncio.gather(store.close(), other.close())


async def test_after_retention_nothing_is_left_but_counters(server: Server) -> None:
    store, other = (ValkeyStore(server.url, namespace=server.namespace, shards=1) for _ in range(2))
    await asyncio.gather(store.open(), other.open())
    store._runs.retention = other._runs.retention = 1.0
    runs = await live_through(Rig(store, other))
    tag = b"{%b" % server.namespace.encode()
    expected = {tag + b"}meta", tag + b":0}meta"}

    async def gone() -> bool:
        # what listings know goes with a worker's visits
        await store.claim("w", SERVED, 1)
        await store.leave("w")
        # an answer to a query lives for a minute
        return {key for key in await server.keys() if b"}a:" not in key} == expected

    await wait_until_async(gone, description="the keys of finished runs to go")
    for run_id in runs:
        with pytest.raises(RunNotFoundError):
            await store.status(run_id)
    rig = Rig(store, other)
    assert await rig.submit(idempotency_key="k") != runs[0]
    await asyncio.gather(store.close(), other.close())


async def test_memory_forgets_after_retention() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    rig = Rig(store, store.twin())
    runs = await live_through(rig)
    kept = await rig.parked(Wait("signal", "go"))
    clock.advance(RETENTION_SECONDS - 1)
    await store.history(runs[0])
    assert await rig.submit(idempotency_key="k") == runs[0]
    clock.advance(2)
    for run_id in runs:
        with pytest.raises(RunNotFoundError):
            await store.status(run_id)
    assert await store.status(kept) == "signal_waiting"
    assert set(store._board.chains) == {kept}
    assert store._board.keys == {}
    assert await rig.submit(idempotency_key="k") != runs[0]


async def test_memory_retries_what_would_have_gone() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    rig = Rig(store, store.twin())
    lease = (await rig.started()).lease
    await store.finish(lease, Change(1), End("failed", error=b'"x"'))
    clock.advance(RETENTION_SECONDS - 1)
    await store.retry(lease.run_id)
    clock.advance(RETENTION_SECONDS)
    assert await store.status(lease.run_id) == "queued"
    await rig.complete((await rig.claim()).lease)
    clock.advance(RETENTION_SECONDS - 1)
    assert await store.status(lease.run_id) == "completed"


async def test_an_update_id_is_forgotten_a_retention_after_it_was_applied() -> None:
    clock = ManualClock()
    store: RunStore = MemoryStore(clock)
    rig = Rig(store, store)
    lease = (await rig.started()).lease
    update = Message("update", "u", "add")
    await store.deliver(lease.run_id, update)
    await store.append(lease, Change(1, seen=1, consumed=[1], applied=[Applied("u", "ok", b"1")]))
    clock.advance(RETENTION_SECONDS - 1)
    assert (await store.deliver(lease.run_id, update)).duplicate
    clock.advance(2)
    await rig.signal(lease.run_id)
    await store.append(lease, Change(2, seen=2, consumed=[2]))
    assert not (await store.deliver(lease.run_id, update)).duplicate


async def test_timers_fire_by_the_clock_of_the_memory_store() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    rig = Rig(store, store)
    month = 30 * 24 * 3600.0
    first = await rig.parked(Wait("sleep", deadline=store.now() + month))
    second = await rig.parked(Wait("sleep", deadline=store.now() + month / 2))
    assert await store.next_due() == store.now() + month / 2
    clock.advance(month / 2 - 1)
    await rig.nothing()
    clock.advance(1)
    assert (await rig.claim()).lease.run_id == second
    clock.advance(month / 2)
    assert (await rig.claim()).lease.run_id == first
    assert await store.next_due() is None
