"""What open() finds out about a server, and what it says."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.proxy import Proxy
from tests.conformance.server import Server
from tests.services.child import free_port
from tests.services.valkey import ValkeyServer

SOURCE = bytes(range(16))


@pytest.fixture
async def user(own_server: Server) -> AsyncIterator[str]:
    """Credentials of a user who may do everything but read or change the server's settings."""
    name = own_server.namespace
    await own_server.call("ACL", "SETUSER", name, "on", ">s3cret", "~*", "+@all", "-config")
    yield f"{name}:s3cret"
    await own_server.call("ACL", "DELUSER", name)


def with_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}@")


async def open_and_close(url: str, namespace: str, **options: object) -> ValkeyStore:
    store = ValkeyStore(url, namespace=namespace, **options)  # type: ignore[arg-type]
    try:
        await store.open()
    finally:
        await store.close()
    return store


async def test_an_eviction_policy_is_refused(own_server: Server, user: str) -> None:
    await own_server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        for url in (own_server.url, with_user(own_server.url, user)):
            with pytest.raises(ConfigurationError, match="maxmemory-policy allkeys-lru") as caught:
                await open_and_close(url, own_server.namespace)
            assert "s3cret" not in str(caught.value)
    finally:
        await own_server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert await own_server.keys() == set(), "a refused server was written to"


async def test_without_the_right_to_read_settings_it_still_opens(own_server: Server, user: str) -> None:
    store = await open_and_close(with_user(own_server.url, user), own_server.namespace)
    assert store.instance_id


async def test_without_the_right_to_read_anything_it_warns(
    own_server: Server, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    await own_server.call("ACL", "SETUSER", user.split(":")[0], "-info")
    await open_and_close(with_user(own_server.url, user), own_server.namespace)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("doesn't tell its version" in warning for warning in warnings)
    assert any("doesn't tell its maxmemory-policy" in warning for warning in warnings)
    assert "s3cret" not in caplog.text


async def test_no_append_only_file_is_warned_of_once(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    store = ValkeyStore(own_server.url, namespace=own_server.namespace)
    await store.open()
    await store.open()
    await store.close()
    assert len([record for record in caplog.records if "append-only file" in record.message]) == 1


async def test_with_an_append_only_file_nothing_is_said(
    valkey_store: ValkeyStore, caplog: pytest.LogCaptureFixture
) -> None:
    await valkey_store.open()
    assert caplog.records == []


async def test_a_wrong_password_ends_at_once_with_the_reason(own_server: Server, user: str) -> None:
    for wrong in ("nobody:s3cret", user.replace("s3cret", "wr0ng")):
        with pytest.raises(ConfigurationError, match="refuses the connection's user or password") as caught:
            async with asyncio.timeout(60):
                await open_and_close(with_user(own_server.url, wrong), own_server.namespace, retry_for=3600)
        assert "s3cret" not in str(caught.value)
        assert "wr0ng" not in str(caught.value)


async def test_a_server_that_wants_a_password(own_server: Server, user: str) -> None:
    await own_server.call("ACL", "SETUSER", "default", ">s3cret")
    await own_server.call("ACL", "SETUSER", "default", "resetpass", ">s3cret")
    try:
        with pytest.raises(ConfigurationError, match="user or password"):
            await open_and_close(own_server.url, own_server.namespace)
        await open_and_close(with_user(own_server.url, ":s3cret"), own_server.namespace)
    finally:
        await own_server.call("ACL", "SETUSER", "default", "nopass")


async def test_a_database_that_does_not_exist(own_server: Server) -> None:
    with pytest.raises(ConfigurationError, match=r"DB index is out of range|invalid DB index"):
        await open_and_close(f"{own_server.url}/99", own_server.namespace)


async def test_another_database_is_another_store(own_server: Server) -> None:
    one = await open_and_close(own_server.url, own_server.namespace)
    two = await open_and_close(f"{own_server.url}/1", own_server.namespace)
    assert one.instance_id != two.instance_id
    await own_server.call("SELECT", "1")
    await own_server.call("FLUSHDB")
    await own_server.call("SELECT", "0")


async def test_the_number_of_shards_is_fixed_by_the_first_store(server: Server) -> None:
    first = await open_and_close(server.url, server.namespace, shards=4)
    with pytest.raises(ConfigurationError, match="has 4 shards, fixed when it was first used; this store has shards=5"):
        await open_and_close(server.url, server.namespace, shards=5)
    again = await open_and_close(server.url, server.namespace, shards=4)
    assert again.instance_id == first.instance_id


async def test_many_first_openers_agree(server: Server) -> None:
    stores = await asyncio.gather(*(open_and_close(server.url, server.namespace) for _ in range(20)))
    assert len({store.instance_id for store in stores}) == 1


async def test_nobody_there(namespace: str) -> None:
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await open_and_close(f"valkey://127.0.0.1:{free_port()}", namespace, retry_for=0.5)
    assert time.monotonic() - start > 0.3
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await open_and_close("valkey://no-such-host.invalid", namespace, retry_for=0)
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await open_and_close("unix:///nowhere/valkey.sock", namespace, retry_for=0)


async def test_a_server_that_says_nothing(namespace: str) -> None:
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.1 s|can't be reached"):
        await open_and_close(f"valkey://127.0.0.1:{port}", namespace, timeout=0.1, retry_for=0.2)
    silent.close()
    for writer in writers:
        writer.close()


async def test_something_else_listens_there(namespace: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    with pytest.raises(StoreUnavailable):
        await open_and_close(f"valkey://127.0.0.1:{port}", namespace, timeout=1, retry_for=0)
    web.close()


async def test_over_a_unix_socket(own_valkey: ValkeyServer, own_server: Server) -> None:
    store = ValkeyStore(f"unix://{own_valkey.socket_path}?db=0", namespace=own_server.namespace)
    await store.open()
    assert (await store.claim_source(SOURCE, 1)).rows == []
    await store.close()


async def test_one_store_in_two_loops_one_after_the_other(server: Server) -> None:
    store = ValkeyStore(server.url, namespace=server.namespace)

    async def claims() -> int:
        await store.open()
        await asyncio.gather(*(store.claim_source(bytes([number]) * 16, 1) for number in range(20)))
        await asyncio.gather(*(store.append_rows([]) for _ in range(5)))
        await store.close()
        return 20

    for _ in range(2):
        assert await asyncio.to_thread(asyncio.run, claims()) == 20


async def test_few_connections_whatever_is_asked_at_once(server: Server) -> None:
    async with Proxy(server.url) as proxy:
        store = ValkeyStore(proxy.url, namespace=server.namespace)
        await store.open()
        before = proxy.connections
        await asyncio.gather(*(store.claim_source(bytes([number]) * 16, 1) for number in range(100)))
        # one was there from open()
        assert proxy.connections - before <= 2
        await store.close()
