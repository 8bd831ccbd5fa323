"""One suite for every store: each test gets a store, and the same store as another process would hold it."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.port import SourceStore
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.server import ClusterServer, Server
from tests.services.child import ServiceUnavailable
from tests.services.valkey import ValkeyServer
from tests.services.valkey_cluster import ValkeyCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    """Three masters that nobody harms."""
    try:
        with ValkeyCluster(appendonly=True) as cluster:
            yield cluster
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["memory", "valkey", "cluster"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], SourceStore]:
    """Makes handles on one store, each as a process of its own would have it. All start empty."""
    if request.param == "memory":
        first = MemoryStore()
        return first.twin
    server: Server = request.getfixturevalue("server" if request.param == "valkey" else "cluster_server")
    return lambda: ValkeyStore(server.url, namespace=server.namespace)


@pytest.fixture
async def store(make_store: Callable[[], SourceStore]) -> AsyncIterator[SourceStore]:
    store = make_store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(make_store: Callable[[], SourceStore]) -> AsyncIterator[SourceStore]:
    """The store in the hands of another process."""
    store = make_store()
    await store.open()
    yield store
    await store.close()


async def _cleared(server: Server) -> AsyncIterator[Server]:
    """Fails a test that leaves a key without a time to live, then removes its keys."""
    yield server
    try:
        lasting = await server.keys_without_ttl()
        assert lasting <= {b"{%b}meta" % server.namespace.encode()}, f"keys left for ever: {sorted(lasting)}"
    finally:
        await server.clear()
        await server.close()


@pytest.fixture
async def server(valkey: str, namespace: str) -> AsyncIterator[Server]:
    """The server as itself."""
    async for server in _cleared(Server(valkey, namespace)):
        yield server


@pytest.fixture
async def cluster_server(cluster: ValkeyCluster, namespace: str) -> AsyncIterator[Server]:
    """The cluster as itself."""
    async for server in _cleared(ClusterServer(cluster.url, namespace)):
        yield server


@pytest.fixture
async def valkey_store(server: Server) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(server.url, namespace=server.namespace)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(scope="session")
def own_valkey() -> Iterator[ValkeyServer]:
    """A server whose settings a test may change, if it puts them back."""
    try:
        with ValkeyServer() as server:
            yield server
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
async def own_server(own_valkey: ValkeyServer, namespace: str) -> AsyncIterator[Server]:
    async for server in _cleared(Server(own_valkey.url, namespace)):
        yield server
