"""The server goes away and comes back while runs are journaling: nothing acknowledged is lost, nothing is doubled."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from pyrula.workflows.group_commit import GroupCommit, SourceQueue
from pyrula.workflows.store.port import Row
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.proxy import Proxy
from tests.conformance.server import Server
from tests.services.child import ServiceUnavailable
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until_async

SOURCE = bytes(range(16))


@pytest.fixture
def lasting_valkey() -> Iterator[ValkeyServer]:
    """A server of the test's own that keeps its data when killed."""
    try:
        with ValkeyServer(appendonly=True) as server:
            yield server
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.url) as proxy:
        yield proxy


class Runs:
    """Runs that journal row after row until told to stop; what was acknowledged is noted."""

    def __init__(self, queue: SourceQueue, count: int) -> None:
        self.acknowledged: list[Row] = []
        self.stopping = False
        self.last = time.monotonic()
        self._queue = queue
        self._tasks = [asyncio.create_task(self._run(position)) for position in range(count)]

    async def _run(self, position: int) -> None:
        index = 0
        while not self.stopping:
            row = Row(position, index, b"%d.%d" % (position, index))
            await self._queue.add(*row).wait()
            self.acknowledged.append(row)
            self.last = time.monotonic()
            index += 1
            await asyncio.sleep(0.002)

    async def go_on(self) -> None:
        """Some rows more, and a moment."""
        goal = len(self.acknowledged) + 30
        await asyncio.sleep(0.3)
        await wait_until_async(lambda: len(self.acknowledged) >= goal, description="rows to be acknowledged")

    async def stop(self) -> None:
        self.stopping = True
        await asyncio.gather(*self._tasks)


async def test_a_killed_server_that_keeps_its_file_loses_nothing_acknowledged(
    lasting_valkey: ValkeyServer, namespace: str
) -> None:
    store = ValkeyStore(lasting_valkey.url, namespace=namespace, timeout=1)
    await store.open()
    commit = GroupCommit(store.append_rows)
    runs = Runs(commit.lane(SOURCE, (await store.claim_source(SOURCE, 1)).token), 10)
    for _ in range(3):
        await runs.go_on()
        await asyncio.to_thread(lasting_valkey.kill)
        await asyncio.to_thread(lasting_valkey.restart)
    await runs.go_on()
    await runs.stop()
    assert commit.outage is None
    assert (await store.claim_source(SOURCE, 1)).rows == sorted(runs.acknowledged)
    await commit.close()
    await store.close()


@pytest.mark.bench
@pytest.mark.parametrize("fault", ["refused", "silent"])
async def test_sixty_seconds_without_a_server(proxy: Proxy, server: Server, fault: str) -> None:
    store = ValkeyStore(proxy.url, namespace=server.namespace)
    await store.open()
    commit = GroupCommit(store.append_rows)
    runs = Runs(commit.lane(SOURCE, (await store.claim_source(SOURCE, 1)).token), 10)
    await asyncio.sleep(0.3)
    if fault == "refused":
        proxy.refuse = True
        proxy.cut()
    else:
        proxy.requests = "lose"
    began = time.monotonic()
    await asyncio.sleep(60)
    assert commit.outage is not None
    assert commit.outage == pytest.approx(began, abs=8)
    last_before = runs.last
    assert last_before < began + 1
    proxy.refuse, proxy.requests = False, "pass"
    healed = time.monotonic()
    while runs.last == last_before:
        await asyncio.sleep(0.05)
        # an answer that is waited for when the server comes back is given up after `timeout`, 5 s
        assert time.monotonic() - healed < 8, "it goes on within seconds"
    await runs.stop()
    assert commit.outage is None
    assert (await store.claim_source(SOURCE, 1)).rows == sorted(runs.acknowledged)
    await commit.close()
    await store.close()
