"""A client, and a holder of runs in another process, on each store."""

from collections.abc import AsyncIterator, Callable

import pytest

from pyrula.workflows import WorkflowClient
from pyrula.workflows.store.runs import RunStore
from tests.conformance.client.holder import Holder
from tests.conformance.runs.conftest import cluster_server, cluster_shards, make_runs, server

__all__ = ["client", "cluster_server", "cluster_shards", "holder", "make_runs", "server"]


@pytest.fixture
async def client(make_runs: Callable[[], RunStore]) -> AsyncIterator[WorkflowClient]:
    """Not opened: it does that itself."""
    client = WorkflowClient(make_runs(), poll_interval=0.05)
    yield client
    await client.close()


@pytest.fixture
async def holder(make_runs: Callable[[], RunStore]) -> AsyncIterator[Holder]:
    store = make_runs()
    await store.open()
    yield Holder(store)
    await store.close()
