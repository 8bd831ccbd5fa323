"""Runs on a server that is cut off, forgets its scripts, or loses its answers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.messages import Applied, Change, Message, Wait
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.proxy import Proxy
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.waiting import wait_until_async


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
async def rig(proxy: Proxy, server: Server) -> AsyncIterator[Rig]:
    """`store` is behind the proxy and quick to give up on an answer, `other` isn't."""
    far = ValkeyStore(proxy.url, namespace=server.namespace, shards=1, timeout=0.25, retry_for=60)
    near = ValkeyStore(server.url, namespace=server.namespace, shards=1)
    await asyncio.gather(far.open(), near.open())
    yield Rig(far, near)
    proxy.requests = proxy.replies = "pass"
    proxy.refuse = False
    await asyncio.gather(far.close(), near.close())


async def live(rig: Rig, number: int) -> str:
    """One run's life, with each call that a client and a worker make."""
    store, name = rig.store, f"run{number}"
    served = [(name, "1")]
    run_id = await rig.submit(name, idempotency_key="k", message=Message("signal", "s0", "go"))
    assert await rig.submit(name, idempotency_key="k") == run_id
    claimed = (await rig.claim("w", served)).lease
    await store.append(claimed, Change(1, seen=1, rows=[(0, b"a")], consumed=[1], events=[b'["a",1,{}]']))
    await store.deliver(run_id, Message("update", "u", "add"))
    (unread,) = await store.unread(claimed, 1)
    await store.append(claimed, Change(2, 2, consumed=[unread.number], applied=[Applied("u", "ok", b"1")]))
    assert (await store.park(claimed, Change(3, 2, rows=[(1, b"b")]), [Wait("signal", "go")])).parked
    await store.deliver(run_id, Message("signal", "s1", "go"))
    again = await rig.claim("w", served)
    assert again.rows == ((0, b"a"), (1, b"b"))
    assert [unread.number for unread in again.messages] == [3]
    await rig.complete(again.lease)
    return run_id


async def test_every_call_survives_lost_answers_and_cut_connections(rig: Rig, proxy: Proxy) -> None:
    async def trouble() -> None:
        while True:
            for fault in ("lose", "cut"):
                await asyncio.sleep(0.03)
                proxy.replies = fault
                await asyncio.sleep(0.03)
                proxy.replies = "pass"
                proxy.cut()
                # a slow machine gets on, too
                passed = proxy.passed_replies
                await wait_until_async(lambda passed=passed: proxy.passed_replies > passed + 5, description="answers")

    troubling = asyncio.create_task(trouble())
    try:
        lives = await asyncio.gather(*(live(rig, number) for number in range(20)))
    finally:
        troubling.cancel()
        await asyncio.gather(troubling, return_exceptions=True)
    assert proxy.lost_replies > 0
    for run_id in lives:
        assert await rig.other.status(run_id) == "completed"
        assert len(await rig.other.events(run_id)) == 2
        assert (await rig.other.history(run_id)).rows == ((0, b"a"), (1, b"b"))
    assert [suspect.worker for suspect in await rig.other.beats()] == ["w"]
    assert await rig.die() == 0


async def test_forgotten_scripts_are_loaded_again(rig: Rig, server: Server) -> None:
    async def forget() -> None:
        while True:
            await server.call("SCRIPT", "FLUSH")
            await asyncio.sleep(0.005)

    forgetting = asyncio.create_task(forget())
    try:
        lives = await asyncio.gather(*(live(rig, number) for number in range(20)))
    finally:
        forgetting.cancel()
        await asyncio.gather(forgetting, return_exceptions=True)
    assert {await rig.other.status(run_id) for run_id in lives} == {"completed"}


async def test_a_server_that_is_away_too_long_is_said_so(rig: Rig, proxy: Proxy) -> None:
    run_id = await rig.submit()
    short = ValkeyStore(proxy.url, namespace=rig.other.namespace, shards=1, timeout=0.2, retry_for=0.3)
    await short.open()
    proxy.refuse = True
    proxy.cut()
    answers = await asyncio.gather(*(short.status(run_id) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    proxy.refuse = False
    assert await short.status(run_id) == "queued"
    await short.close()


async def test_wake_ups_come_again_after_a_cut(rig: Rig, proxy: Proxy) -> None:
    calls: list[str] = []
    listening = rig.store.on_ready(lambda: calls.append("x"))
    await wait_until_async(lambda: calls, description="the subscription")
    proxy.cut()
    before = len(calls)
    # whoever listens is told to look, since something may have been missed
    await wait_until_async(lambda: len(calls) > before, description="the subscription made anew")
    before = len(calls)
    await rig.other.claim("w", SERVED, 1)
    submission = rig.submission()
    await rig.other.submit(submission)
    await wait_until_async(lambda: len(calls) > before, description="word of a queued run")
    listening.close()


async def test_concurrent_calls_share_round_trips(rig: Rig, server: Server) -> None:
    runs = await asyncio.gather(*(rig.submit() for _ in range(100)))
    async with Proxy(server.url) as counter:
        store = ValkeyStore(counter.url, namespace=server.namespace, shards=1)
        await store.open()
        before = counter.passed_requests
        statuses = await asyncio.gather(*(store.status(run_id) for run_id in runs))
        reads = counter.passed_requests - before
        await store.close()
    assert set(statuses) == {"queued"}
    assert reads < 20
