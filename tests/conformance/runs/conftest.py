"""Stores of submitted runs: each test gets one, and the same one as another process would hold it."""

from collections.abc import AsyncIterator, Callable

import pytest

from pyrula.workflows.clock import ManualClock
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.runs import RunStore
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import Rig
from tests.conformance.server import ClusterServer, Server
from tests.services.valkey_cluster import ValkeyCluster


@pytest.fixture
async def server(valkey: str, namespace: str) -> AsyncIterator[Server]:
    """Unfinished runs have no time to live, so what is left is judged by the tests of retention."""
    server = Server(valkey, namespace)
    yield server
    await server.clear()
    await server.close()


@pytest.fixture
async def cluster_server(cluster: ValkeyCluster, namespace: str) -> AsyncIterator[Server]:
    server = ClusterServer(cluster.url, namespace)
    yield server
    await server.clear()
    await server.close()


@pytest.fixture
def cluster_shards() -> int:
    """On several nodes; a test about the order of one queue has one."""
    return 16


@pytest.fixture(params=["memory", "valkey", "cluster"])
def make_runs(request: pytest.FixtureRequest, cluster_shards: int) -> Callable[[], RunStore]:
    """Makes handles on one store, each as a process of its own would have it. All start empty."""
    if request.param == "memory":
        return MemoryStore(ManualClock()).twin
    if request.param == "cluster":
        spread: Server = request.getfixturevalue("cluster_server")
        return lambda: ValkeyStore(spread.url, namespace=spread.namespace, shards=cluster_shards)
    server: Server = request.getfixturevalue("server")
    return lambda: ValkeyStore(server.url, namespace=server.namespace, shards=1)


@pytest.fixture
async def rig(make_runs: Callable[[], RunStore]) -> AsyncIterator[Rig]:
    store, other = make_runs(), make_runs()
    await store.open()
    await other.open()
    yield Rig(store, other)
    await store.close()
    await other.close()
