"""What durability="fsync" asks of a server, and what it keeps."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from pyrula.workflows.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.store.messages import Change, End, Message
from pyrula.workflows.store.port import Batch, Row, Token
from pyrula.workflows.store.refusals import RunFinishedError, RunNotFoundError
from pyrula.workflows.store.runs import Submission
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.server import Server
from tests.services.child import ServiceUnavailable
from tests.services.valkey import ValkeyServer
from tests.services.valkey_synced import SyncedValkey
from tests.services.waiting import wait_until_async

SOURCE = bytes(range(16))
SERVED = [("cart", "1")]


@pytest.fixture
def synced() -> Iterator[SyncedValkey]:
    try:
        with SyncedValkey() as server:
            yield server
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
async def settings(synced: SyncedValkey) -> AsyncIterator[Server]:
    server = Server(synced.url, "settings")
    yield server
    await server.close()


def store_of(server: ValkeyServer, namespace: str, retry_for: float = 10) -> ValkeyStore:
    return ValkeyStore(server.url, namespace=namespace, durability="fsync", timeout=2, retry_for=retry_for)


async def opened(store: ValkeyStore) -> None:
    try:
        await store.open()
    finally:
        await store.close()


async def test_what_everysec_asks_of_a_server(synced: SyncedValkey, settings: Server, namespace: str) -> None:
    store = ValkeyStore(synced.url, namespace=namespace, durability="everysec", timeout=2, retry_for=5)
    assert (store.hands_over, store.settles) == (True, True)
    for mode in ("always", "everysec"):
        await settings.call("CONFIG", "SET", "appendfsync", mode)
        await opened(store)
        found = await store.persistence()
        await store.close()
        assert (found.mode, len(found.server)) == (mode, 40)
    for name, wrong, right in (
        ("appendfsync", "no", "everysec"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("appendonly", "no", "yes"),
    ):
        await settings.call("CONFIG", "SET", name, wrong)
        with pytest.raises(ConfigurationError, match='durability="everysec" needs one server'):
            await opened(store)
        await settings.call("CONFIG", "SET", name, right)
    synced.kill()
    synced.start()
    assert (await store.persistence()).server != found.server
    await store.close()


async def test_a_server_that_does_not_sync_is_refused(
    synced: SyncedValkey, settings: Server, own_valkey: ValkeyServer, namespace: str
) -> None:
    await opened(store_of(synced, namespace))
    for name, wrong, right in (
        ("appendfsync", "everysec", "always"),
        ("appendfsync", "no", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
    ):
        await settings.call("CONFIG", "SET", name, wrong)
        with pytest.raises(ConfigurationError, match=f'has {name} {wrong}; durability="fsync" needs {name} {right}'):
            await opened(store_of(synced, namespace))
        await opened(ValkeyStore(synced.url, namespace=namespace))
        await settings.call("CONFIG", "SET", name, right)
    with pytest.raises(ConfigurationError, match="has appendonly no"):
        await opened(store_of(own_valkey, namespace))


async def test_settings_that_are_not_told_are_refused(synced: SyncedValkey, settings: Server, namespace: str) -> None:
    await settings.call("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all", "-config")
    url = synced.url.replace("://", "://app:s3cret@")
    with pytest.raises(ConfigurationError, match="doesn't tell its settings") as caught:
        await opened(ValkeyStore(url, namespace=namespace, durability="fsync"))
    assert "s3cret" not in str(caught.value)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='durability must be "memory", "everysec" or "fsync", not \'disk\''):
        ValkeyStore(durability="disk")  # type: ignore[arg-type]


async def test_a_server_that_stops_syncing_is_left(synced: SyncedValkey, settings: Server, namespace: str) -> None:
    store = store_of(synced, namespace)
    await store.open()
    token = (await store.claim_source(SOURCE, 1)).token
    assert await store.append_rows([Batch(SOURCE, token, [(1, 0, b"x")], 1)]) == [None]
    await settings.call("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(ConfigurationError, match='can\'t hold to durability="fsync" any more'):
        await store.append_rows([Batch(SOURCE, token, [(1, 0, b"x")], 1)])
    with pytest.raises(ConfigurationError, match="any more"):
        await store.submit(Submission(store.new_run_id(name="cart"), "cart"))
    await settings.call("CONFIG", "SET", "appendonly", "yes")
    await settings.call("CONFIG", "SET", "appendfsync", "everysec")
    await store.close()
    # a connection made anew asks anew
    with pytest.raises(ConfigurationError, match="has appendfsync everysec"):
        await store.append_rows([Batch(SOURCE, token, [(1, 0, b"x")], 1)])
    await store.close()


class Acknowledged:
    """Journals, submits and signals until told to stop, and notes what was acknowledged."""

    def __init__(self, store: ValkeyStore) -> None:
        self.store = store
        self.rows: list[Row] = []
        self.runs: list[str] = []
        self.signals: list[tuple[str, str]] = []
        self.finished: list[str] = []
        self._stopping = False

    async def run(self, token: Token) -> None:
        await asyncio.gather(*(self._journal(position, token) for position in range(5)), self._submit(), self._work())

    def stop(self) -> None:
        self._stopping = True

    @property
    def is_much(self) -> bool:
        return len(self.rows) > 20 and bool(self.finished)

    async def _journal(self, position: int, token: Token) -> None:
        index = 0
        while not self._stopping:
            row = Row(position, index, b"%d" % index)
            with contextlib.suppress(StoreUnavailable):
                assert await self.store.append_rows([Batch(SOURCE, token, [row], position)]) == [None]
                self.rows.append(row)
                index += 1

    async def _submit(self) -> None:
        while not self._stopping:
            run_id = self.store.new_run_id(name="cart")
            with contextlib.suppress(StoreUnavailable, RunFinishedError):
                await self.store.submit(Submission(run_id, "cart", version="1", idempotency_key=run_id))
                self.runs.append(run_id)
                await self.store.deliver(run_id, Message("signal", "s", "go"))
                self.signals.append((run_id, "s"))

    async def _work(self) -> None:
        while not self._stopping:
            with contextlib.suppress(StoreUnavailable):
                for run in (await self.store.claim("w", SERVED, 1)).runs:
                    await self.store.finish(run.lease, Change(1), End("completed", b"1"))
                    self.finished.append(run.lease.run_id)
            await asyncio.sleep(0.02)


async def missing(
    store: ValkeyStore, rows: list[Row], runs: list[str], signals: list[tuple[str, str]], finished: list[str]
) -> int:
    """How much of what was acknowledged is not there."""
    found = set((await store.claim_source(SOURCE, 1)).rows)
    lost = sum(row not in found for row in rows)
    statuses: dict[str, str] = {}
    for run_id in (*runs, *finished):
        with contextlib.suppress(RunNotFoundError):
            statuses[run_id] = await store.status(run_id)
    lost += sum(run_id not in statuses for run_id in runs)
    lost += sum(statuses.get(run_id) != "completed" for run_id in finished)
    for run_id, name in signals:
        if run_id in statuses:
            try:
                lost += not (await store.deliver(run_id, Message("signal", name, "go"))).duplicate
            except RunFinishedError:
                # it isn't known there
                lost += 1
    return lost


@pytest.mark.parametrize("setting", ["always", "everysec"])
async def test_what_was_acknowledged_outlives_a_power_cut(
    synced: SyncedValkey, settings: Server, namespace: str, setting: str
) -> None:
    """The file is cut to the last fdatasync. With everysec, which fsync refuses, the same test finds losses."""
    if setting == "always":
        store = store_of(synced, namespace, retry_for=20)
    else:
        store = ValkeyStore(synced.url, namespace=namespace, timeout=2, retry_for=20)
    await store.open()
    lost = 0
    token = (await store.claim_source(SOURCE, 1)).token
    cuts = 0
    while cuts < 2 or (setting == "everysec" and not lost and cuts < 10):
        cuts += 1
        if setting == "everysec":
            await settings.call("CONFIG", "SET", "appendfsync", "everysec")
        said = Acknowledged(store)
        saying = asyncio.create_task(said.run(token))
        await asyncio.sleep(0.7)
        await wait_until_async(lambda said=said: said.is_much, description="much to be acknowledged")
        await asyncio.to_thread(synced.kill)
        rows, runs, signals, finished = map(list, (said.rows, said.runs, said.signals, said.finished))
        said.stop()
        await asyncio.to_thread(synced.cut_back)
        await asyncio.to_thread(synced.start)
        if setting == "everysec":
            saying.cancel()
            await asyncio.wait([saying])
        else:
            await saying
        lost += await missing(store, rows, runs, signals, finished)
        if setting == "always":
            assert lost == 0
    assert (lost > 0) == (setting == "everysec")
    await store.close()
