"""Workers on each store, with the clock everybody has; each handle on the store is as another process's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from pyrula.workflows import MemoryStore, ValkeyStore, WorkerOptions, WorkflowClient, WorkflowWorker
from pyrula.workflows.store.runs import RunStore
from tests.conformance.runs.conftest import cluster_server, server
from tests.conformance.server import Server

__all__ = ["cluster_server", "make_store", "server", "some_progress", "workers"]


@pytest.fixture(params=["memory", "valkey", "cluster"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], RunStore]:
    if request.param == "memory":
        return MemoryStore().twin
    clustered = request.param == "cluster"
    server: Server = request.getfixturevalue("cluster_server" if clustered else "server")
    return lambda: ValkeyStore(server.url, namespace=server.namespace, shards=5 if clustered else 2)


class Workers:
    """Starts workers of one store, and ends them after the test."""

    def __init__(self, make_store: Callable[[], RunStore]) -> None:
        self._make_store = make_store
        self._running: list[tuple[WorkflowWorker, asyncio.Task[None]]] = []
        self._clients: list[WorkflowClient] = []

    def start(self, *workflows: Any, **options: Any) -> WorkflowWorker:
        settings = {"claim_poll_interval": 0.1, "park_after": 0.2, "drain_timeout": 2} | options
        worker = WorkflowWorker(workflows, store=self._make_store(), options=WorkerOptions(**settings))
        self._running.append((worker, asyncio.create_task(worker.run(), name="worker")))
        return worker

    def client(self) -> WorkflowClient:
        """As in a process without a worker."""
        client = WorkflowClient(self._make_store(), poll_interval=0.1)
        self._clients.append(client)
        return client

    async def stop(self, worker: WorkflowWorker) -> None:
        """Drain it, to its end."""
        for pair in self._running:
            if pair[0] is worker:
                worker.stop()
                await pair[1]

    async def kill(self, worker: WorkflowWorker) -> None:
        """As if its process had died: no word to the store, nothing released."""
        for pair in list(self._running):
            if pair[0] is worker:
                self._running.remove(pair)
                store: Any = worker.store
                for verb in ("append", "park", "finish", "pause", "release", "leave", "heartbeat", "claim", "answer"):
                    setattr(store, verb, _gone)
                pair[1].cancel()
                await asyncio.wait([pair[1]])

    async def end(self) -> None:
        for client in self._clients:
            await client.close()
        for worker, _ in self._running:
            worker.stop()
        for _, task in self._running:
            await task


async def some_progress(done: Mapping[str, int], steps: int = 3) -> None:
    """Some steps more, however slow the machine is: a run whose holders die again and again before they get anywhere is
    failed. A second at most, for when all runs wait."""
    goal = sum(done.values()) + steps
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            while sum(done.values()) < goal:  # noqa: ASYNC110 - steps of other tasks
                await asyncio.sleep(0.01)


async def _gone(*args: Any, **kwargs: Any) -> Any:
    raise asyncio.CancelledError


@pytest.fixture
async def workers(make_store: Callable[[], RunStore]) -> AsyncIterator[Workers]:
    workers = Workers(make_store)
    yield workers
    await workers.end()
