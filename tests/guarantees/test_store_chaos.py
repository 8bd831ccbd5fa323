"""Mixed runs while workers are killed, the server is killed and cut back to what was on disk, and the network fails.

The seed is printed. PYRULA_SOAK=1 makes it long: 3,000 runs, ten kills of the server.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import redis.cluster

from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.conformance.proxy import Proxy
from tests.guarantees.programs.mixed_runs import stepping
from tests.guarantees.store_chaos import Clients, left_behind, steps_that_ran_again
from tests.services.child import ServiceUnavailable
from tests.services.process import WorkerProcess
from tests.services.valkey import ValkeyServer
from tests.services.valkey_cluster import ValkeyCluster
from tests.services.valkey_synced import SyncedValkey
from tests.services.waiting import wait_until_async

PROGRAM = Path(__file__).parent / "programs" / "mixed_runs.py"
SHARDS, WORKERS = 4, 4


@dataclass(frozen=True)
class Dose:
    """How much of it."""

    runs: int
    seconds: float
    server_kills: int
    cuts_back: int


DOSE = Dose(3000, 600, 10, 2) if os.environ.get("PYRULA_SOAK") == "1" else Dose(80, 25, 2, 1)


@pytest.fixture
def valkey_synced() -> Iterator[SyncedValkey]:
    try:
        with SyncedValkey() as server:
            yield server
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


class Trouble:
    """Everything that can go wrong, by chance, for so long as the dose says."""

    def __init__(
        self, servers: Sequence[ValkeyServer], workers: list[WorkerProcess], proxies: list[Proxy], dice: random.Random
    ) -> None:
        self.servers = servers
        self.workers = workers
        self.proxies = proxies
        self.dice = dice
        self.kills = 0
        self.faults = 0
        self.lost_bytes = 0

    async def make(self, dose: Dose) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._workers(dose.seconds))
            if self.proxies:
                group.create_task(self._network(dose.seconds))
            group.create_task(self._server(dose))

    async def _workers(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(0.5 + self.dice.random())
            worker = self.dice.choice(self.workers)
            await asyncio.to_thread(worker.kill)
            before = len(worker.lines)
            worker.start()
            self.kills += 1
            # on a slow machine they would all be starting all the time
            await asyncio.to_thread(worker.wait_for_line, "^ready", after=before)

    async def _network(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(self.dice.random() * 2)
            proxy = self.dice.choice(self.proxies)
            fault = self.dice.choice(("cut", "lose replies", "cut replies", "lose requests"))
            kind, _, what = fault.partition(" ")
            if what:
                setattr(proxy, what, kind)
                await asyncio.sleep(0.1 + self.dice.random() * 0.4)
                setattr(proxy, what, "pass")
            proxy.cut()
            self.faults += 1

    async def _server(self, dose: Dose) -> None:
        for number in range(dose.server_kills):
            await asyncio.sleep(dose.seconds / (dose.server_kills + 1) * (0.7 + 0.6 * self.dice.random()))
            server = self.dice.choice(self.servers)
            await asyncio.to_thread(server.kill)
            if number < dose.cuts_back and isinstance(server, SyncedValkey):
                self.lost_bytes += await asyncio.to_thread(server.cut_back)
            await asyncio.sleep(self.dice.random())
            await asyncio.to_thread(server.start)


async def test_nothing_acknowledged_is_lost_or_doubled(
    valkey_synced: SyncedValkey, namespace: str, tmp_path: Path
) -> None:
    async with Proxy(valkey_synced.url) as for_workers, Proxy(valkey_synced.url) as for_clients:
        urls, proxies = (for_workers.url, for_clients.url), [for_workers, for_clients]
        await chaos([valkey_synced], urls, proxies, namespace, tmp_path)
    await swept(valkey_synced.url, namespace)
    with redis.Redis(port=valkey_synced.port, protocol=2) as server:
        assert left_behind(server, namespace, SHARDS) == []


async def test_nothing_acknowledged_is_lost_or_doubled_on_a_cluster(namespace: str, tmp_path: Path) -> None:
    """Its masters are killed one at a time, and come back with what they had written."""
    try:
        with ValkeyCluster(appendonly=True, node_timeout=1.5, settings={"appendfsync": "always"}) as cluster:
            servers = [node.server for node in cluster.masters]
            await chaos(servers, (cluster.url, servers[1].url), [], namespace, tmp_path)
            await swept(cluster.url, namespace)
            with redis.cluster.RedisCluster("127.0.0.1", servers[0].port, protocol=2) as server:
                assert left_behind(server, namespace, SHARDS) == []
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


async def chaos(
    servers: Sequence[ValkeyServer], urls: tuple[str, str], proxies: list[Proxy], namespace: str, folder: Path
) -> None:
    """`urls`: what workers are given, and clients."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    log = folder / "steps"
    log.touch()
    with ExitStack() as stack:
        arguments = (urls[0], namespace, str(log), "fsync")
        workers = [stack.enter_context(WorkerProcess(PROGRAM, *arguments)) for _ in range(WORKERS)]
        store = ValkeyStore(urls[1], namespace=namespace, shards=SHARDS, timeout=1, retry_for=60, durability="fsync")
        async with WorkflowClient(store, poll_interval=0.2) as client:
            clients = Clients(client, dice, patience=DOSE.seconds * 2 + 300)
            trouble = Trouble(servers, workers, proxies, dice)
            async with asyncio.TaskGroup() as group:
                group.create_task(clients.run(DOSE.runs, DOSE.seconds * 0.8))
                group.create_task(trouble.make(DOSE))
            counts = await client.counts()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            await asyncio.to_thread(worker.wait, timeout=240)
    print(
        f"{clients.ended} runs, {trouble.kills} workers killed, {trouble.faults} network faults, "
        f"{DOSE.server_kills} server kills, {trouble.lost_bytes} bytes cut, {len(clients.worn)} runs given up"
    )
    assert (clients.wrong, steps_that_ran_again(log), counts.unfinished) == ([], [], 0), f"seed {seed}"
    # a worker dies every few seconds, so now and then one run meets four of these deaths without getting on
    assert len(clients.worn) <= 1 + DOSE.runs // 100, f"seed {seed}: {clients.worn}"
    if not clients.worn:
        assert (counts.by_status["cancelled"], counts.by_status["failed"]) == (DOSE.runs // 5, 0), f"seed {seed}"


async def swept(url: str, namespace: str) -> None:
    """Workers that were killed last have nobody left to find them dead."""
    store = ValkeyStore(url, namespace=namespace, shards=SHARDS, durability="fsync")
    await store.open()
    await store.relay()
    for suspect in await store.beats():
        assert await store.reap(suspect) == 0, "a run was still held"
    await store.close()


async def test_a_frozen_workers_run_goes_on_elsewhere_and_its_own_writes_are_refused(
    valkey_synced: SyncedValkey, namespace: str, tmp_path: Path
) -> None:
    log = tmp_path / "steps"
    log.touch()
    arguments = (valkey_synced.url, namespace, str(log), "fsync")
    server = redis.Redis(port=valkey_synced.port, protocol=2)

    def keys_of(run: str) -> dict[bytes, object]:
        """All that is stored of the run itself."""
        found = {}
        for key in sorted(server.scan_iter(match=f"*:{run}*")):
            found[key] = server.dump(key)
        return found

    store = ValkeyStore(valkey_synced.url, namespace=namespace, shards=SHARDS)
    async with WorkflowClient(store, poll_interval=0.1) as client:
        with WorkerProcess(PROGRAM, *arguments) as frozen:
            runs = [await client.submit(stepping, {"tenant": f"t{number}", "pauses": 3}) for number in range(10)]
            await wait_until_async(lambda: log.stat().st_size > 0, description="the first step")
            frozen.freeze()
            with WorkerProcess(PROGRAM, *arguments) as other:
                results = [await run.result(timeout=240) for run in runs]
                before = {str(run): keys_of(str(run)) for run in runs}
                noted = log.read_text()
                frozen.wake()
                # it finds out that its lease is lost, and goes on as a worker
                last = await client.submit(stepping, {"tenant": "last", "pauses": 1})
                other.terminate()
                await asyncio.to_thread(other.wait)
                assert len(await last.result(timeout=240)) == 3
                assert {str(run): keys_of(str(run)) for run in runs} == before
            frozen.terminate()
            await asyncio.to_thread(frozen.wait)
        assert all(len(tokens) == 7 for tokens in results)
        assert [await run.result() for run in runs] == results
        # until it has found out, a step that it was about to start may start; nobody ever sees its value
        late = [json.loads(line) for line in log.read_text()[len(noted) :].splitlines()]
        ours = {token for tokens in results for token in tokens}
        assert not ours & {token for _, _, _, token, _ in late}
        log.write_text(noted)
        assert steps_that_ran_again(log) == []
        assert left_behind(server, namespace, SHARDS) == []
    server.close()
