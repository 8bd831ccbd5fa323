"""Getting in: TLS, users with no more rights than are documented, and passwords that nobody ever sees."""

import asyncio
import logging
import re
import shlex
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyrula.workflows.errors import ConfigurationError, PyrulaError
from pyrula.workflows.store.listing import Wanted
from pyrula.workflows.store.messages import Change, End, Message, Wait
from pyrula.workflows.store.port import Batch
from pyrula.workflows.store.runs import Query, Schedule
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.child import ServiceUnavailable
from tests.services.valkey import ValkeyServer
from tests.services.valkey_cluster import ValkeyCluster
from tests.services.valkey_tls import TlsFront
from tests.services.waiting import wait_until_async

ROOT = Path(__file__).parents[2]
LUA = ROOT / "pyrula" / "workflows" / "store" / "valkey" / "lua"
SOURCE = bytes(range(16))


@pytest.fixture
async def front(own_valkey: ValkeyServer) -> AsyncIterator[TlsFront]:
    try:
        front = TlsFront(own_valkey.url)
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))
    async with front:
        yield front


async def live(url: str, namespace: str) -> None:
    """A bit of everything."""
    store = ValkeyStore(url, namespace=namespace)
    await store.open()
    rig = Rig(store, store)
    heard: list[str] = []
    listening = store.on_ready(lambda: heard.append("x"))
    try:
        token = (await store.claim_source(SOURCE, 1)).token
        assert await store.append_rows([Batch(SOURCE, token, [(5, 0, b"x"), (5, 1, b"")], 5)]) == [None]
        await store.prune_source(SOURCE, token, 5, b"log")
        await store.lower_source(SOURCE, token, 4)
        assert len((await store.claim_source(SOURCE, 2)).rows) == 1
        run_id = await rig.parked(Wait("signal", "go", store.now() + 100), idempotency_key="k", owner="ada")
        await wait_until_async(lambda: heard, description="a wake-up")
        assert await store.next_due() is not None
        await store.put_schedule(Schedule("s", "cart", b"{}", 1.0))
        assert len(await store.due_schedules()) == 1
        await store.delete_schedule("s")
        query = Query("q", run_id, "items", b"[]")
        await store.ask(run_id, query, seconds=10)
        await store.questions("w", SERVED, 1)
        await store.answer(query, b"1")
        assert await store.read_answer(query) == b"1"
        await store.deliver(run_id, Message("pause", "pause", payload=b'"why"'))
        await store.unpause(run_id)
        await rig.signal(run_id)
        claimed = await rig.claim()
        assert [line.status for line in (await store.list_runs(Wanted(name="cart"))).runs] == ["running"]
        assert dict((await store.count_runs()).by_status) == {"running": 1}
        await store.append(claimed.lease, Change(1, rows=[(0, b"a"), (1, b"b")], events=[b"[]"]))
        await store.heartbeat("w", {claimed.lease: 0})
        link = (await store.finish(claimed.lease, Change(2), End("continued_as_new", params=b"{}"))).next
        assert link is not None
        await store.finish(link.lease, Change(1), End("failed", error=b'"x"'))
        await store.retry(run_id)
        await store.history(run_id)
        await store.events(run_id)
        await store.leave("w")
    finally:
        listening.close()
        await store.close()


async def test_over_tls(front: TlsFront, own_server: Server) -> None:
    await live(front.url, own_server.namespace)
    await own_server.clear()
    await live(front.url.replace("valkeys://127.0.0.1", "rediss://localhost"), own_server.namespace)
    await own_server.clear()


async def test_a_certificate_of_an_unknown_authority_is_refused_at_once(front: TlsFront, own_server: Server) -> None:
    store = ValkeyStore(f"valkeys://:s3cret@127.0.0.1:{front.port}", namespace=own_server.namespace)
    with pytest.raises(ConfigurationError, match=r"certificate of valkeys://127\.0\.0\.1:.* isn't trusted"):
        async with asyncio.timeout(60):
            await store.open()
    await store.close()


