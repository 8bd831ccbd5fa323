"""Each test gets a registered source. Unfinished runs have no time to live, so nothing is said of what is left."""

from collections.abc import AsyncIterator

import pytest

from pyrula.workflows.store.port import SourceStore
from tests.conformance.records.rig import Rig
from tests.conformance.server import ClusterServer, Server
from tests.services.valkey_cluster import ValkeyCluster


@pytest.fixture
async def server(valkey: str, namespace: str) -> AsyncIterator[Server]:
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
async def rig(store: SourceStore, other: SourceStore) -> Rig:
    rig = Rig(store, other)
    await rig.claim()
    return rig
