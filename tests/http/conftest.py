"""A worker on Valkey, and the API on a socket of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from pyrula.http import HttpApp, HttpServer, create_app
from pyrula.workflows import ValkeyStore, WorkerOptions, WorkflowClient, WorkflowWorker
from tests.http.workflows import ALL
from tests.services.waiting import wait_until_async


class Site:
    """What a test may start: workers, servers, and clients of both; all of it ends with the test."""

    def __init__(self, url: str, namespace: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._namespace = namespace
        self._stack = stack

    def store(self) -> ValkeyStore:
        return ValkeyStore(self._url, namespace=self._namespace, shards=2)

    async def client(self, **options: Any) -> WorkflowClient:
        client = WorkflowClient(self.store(), **{"poll_interval": 0.2, **options})
        self._stack.push_async_callback(client.close)
        return client

    async def worker(self, **options: Any) -> WorkflowWorker:
        settings = {"claim_poll_interval": 0.1, "park_after": 0.2, "drain_timeout": 2} | options
        worker = WorkflowWorker(ALL, store=self.store(), options=WorkerOptions(**settings))
        task = asyncio.create_task(worker.run(), name="worker")

        async def end() -> None:
            worker.stop()
            await task

        self._stack.push_async_callback(end)
        return worker

    async def app(self, **options: Any) -> HttpApp:
        return create_app(await self.client(), **options)

    async def served(self, app: HttpApp, **options: Any) -> str:
        """The base URL of a server of this app."""
        return await self._stack.enter_async_context(serving(app, **options))

    async def http(self, base_url: str, token: str | None = None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=None)
        http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=120, limits=limits, trust_env=False)
        return await self._stack.enter_async_context(http)

    async def local(self, **options: Any) -> httpx.AsyncClient:
        """A client of an API that is open to this machine."""
        return await self.http(await self.served(await self.app(**options)))


@asynccontextmanager
async def serving(app: HttpApp, **options: Any) -> AsyncIterator[str]:
    server = HttpServer(app, port=0, **options)
    task = asyncio.create_task(server.run_until_stopped(), name="server")
    try:
        await wait_until_async(lambda: server.started or task.done(), description="the server to listen")
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()
        await task


@pytest.fixture
async def site(valkey: str, namespace: str) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield Site(valkey, namespace, stack)