async def test_with_a_certificate_of_its_own(own_valkey: ValkeyServer, own_server: Server) -> None:
    try:
        front = TlsFront(own_valkey.url, ask=True)
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))
    async with front:
        certificate, key = front.certificates.client
        await live(f"{front.url}&ssl_certfile={certificate}&ssl_keyfile={key}", own_server.namespace)
    await own_server.clear()


async def test_over_a_unix_socket(own_valkey: ValkeyServer, own_server: Server) -> None:
    await live(f"unix://{own_valkey.socket_path}", own_server.namespace)
    await own_server.clear()


def documented(namespace: str, password: str) -> list[str]:
    """The ACL rules of docs/store.md for a namespace."""
    text = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(ACL SETUSER .*?)```", text, re.DOTALL)
    words = shlex.split(block.replace("pyrula", namespace).replace("\n", " ").replace(">secret", f"'>{password}'"))
    return words[3:]


async def test_the_documented_rights_are_enough_and_no_more_are_used(own_server: Server) -> None:
    user = own_server.namespace
    await own_server.call("ACL", "SETUSER", user, *documented(user, "s3cret"))
    try:
        url = own_server.url.replace("://", f"://{user}:s3cret@")
        await live(url, user)
        other = ValkeyStore(url, namespace="someone-elses")
        with pytest.raises(ConfigurationError, match="permissions"):
            await other.open()
        await other.close()
    finally:
        await own_server.call("ACL", "DELUSER", user)
        await own_server.clear()


async def test_the_documented_rights_are_enough_on_a_cluster(cluster: ValkeyCluster, namespace: str) -> None:
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", namespace, *documented(namespace, "s3cret"))
    try:
        await live(cluster.url.replace("://", f"://{namespace}:s3cret@"), namespace)
    finally:
        for node in cluster.nodes:
            node.call("ACL", "DELUSER", namespace)


def test_every_command_of_the_scripts_is_among_the_documented_rights() -> None:
    allowed = {rule[1:] for rule in documented("n", "x") if rule.startswith("+")}
    used = set()
    for file in LUA.rglob("*.lua"):
        used |= {name.lower() for name in re.findall(r"redis\.p?call\(\s*'([A-Za-z]+)'", file.read_text())}
        used |= {name.lower() for name in re.findall(r"in_pieces\('([A-Za-z]+)'", file.read_text())}
    assert len(used) > 20
    assert used <= allowed


async def test_the_password_is_told_nowhere(
    own_valkey: ValkeyServer, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user = own_server.namespace
    await own_server.call("ACL", "SETUSER", user, "on", ">s3cret", "~*", "&*", "+@all")
    told: list[str] = []

    async def tell(url: str) -> None:
        try:
            store = ValkeyStore(url, namespace=user, timeout=0.5, retry_for=0)
        except PyrulaError as error:
            told.append("".join(traceback.format_exception(error)))
            return
        told.append(f"{store!r} {store} {store._address!r} {store._topology.seed!r}")
        listening = store.on_ready(lambda: None)
        try:
            await store.open()
            await store.submit(Rig(store, store).submission())
        except PyrulaError as error:
            told.append("".join(traceback.format_exception(error)))
        await asyncio.sleep(0.05)
        listening.close()
        await store.close()

    good = own_server.url.replace("://", f"://{user}:s3cret@")
    await tell(good)
    await own_server.call("ACL", "SETUSER", user, "-evalsha")
    await tell(good)
    await tell(good.replace("s3cret", "wrong-s3cret"))
    await tell(good.replace("127.0.0.1", "no-such-host.invalid"))
    await tell(re.sub(":[0-9]+$", ":1", good))
    await tell(good + "/99")
    await tell(good.replace("valkey://", "valkeys://"))
    await tell(good.replace("s3cret@", "s3cret/x@"))
    await tell(f"unix://{user}:s3cret@/nowhere.sock")
    await tell(good + "?nonsense=1")
    await own_server.call("ACL", "DELUSER", user)
    await own_server.clear()
    assert len(told) > 12
    assert "s3cret" not in " ".join(told)
    assert "s3cret" not in caplog.text
