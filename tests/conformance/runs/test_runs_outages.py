"""Submitted runs on a server that is full, was emptied, is a replica for a while, or loads its file."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows import WorkerOptions, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.errors import LeaseLost, StoreUnavailable
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import Wanted
from pyrula.workflows.store.messages import Change, Message, Wait
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until_async

BIG = b'"' + b"x" * 100_000 + b'"'


@workflow(name="outages_echo")
async def echo(ctx: object, text: str) -> str:
    return text


@pytest.fixture
async def own(own_valkey: ValkeyServer, namespace: str) -> AsyncIterator[Server]:
    """A server whose settings a test may change, without the check for keys that last: some of these are to."""
    server = Server(own_valkey.url, namespace)
    yield server
    await server.call("CONFIG", "SET", "maxmemory", "0")
    await server.clear()
    await server.close()


@pytest.fixture
async def rig(own: Server) -> AsyncIterator[Rig]:
    store, other = (ValkeyStore(own.url, namespace=own.namespace, shards=1, retry_for=20) for _ in range(2))
    await asyncio.gather(store.open(), other.open())
    yield Rig(store, other)
    await asyncio.gather(store.close(), other.close())


async def test_a_full_server_refuses_whole_submissions_and_lets_runs_end(rig: Rig, own: Server) -> None:
    held = await rig.started()
    parked = await rig.submit("other")
    used = (await own._client.info("memory"))["used_memory"]
    await own.call("CONFIG", "SET", "maxmemory", str(used + 3_000_000))
    made, refused = [parked, held.lease.run_id], []
    for _ in range(60):
        submission = rig.submission(params=BIG, message=Message("signal", "s", "go", BIG))
        try:
            made.append((await rig.store.submit(submission)).run_id)
        except StoreUnavailable as error:
            assert "memory limit" in str(error)  # noqa: PT017 - some get through
            refused.append(submission.run_id)
    assert len(made) > 5
    assert len(refused) > 20
    for run_id in refused:
        assert await own.call("EXISTS", *[b"{%b:0}%b:%b" % (own.namespace.encode(), kind, run_id.encode())
                                          for kind in (b"r", b"e", b"m", b"u")]) == 0  # fmt: skip
        with pytest.raises(RunNotFoundError):
            await rig.store.status(run_id)
    counts = dict((await rig.other.count_runs()).by_status)
    assert counts == {"queued": len(made) - 1, "running": 1}
    # from here on nothing more gets through by chance
    await own.call("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(StoreUnavailable, match="memory limit"):
        await rig.store.claim("w", SERVED, 1)
    with pytest.raises(StoreUnavailable, match="memory limit"):
        await rig.signal(parked, payload=BIG)
    # who holds a run may end it and beat
    assert (await rig.store.heartbeat("w", {held.lease: 0})).lost == ()
    await rig.complete(held.lease)
    assert await rig.store.status(held.lease.run_id) == "completed"
    await own.call("CONFIG", "SET", "maxmemory", "0")
    taken = [run.lease for run in (await rig.store.claim("w", SERVED, 100)).runs]
    assert {lease.run_id for lease in taken} == set(made[2:])
    for lease in taken:
        await rig.complete(lease)
    assert dict((await rig.other.count_runs()).by_status) == {"queued": 1, "completed": len(made) - 1}


async def test_calls_wait_for_a_replica_to_be_promoted(rig: Rig, own: Server) -> None:
    claimed = await rig.started()
    await own.call("REPLICAOF", "127.0.0.1", "1")
    try:
        calls = [
            asyncio.create_task(rig.store.append(claimed.lease, Change(1, rows=[(0, b"a")]))),
            asyncio.create_task(rig.other.submit(rig.submission())),
            asyncio.create_task(rig.other.heartbeat("w2", {})),
        ]
        await asyncio.sleep(0.3)
        assert not any(call.done() for call in calls)
        impatient = ValkeyStore(own.url, namespace=own.namespace, shards=1, retry_for=0.3)
        with pytest.raises(StoreUnavailable, match="replica"):
            await impatient.submit(rig.submission())
        await impatient.close()
    finally:
        await own.call("REPLICAOF", "NO", "ONE")
    await asyncio.gather(*calls)
    assert (await rig.store.history(claimed.lease.run_id)).rows == ((0, b"a"),)
    assert dict((await rig.other.count_runs()).by_status) == {"queued": 1, "running": 1}


async def test_calls_wait_while_the_server_loads_its_file(namespace: str) -> None:
    # a microsecond's pause for each key makes loading last
    with ValkeyServer(appendonly=True, appendfsync="no", settings={"key-load-delay": "700"}) as valkey:
        store = ValkeyStore(valkey.url, namespace=namespace, shards=1, retry_for=30)
        await store.open()
        rig = Rig(store, store)
        runs = await asyncio.gather(*(rig.submit(params=b'{"a":1}') for _ in range(700)))
        claimed = await rig.claim()
        await asyncio.to_thread(valkey.kill)
        starting = asyncio.create_task(asyncio.to_thread(valkey.start))
        calls = [
            asyncio.create_task(store.append(claimed.lease, Change(1, rows=[(0, b"a")]))),
            asyncio.create_task(store.count_runs()),
        ]
        impatient = ValkeyStore(valkey.url, namespace=namespace, shards=1, retry_for=0)
        told: list[str] = []

        async def refused() -> bool:
            try:
                await impatient.count_runs()
            except StoreUnavailable as error:
                told.append(str(error))
            return any("loading" in text.lower() for text in told)

        await wait_until_async(refused, description="the server to say that it is loading")
        await starting
        _, counts = await asyncio.gather(*calls)
        assert dict(counts.by_status) == {"queued": len(runs) - 1, "running": 1}
        await asyncio.gather(store.close(), impatient.close())


async def test_a_server_that_was_emptied_is_told_loudly_and_works_again(
    own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def store() -> ValkeyStore:
        return ValkeyStore(own.url, namespace=own.namespace, shards=4)

    holder = store()
    await holder.open()
    rig = Rig(holder, holder)
    claimed = await rig.started()
    lost = await rig.parked(Wait("signal", "go"))
    options = WorkerOptions(claim_poll_interval=0.1, heartbeat_interval=0.2, lease_seconds=6)
    worker = WorkflowWorker([echo], store=store(), options=options)
    working = asyncio.create_task(worker.run())
    async with WorkflowClient(store(), poll_interval=0.1) as client:
        before = await client.submit(echo, {"text": "before"})
        assert await before.result(timeout=180) == "before"
        instance = holder.instance_id
        await own.call("FLUSHALL")
        with pytest.raises(LeaseLost):
            await holder.append(claimed.lease, Change(1, rows=[(0, b"a")]))
        for run_id in (lost, before.run_id):
            with pytest.raises(RunNotFoundError):
                await client.status("any", run_id)
        assert (await holder.heartbeat("w", {claimed.lease: 0})).lost == (claimed.lease,)
        assert holder.instance_id != instance
        assert any("was emptied" in record.message for record in caplog.records if record.levelno == logging.ERROR)
        after = await client.submit(echo, {"text": "after"})
        assert await after.result(timeout=180) == "after"
        other = ValkeyStore(own.url, namespace=own.namespace, shards=8)
        with pytest.raises(Exception, match="has 4 shards"):
            await other.open()
        await other.close()
        page = await holder.list_runs(Wanted(statuses=frozenset({RunStatus.COMPLETED})))
        assert [line.run_id for line in page.runs] == [after.run_id]
    worker.stop()
    await working
    await holder.leave("w")
    await holder.close()
