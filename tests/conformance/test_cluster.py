"""A cluster that changes under load: slots that move, masters that hand over, masters that die."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from pyrula.workflows.errors import LeaseLost, StoreUnavailable
from pyrula.workflows.store.messages import Applied, Change, End, Message, Wait
from pyrula.workflows.store.port import Batch, Row
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import ClaimedRun, Submission
from pyrula.workflows.store.valkey import ValkeyStore
from pyrula.workflows.store.valkey.run_keys import tag
from pyrula.workflows.store.valkey.topology import slot_of
from tests.services.child import ServiceUnavailable
from tests.services.valkey_cluster import ClusterNode, ValkeyCluster
from tests.services.waiting import wait_until, wait_until_async

SHARDS = 6


@pytest.fixture(scope="module")
def twofold() -> Iterator[ValkeyCluster]:
    """Three masters with a replica each."""
    try:
        with ValkeyCluster(replicas=1, appendonly=True, node_timeout=4) as cluster:
            yield cluster
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


def slot_of_shard(store: ValkeyStore, shard: int) -> int:
    return slot_of(tag(store.namespace, shard) + b"run")


def errors(cluster: ValkeyCluster, kind: str) -> int:
    """How often the nodes have answered with this."""
    stats = [node.call("INFO", "errorstats") for node in cluster.nodes if node.server.running]
    return sum(int(each.get(f"errorstat_{kind}", {}).get("count", 0)) for each in stats)


class Load:
    """Runs on all shards from submission to end, one after another in each of some lines, and a journal on each shard.

    What was acknowledged is noted with its time."""

    def __init__(self, store: ValkeyStore) -> None:
        self.store = store
        self.ended: dict[str, float] = {}
        self.rows: dict[bytes, dict[Row, float]] = {}
        self.vanished: list[str] = []
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for number in range(2 * SHARDS):
            self._tasks.append(asyncio.create_task(self._runs(number)))
        for shard in range(SHARDS):
            self._tasks.append(asyncio.create_task(self._journal(bytes([*bytes(15), shard]))))

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _runs(self, line: int) -> None:
        number = 0
        while not self._stopping:
            try:
                run_id = await self._live(f"line{line}", line % SHARDS, f"{line}.{number}")
            except (LeaseLost, RunNotFoundError) as error:
                self.vanished.append(str(error))
            else:
                self.ended[run_id] = time.monotonic()
            number += 1
            await asyncio.sleep(0.002)

    async def _live(self, name: str, shard: int, key: str) -> str:
        store = self.store
        made = store.new_run_id(name=name)
        run_id = f"{shard:02x}{made[2:]}"
        again = Submission(run_id, name, version="1", message=Message("signal", "s0", "go"))
        assert (await store.submit(again)).run_id == run_id
        claimed = await self._claim(name, run_id)
        lease = claimed.lease
        await store.append(lease, Change(1, 1, rows=[(0, b"a")], consumed=[1], events=[b'["a",1,{}]']))
        await store.deliver(run_id, Message("update", "u", "add"))
        (unread,) = await store.unread(lease, 1)
        await store.append(lease, Change(2, 2, consumed=[unread.number], applied=[Applied("u", "ok", b"1")]))
        assert (await store.park(lease, Change(3, 2, rows=[(1, b"b")]), [Wait("signal", "go")])).parked
        await store.deliver(run_id, Message("signal", "s1", "go"))
        claimed = await self._claim(name, run_id)
        assert claimed.rows == ((0, b"a"), (1, b"b"))
        assert [unread.message.id for unread in claimed.messages] == ["s1"]
        await store.finish(claimed.lease, Change(1, 3, consumed=[3]), End("completed", b"1"))
        return run_id

    async def _claim(self, name: str, run_id: str) -> ClaimedRun:
        """Each line has a class of its own, so nobody else takes its run."""
        async with asyncio.timeout(60):
            while True:
                for run in (await self.store.claim(name, [(name, "1")], 1)).runs:
                    if run.lease.run_id == run_id:
                        return run
                await self.store.status(run_id)
                await asyncio.sleep(0.01)

    async def _journal(self, source: bytes) -> None:
        token = (await self.store.claim_source(source, 1)).token
        rows = self.rows.setdefault(source, {})
        number = 0
        while not self._stopping:
            row = Row(number, 0, b"%d" % number)
            # what the store itself gives up on, group commit goes on with
            with suppress(StoreUnavailable):
                (answer,) = await self.store.append_rows([Batch(source, token, [row], number)])
                if isinstance(answer, LeaseLost):
                    self.vanished.append(str(answer))
                    return
                assert answer is None
                rows[row] = time.monotonic()
                number += 1
            await asyncio.sleep(0.005)

    async def check(self, forgiven: tuple[float, float] = (0.0, 0.0)) -> int:
        """All that was acknowledged is there, but for what was within the time forgiven. How much is missing."""
        missing = [run_id for run_id in self.ended if not await self._whole(run_id)]
        lost = [self.ended[run_id] for run_id in missing]
        for source, rows in self.rows.items():
            found = set((await self.store.claim_source(source, 1)).rows)
            lost += [at for row, at in rows.items() if row not in found]
        assert all(forgiven[0] <= at <= forgiven[1] for at in lost), (lost, forgiven)
        return len(lost)

    async def _whole(self, run_id: str) -> bool:
        try:
            history = await self.store.history(run_id)
        except RunNotFoundError:
            return False
        kinds = [event[2 : event.index(b'"', 2)] for event in await self.store.events(run_id)]
        return (history.status, history.rows, kinds) == ("completed", ((0, b"a"), (1, b"b")), [b"submitted", b"a"])


@asynccontextmanager
async def loaded(cluster: ValkeyCluster, namespace: str) -> AsyncIterator[Load]:
    store = ValkeyStore(cluster.url, namespace=namespace, shards=SHARDS, timeout=2, retry_for=40)
    await store.open()
    load = Load(store)
    load.start()
    await wait_until_async(lambda: len(load.ended) > 5, description="the load to run")
    try:
        yield load
    finally:
        await store.close()


async def test_slots_move_under_load(twofold: ValkeyCluster, namespace: str) -> None:
    async with loaded(twofold, namespace) as load:
        tried, moved = errors(twofold, "TRYAGAIN"), errors(twofold, "MOVED")
        for shard in (0, 3):
            slot = slot_of_shard(load.store, shard)
            source = twofold.owner_of(slot)
            target = next(node for node in twofold.primaries() if node is not source)
            before = len(load.ended)
            await asyncio.to_thread(twofold.begin_move, slot, source, target)
            await asyncio.to_thread(_move_all, twofold, slot, source, target)
            await asyncio.to_thread(twofold.end_move, slot, source, target)
            await wait_until_async(
                lambda before=before: len(load.ended) > before + 20, description="runs to end again", timeout=120
            )
        await load.stop()
        assert errors(twofold, "TRYAGAIN") > tried
        assert errors(twofold, "MOVED") > moved
        assert load.vanished == []
        assert await load.check() == 0


async def test_a_master_hands_over_under_load(twofold: ValkeyCluster, namespace: str) -> None:
    async with loaded(twofold, namespace) as load:
        slot = slot_of_shard(load.store, 1)
        old = twofold.owner_of(slot)
        new = _replica_of(twofold, old)
        new.call("CLUSTER", "FAILOVER")
        await wait_until_async(lambda: twofold.owner_of(slot) is new, description="the handing over")
        before = len(load.ended)
        await wait_until_async(lambda: len(load.ended) > before + 50, description="runs to end again", timeout=120)
        await load.stop()
        assert load.vanished == []
        assert await load.check() == 0
    await asyncio.to_thread(twofold.wait_healthy)


async def test_a_killed_masters_replica_takes_over_under_load(twofold: ValkeyCluster, namespace: str) -> None:
    """Replication is asynchronous: what was acknowledged in the very last moment may be gone, nothing else is."""
    async with loaded(twofold, namespace) as load:
        slot = slot_of_shard(load.store, 2)
        old = twofold.owner_of(slot)
        killed = time.monotonic()
        await asyncio.to_thread(old.server.kill)
        dead = time.monotonic()
        ended = len(load.ended)
        await wait_until_async(lambda: twofold.owner_of(slot) is not old, description="the take-over", timeout=120)
        await wait_until_async(lambda: len(load.ended) > ended + 100, description="runs to end again", timeout=120)
        await wait_until_async(
            lambda: any(run.startswith("02") and at > dead + 2 for run, at in load.ended.items()),
            description="the shard of the dead master to work again",
            timeout=120,
        )
        await load.stop()
        # a busy machine's loop notes late what was acknowledged, and its replica is behind
        missing = await load.check(forgiven=(killed - 2, dead + 2))
        print(f"{missing} acknowledged writes are missing; {len(load.vanished)} refusals: {load.vanished[:3]}")
        # a line meets its loss once
        assert len(load.vanished) <= missing + 3 * SHARDS
    await asyncio.to_thread(old.server.start)
    await asyncio.to_thread(twofold.wait_healthy)


async def test_a_cluster_without_its_majority_is_waited_for(twofold: ValkeyCluster, namespace: str) -> None:
    store = ValkeyStore(twofold.url, namespace=namespace, shards=SHARDS, timeout=1, retry_for=60)
    await store.open()
    masters = twofold.primaries()
    for node in masters[:2]:
        await asyncio.to_thread(node.server.kill)
    calls = [asyncio.create_task(store.count_runs()), asyncio.create_task(store.claim_source(bytes(16), 1))]
    await asyncio.sleep(2.5)
    impatient = ValkeyStore(masters[2].server.url, namespace=namespace, shards=SHARDS, timeout=1, retry_for=0.5)
    with pytest.raises(StoreUnavailable):
        await _opened(impatient)
    for node in masters[:2]:
        await asyncio.to_thread(node.server.start)
    counts, claim = await asyncio.gather(*calls)
    assert (dict(counts.by_status), claim.rows) == ({}, [])
    await asyncio.gather(store.close(), impatient.close())
    await asyncio.to_thread(twofold.wait_healthy)


def _move_all(cluster: ValkeyCluster, slot: int, source: ClusterNode, target: ClusterNode) -> None:
    """Key by key, with pauses, and then what was made at the old place meanwhile."""
    for pause, count in ((0.01, 7), (0.3, 100), (0.0, 100)):
        while cluster.move_keys(slot, source, target, count):
            time.sleep(pause)


async def _opened(store: ValkeyStore) -> None:
    await store.open()
    await store.count_runs()


def _replica_of(cluster: ValkeyCluster, master: ClusterNode) -> ClusterNode:
    def found() -> ClusterNode | None:
        for node in cluster.nodes:
            told = node.call("INFO", "replication")
            if told["role"] == "slave" and told["master_port"] == master.server.port:
                return node
        return None

    replica = wait_until(found, description="a replica")
    assert replica is not None
    return replica
