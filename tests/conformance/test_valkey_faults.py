"""ValkeyStore over connections that break and a server that forgets, refuses or is away."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows.errors import ConfigurationError, LeaseLost, StoreError, StoreUnavailable
from pyrula.workflows.group_commit import GroupCommit, SourceQueue
from pyrula.workflows.store.port import Batch, Row, Token
from pyrula.workflows.store.valkey import ValkeyStore, keys
from tests.conformance.proxy import Proxy, wait_until
from tests.conformance.server import Server
from tests.services.valkey import ValkeyServer

SOURCE = bytes(range(16))
NEIGHBOUR = bytes(range(1, 17))


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: Proxy, server: Server) -> AsyncIterator[ValkeyStore]:
    """A store behind the proxy, quick to give up on an answer."""
    store = ValkeyStore(proxy.url, namespace=server.namespace, timeout=0.25, retry_for=60)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def own_store(own_server: Server) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(own_server.url, namespace=own_server.namespace, retry_for=60)
    await store.open()
    yield store
    await store.close()


def batch(token: Token, *rows: tuple[int, int, bytes], source: bytes = SOURCE) -> Batch:
    return Batch(source, token, rows, max((row[0] for row in rows), default=0))


async def heal(proxy: Proxy, after: float = 0.4) -> None:
    await asyncio.sleep(after)
    proxy.requests = proxy.replies = "pass"
    proxy.refuse = False


async def test_an_idle_connection_that_was_cut_costs_nothing_but_a_new_one(far: ValkeyStore, proxy: Proxy) -> None:
    token = (await far.claim_source(SOURCE, 1)).token
    assert await far.append_rows([batch(token, (1, 0, b"a"))]) == [None]
    for number in range(5):
        proxy.cut()
        assert await far.append_rows([batch(token, (2, number, b"b"))]) == [None]
        proxy.cut()
        await far.prune_source(SOURCE, token, 1, None)
    assert len((await far.claim_source(SOURCE, 1)).rows) == 6


@pytest.mark.parametrize("fault", ["lose requests", "lose replies", "cut replies", "refuse"])
async def test_every_call_is_ridden_through_a_fault_and_takes_effect_once(
    far: ValkeyStore, proxy: Proxy, fault: str
) -> None:
    async def faulty(call: str) -> None:
        if fault == "refuse":
            proxy.refuse = True
            proxy.cut()
        else:
            kind, _, what = fault.partition(" ")
            setattr(proxy, what, kind)
        healing = asyncio.create_task(heal(proxy))
        await calls[call]()
        await healing

    async def append() -> None:
        rows = [(5, 0, b"a"), (5, 1, b"b"), (5, 0, b""), (6, 0, b"c")]
        # what the store itself gives up on, group commit goes on with
        while True:
            with contextlib.suppress(StoreUnavailable):
                assert await far.append_rows([batch(token, *rows)]) == [None]
                return

    async def claim() -> None:
        nonlocal token
        found = await far.claim_source(SOURCE, 2)
        assert (found.crashes, found.rows) == (0, [Row(5, 1, b"b"), Row(6, 0, b"c")])
        token = found.token

    async def prune() -> None:
        await far.prune_source(SOURCE, token, 6, b"log")

    async def lower() -> None:
        await far.lower_source(SOURCE, token, 4)

    async def refresh() -> None:
        await far.refresh_source(SOURCE, token)

    async def release() -> None:
        await far.release_source(SOURCE, token)

    calls = {"append": append, "claim": claim, "prune": prune, "lower": lower, "refresh": refresh, "release": release}
    token = (await far.claim_source(SOURCE, 1)).token
    for name in calls:
        await faulty(name)
    claim_after = await far.claim_source(SOURCE, 3)
    assert (claim_after.below, claim_after.witness, claim_after.rows) == (4, b"log", [Row(6, 0, b"c")])


async def test_a_claim_whose_answer_was_lost_counts_one_crash(
    far: ValkeyStore, proxy: Proxy, valkey_store: ValkeyStore
) -> None:
    await valkey_store.claim_source(SOURCE, 1)
    await far.claim_source(NEIGHBOUR, 1)
    proxy.replies = "lose"
    claiming = asyncio.create_task(far.claim_source(SOURCE, 2))
    await wait_until(lambda: proxy.lost_replies >= 2, "two answers to be lost")
    proxy.replies = "pass"
    claim = await claiming
    assert claim.crashes == 1


async def test_a_claim_by_replacement_whose_answer_was_lost_raises_the_incarnation_once(
    far: ValkeyStore, proxy: Proxy, valkey_store: ValkeyStore
) -> None:
    stored = (await valkey_store.claim_source(SOURCE, 9)).token
    await far.claim_source(NEIGHBOUR, 1)
    proxy.replies = "lose"
    claiming = asyncio.create_task(far.claim_source(SOURCE, 2, replaces=stored))
    await wait_until(lambda: proxy.lost_replies >= 2, "two answers to be lost")
    proxy.replies = "pass"
    claim = await claiming
    assert claim.token == Token(2, 2)


async def test_a_flush_that_arrives_after_its_second_sending_changes_nothing(far: ValkeyStore, proxy: Proxy) -> None:
    """The first sending waits in the network while the second is answered and later rows replace its rows."""
    token = (await far.claim_source(SOURCE, 1)).token
    assert await far.append_rows([batch(token, (1, 0, b"begin"))]) == [None]
    proxy.requests = "hold"
    sending = asyncio.create_task(far.append_rows([batch(token, (1, 1, b"error"), (1, 2, b"more"))]))
    await wait_until(lambda: proxy.held, "the first sending is held")
    held, proxy.held = proxy.held, []
    proxy.requests = "pass"
    assert await sending == [None]
    # a retry: the error goes, another row takes its place
    assert await far.append_rows([batch(token, (1, 1, b""), (1, 2, b""), (1, 1, b"value"))]) == [None]
    proxy.held = held
    await proxy.release()
    # the server has read the late copy when it closes that connection
    await asyncio.sleep(0.1)
    assert (await far.claim_source(SOURCE, 1)).rows == [Row(1, 0, b"begin"), Row(1, 1, b"value")]


async def test_a_claim_that_arrives_after_its_second_sending_undoes_no_release(
    far: ValkeyStore, proxy: Proxy, valkey_store: ValkeyStore
) -> None:
    await far.claim_source(NEIGHBOUR, 1)
    proxy.requests = "hold"
    claiming = asyncio.create_task(far.claim_source(SOURCE, 1))
    await wait_until(lambda: proxy.held, "the first sending is held")
    held, proxy.held = proxy.held, []
    proxy.requests = "pass"
    await far.release_source(SOURCE, (await claiming).token)
    proxy.held = held
    await proxy.release()
    await asyncio.sleep(0.1)
    assert (await valkey_store.claim_source(SOURCE, 2)).crashes == 0


async def test_a_pipeline_cut_anywhere_in_its_replies_is_sent_again_whole(far: ValkeyStore, proxy: Proxy) -> None:
    token = (await far.claim_source(SOURCE, 1)).token
    other = (await far.claim_source(NEIGHBOUR, 1)).token
    written = 0
    for cut_after in (1, 3, 4, 5, 9, 12):
        written += 1
        proxy.cut_after = cut_after
        batches = [batch(token, (written, number, b"x")) for number in range(3)]
        batches.append(batch(other, (written, 0, b"y"), source=NEIGHBOUR))
        assert await far.append_rows(batches) == [None] * 4
        assert proxy.cut_after is None
    assert len((await far.claim_source(SOURCE, 1)).rows) == 3 * written
    assert len((await far.claim_source(NEIGHBOUR, 1)).rows) == written


async def test_unavailable_after_the_patience_and_well_again_after_the_outage(far: ValkeyStore, proxy: Proxy) -> None:
    token = (await far.claim_source(SOURCE, 1)).token
    far._session._patience = 0.3
    proxy.refuse = True
    proxy.cut()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await far.prune_source(SOURCE, token, 1, None)
    proxy.refuse = False
    await far.prune_source(SOURCE, token, 1, None)


async def test_a_cancelled_call_leaves_no_reply_to_another(far: ValkeyStore, proxy: Proxy) -> None:
    token = (await far.claim_source(SOURCE, 1)).token
    await far.append_rows([batch(token)])  # both connections stand
    proxy.replies = "lose"
    flush = asyncio.create_task(far.append_rows([batch(token, (1, 0, b"x"))]))
    prune = asyncio.create_task(far.prune_source(SOURCE, token, 1, None))
    await wait_until(lambda: proxy.lost_replies >= 2, "both requests were answered")
    for task in (flush, prune):
        task.cancel()
    await asyncio.gather(flush, prune, return_exceptions=True)
    proxy.replies = "pass"
    assert await far.append_rows([batch(Token(9, 9)), batch(token, (2, 0, b"y"))]) != [None, None]
    assert (await far.claim_source(SOURCE, 1)).rows == [Row(1, 0, b"x"), Row(2, 0, b"y")]


async def test_an_outage_of_the_store_is_ridden_out_by_group_commit(far: ValkeyStore, proxy: Proxy) -> None:
    """20 runs journal 60 rows each while the connection is cut, loses replies and is refused for some seconds."""
    token = (await far.claim_source(SOURCE, 1)).token
    outages: list[float | None] = []
    commit = GroupCommit(far.append_rows, on_outage=lambda since, _: outages.append(since))
    queue = commit.lane(SOURCE, token)

    async def run(position: int) -> None:
        for index in range(60):
            await queue.add(position, index, b"%d.%d" % (position, index)).wait()
            await asyncio.sleep(0.01)

    async def trouble() -> None:
        for _ in range(3):
            await asyncio.sleep(0.1)
            proxy.cut()
            await asyncio.sleep(0.1)
            proxy.replies = "lose"
            await asyncio.sleep(0.3)
            proxy.replies = "pass"
        proxy.refuse = True
        proxy.cut()
        await wait_until(lambda: commit.outage is not None, "the outage shows")
        proxy.refuse = False

    await asyncio.gather(trouble(), *(run(position) for position in range(20)))
    assert commit.outage is None
    assert outages[0] is not None
    assert outages[-1] is None
    await commit.close()
    rows = (await far.claim_source(SOURCE, 1)).rows
    assert rows == [Row(p, i, b"%d.%d" % (p, i)) for p in range(20) for i in range(60)]


async def test_a_script_cache_flushed_all_the_time_loses_and_doubles_nothing(
    own_store: ValkeyStore, own_server: Server
) -> None:
    commit = GroupCommit(own_store.append_rows, max_rows=50)
    queues: dict[bytes, SourceQueue] = {}
    for source in (SOURCE, NEIGHBOUR):
        queues[source] = commit.lane(source, (await own_store.claim_source(source, 1)).token)
    flushed, stopping = 0, False

    async def flush_scripts() -> None:
        # told by a flag: redis-py may swallow a cancellation
        nonlocal flushed
        while not stopping:
            await own_server.call("SCRIPT", "FLUSH")
            flushed += 1
            await asyncio.sleep(0.005)

    async def run(queue: SourceQueue, position: int) -> None:
        for index in range(0, 100, 4):
            for extra in range(4):
                flush = queue.add(position, index + extra, b"%d" % index)
            await flush.wait()

    flushing = asyncio.create_task(flush_scripts())
    await asyncio.gather(*(run(queue, position) for queue in queues.values() for position in range(100)))
    stopping = True
    await flushing
    await commit.close()
    for source in queues:
        rows = (await own_store.claim_source(source, 1)).rows
        assert rows == [Row(p, i, b"%d" % (i // 4 * 4)) for p in range(100) for i in range(100)]
    assert flushed > 3


async def test_scripts_are_loaded_again_one_by_one(valkey_store: ValkeyStore, server: Server) -> None:
    token = (await valkey_store.claim_source(SOURCE, 1)).token
    for call in (
        lambda: valkey_store.append_rows([batch(token, (5, 0, b"x")), batch(token, (5, 1, b"y"))]),
        lambda: valkey_store.prune_source(SOURCE, token, 5, None),
        lambda: valkey_store.lower_source(SOURCE, token, 5),
        lambda: valkey_store.refresh_source(SOURCE, token),
        lambda: valkey_store.release_source(SOURCE, token),
        lambda: valkey_store.claim_source(SOURCE, 1),
    ):
        await server.call("SCRIPT", "FLUSH")
        await call()
    assert len((await valkey_store.claim_source(SOURCE, 1)).rows) == 2


async def test_a_restart_of_the_server_is_ridden_out(
    own_store: ValkeyStore, own_server: Server, own_valkey: ValkeyServer
) -> None:
    """Without an append-only file it comes back empty: loud, and every token is lost."""
    instance = own_store.instance_id
    token = (await own_store.claim_source(SOURCE, 1)).token
    await asyncio.to_thread(own_valkey.kill)
    appending = asyncio.create_task(own_store.append_rows([batch(token, (1, 0, b"x"))]))
    await asyncio.to_thread(own_valkey.restart)
    (lost,) = await appending
    assert isinstance(lost, LeaseLost)
    assert await own_store.claim_source(SOURCE, 1)
    assert own_store.instance_id != instance


async def test_an_emptied_store_is_loud(
    valkey_store: ValkeyStore, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await valkey_store.claim_source(SOURCE, 1)
    before = valkey_store.instance_id
    await server.clear()
    claim = await valkey_store.claim_source(SOURCE, 1)
    assert claim.rows == []
    assert valkey_store.instance_id != before
    assert [record.levelno for record in caplog.records if "was emptied" in record.message] == [logging.ERROR]


async def test_a_server_at_its_memory_limit_says_so_and_nothing_is_half_written(
    own_store: ValkeyStore, own_server: Server
) -> None:
    # it is told at once, not after retry_for
    own_store._session._patience = 3600
    token = (await own_store.claim_source(SOURCE, 1)).token
    assert await own_store.append_rows([batch(token, (1, 0, b"x"), (2, 0, b"y"))]) == [None]
    await own_server.call("CONFIG", "SET", "maxmemory", "1mb")
    before = await own_server.hash(keys.source_keys(own_server.namespace, 16, SOURCE)[0])
    try:
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match=r"memory limit.*raise maxmemory"):
                await own_store.append_rows([batch(token, (1, 0, b""), (3, 0, b"z"))])
            with pytest.raises(StoreUnavailable, match="memory limit"):
                await own_store.claim_source(SOURCE, 2)
        assert await own_server.hash(keys.source_keys(own_server.namespace, 16, SOURCE)[0]) == before
        # what frees memory still works
        await own_store.prune_source(SOURCE, token, 2, None)
        await own_store.release_source(SOURCE, token)
    finally:
        await own_server.call("CONFIG", "SET", "maxmemory", "0")
    assert (await own_store.claim_source(SOURCE, 1)).rows == [Row(2, 0, b"y")]


async def test_group_commit_waits_for_memory_and_goes_on(own_store: ValkeyStore, own_server: Server) -> None:
    commit = GroupCommit(own_store.append_rows)
    queue = commit.lane(SOURCE, (await own_store.claim_source(SOURCE, 1)).token)
    await own_server.call("CONFIG", "SET", "maxmemory", "1mb")
    try:
        flush = queue.add(1, 0, b"x")
        await wait_until(lambda: commit.outage is not None, "the outage shows")
        assert "memory limit" in str(commit.outage_error)
    finally:
        await own_server.call("CONFIG", "SET", "maxmemory", "0")
    await flush.wait()
    assert commit.outage is None
    await commit.close()


async def test_a_primary_that_becomes_a_replica_and_comes_back(own_store: ValkeyStore, own_server: Server) -> None:
    token = (await own_store.claim_source(SOURCE, 1)).token
    await own_server.call("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailable, match="read-only replica"):
            await own_store.append_rows([batch(token, (1, 0, b"x"))])
        calls = [
            asyncio.create_task(own_store.append_rows([batch(token, (1, 0, b"y"))])),
            asyncio.create_task(own_store.prune_source(SOURCE, token, 1, None)),
            asyncio.create_task(own_store.open()),
        ]
        await asyncio.sleep(0.3)
    finally:
        await own_server.call("REPLICAOF", "NO", "ONE")
    answers = await asyncio.gather(*calls)
    assert answers == [[None], None, None]


async def test_a_busy_or_misconfigured_server_is_waited_for(own_store: ValkeyStore, own_server: Server) -> None:
    token = (await own_store.claim_source(SOURCE, 1)).token
    await own_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        pruning = asyncio.create_task(own_store.prune_source(SOURCE, token, 1, None))
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            await own_store.append_rows([batch(token, (1, 0, b"x"))])
        assert not pruning.done()
    finally:
        await own_server.call("CONFIG", "SET", "min-replicas-to-write", "0")
    await pruning


async def test_a_command_that_can_never_work_is_an_error_of_its_source_alone(
    valkey_store: ValkeyStore, server: Server
) -> None:
    token, other = [(await valkey_store.claim_source(source, 1)).token for source in (SOURCE, NEIGHBOUR)]
    bucket = keys.source_keys(server.namespace, 16, SOURCE)[1] + b"0"
    await server.call("SET", bucket, "not a hash", "EX", "60")
    refused, written = await valkey_store.append_rows(
        [batch(token, (1, 0, b"x")), batch(other, (1, 0, b"y"), source=NEIGHBOUR)]
    )
    assert isinstance(refused, StoreError)
    assert not isinstance(refused, StoreUnavailable)
    assert "WRONGTYPE" in str(refused)
    assert written is None


async def test_a_user_who_may_not_run_scripts_is_told(own_server: Server) -> None:
    user = own_server.namespace
    await own_server.call("ACL", "SETUSER", user, "on", ">s3cret", "~*", "+@all", "-evalsha")
    try:
        url = own_server.url.replace("://", f"://{user}:s3cret@")
        store = ValkeyStore(url, namespace=own_server.namespace)
        await store.open()
        with pytest.raises(ConfigurationError, match="evalsha") as caught:
            await store.claim_source(SOURCE, 1)
        assert "s3cret" not in str(caught.value)
        answers = await store.append_rows([batch(Token(1, 1), (1, 0, b"x"))])
        assert [type(answer) for answer in answers] == [ConfigurationError]
        await store.close()
    finally:
        await own_server.call("ACL", "DELUSER", user)
