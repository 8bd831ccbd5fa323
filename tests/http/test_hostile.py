"""Requests that mean harm: clear answers, bounded memory, and the server goes on."""

import asyncio
import contextlib
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from pyrula.http import Tokens, create_app
from pyrula.http.bodies import MAX_DEPTH
from pyrula.http.tokens import Role, Token, hash_of, new_token
from pyrula.workflows import MemoryStore, RunStatus, WorkflowClient
from tests.http.conftest import Site
from tests.services.process import WorkerProcess
from tests.services.waiting import wait_until_async

JSON = {"Content-Type": "application/json"}
MIB = 1024 * 1024


async def raw(url: str, data: bytes, *, read: bool = True, seconds: float = 60) -> bytes:
    """Bytes to the server as they are; all that it answers until it closes."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(data)
        answer = bytearray()
        # one that closes with something unread resets the connection, also when it has answered
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(seconds):
                while read and (chunk := await reader.read(65536)):
                    answer += chunk
        return bytes(answer)
    finally:
        writer.close()


def body_of(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"problem+json" in head, answer
    told: dict[str, Any] = json.loads(body)
    return told


async def test_a_body_of_50_mb_is_refused_and_not_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # however long it takes here to send what nobody reads
    monkeypatch.setattr("pyrula.http.bodies._DISCARD_SECONDS", 120)
    http = await site.local()

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"params": {"x": "'
        for _ in range(50):
            yield b"x" * MIB
        yield b'"}}'

    tracemalloc.start()
    try:
        declared = await http.post("/http_echo/runs", content=b" " * (50 * MIB), headers=JSON)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        chunked = await http.post("/http_echo/runs", content=chunks(), headers=JSON)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    for answer in (declared, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "BodyTooLarge")
    # client and server are in this process: some chunks on their way, and what may be kept of a body
    assert peak < 12 * MIB, f"{peak / MIB:.1f} MiB"
    assert (await http.get("/healthz")).status_code == 200


async def test_who_declares_a_large_body_is_told_before_sending_it(site: Site) -> None:
    http = await site.local()
    head = b"POST /a/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    answer = await raw(str(http.base_url), head)
    assert body_of(answer)["code"] == "BodyTooLarge"
    # who asks whether it may be sent isn't told to go on
    answer = await raw(str(http.base_url), head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert b"100 Continue" not in answer
    assert body_of(answer)["code"] == "BodyTooLarge"


async def test_a_body_that_is_compressed_is_refused_by_its_header(site: Site) -> None:
    http = await site.local()
    packed = gzip.compress(b'{"params": {}}')
    answer = await http.post("/http_echo/runs", content=packed, headers=JSON | {"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "UnsupportedMediaType")
    assert "Content-Encoding" in answer.json()["detail"]
    plain = await http.post("/http_echo/runs", content=b"{}", headers=JSON | {"Content-Encoding": "identity"})
    assert plain.status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"params": {"x": NaN}}',
        b'{"params": {"x": 1e999}}',
        b'{"params": {"x": "\xff\xfe"}}',
        b'\xff\xfe{\x00}\x00',
        b'{"params": {"x": "\\ud800"}}',
        b'{"params": ' + b'{"x":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 2),
        b'{"params": {"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
        b"[" * 1_000_000,
        b'{"params": {"x": ' + b"1" * 10_000 + b"}}",
        b'{"params": {}, "params_": {}}',
        b'"text"',
        b"null",
        b"[]",
        b"\x00",
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
async def test_bodies_that_are_no_good(site: Site, body: bytes) -> None:
    http = await site.local()
    answer = await http.post("/http_echo/runs", content=body, headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"] in ("InvalidJSON", "InvalidRequest", "SerializationError", "ParamsError")
    assert len(answer.text) < 2_000
    assert (await http.get("/runs")).json()["runs"] == []


async def test_as_deep_as_it_may_be(site: Site) -> None:
    http = await site.local()
    # the body, params and the payload are three of them
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    made = await http.post("/http_echo/runs", json={})
    run = f"/http_echo/runs/{made.json()['run_id']}"
    assert (await http.post(f"{run}/signal", json={"signal": "go", "payload": deep})).status_code == 202
    assert (await http.post(f"{run}/signal", json={"signal": "go", "payload": [deep]})).status_code == 400
    await site.worker()
    assert (await http.get(f"{run}/result")).json()["value"] == deep


TRICKS = ["..%2f..%2fruns", "%2e%2e", "..", "a%2fb", "%2F", "%00", "%0d%0aX-Evil:%201", "%25%32%66", "%c0%ae"]


@pytest.mark.parametrize("segment", [*TRICKS, "%", "%zz", "é", "{}", "*"])
async def test_tricks_with_paths(site: Site, segment: str) -> None:
    """A segment is a name or an id and nothing else: it finds no other route and no other run."""
    client, http = await site.client(), await site.local()
    run = await client.submit("http_echo")
    host = "Host: localhost\r\nConnection: close\r\n\r\n"
    for path in (f"/{segment}/runs/{run}", f"/http_echo/runs/{segment}", f"/http_echo/runs/{segment}%2f{run}"):
        target = path.encode("utf-8").decode("latin-1")
        answer = await raw(str(http.base_url), f"GET {target} HTTP/1.1\r\n{host}".encode("latin-1"))
        status = int(answer.split(b" ", 2)[1])
        assert status in (400, 404), (path, answer)
        assert b"x-evil" not in answer.partition(b"\r\n\r\n")[0].lower()
        assert str(run).encode() not in answer.replace(path.encode(), b"") or status == 404
    assert await run.status() == "queued"


@pytest.mark.parametrize(
    "name",
    ["a/b", "../x", "%2F", "a%2Fb", "100%", "é🜁", "a b", "?", "#", "runs", "schedules", "{name}", "\x00", "*"],
)
async def test_any_name_is_that_name(site: Site, name: str) -> None:
    client, http = await site.client(), await site.local()
    made = await http.post(f"/{quote(name, safe='')}/runs", json={"params": {"x": 1}})
    assert made.status_code == 201
    report = await client.detail(name, made.json()["run_id"])
    assert (report.name, report.params) == (name, {"x": 1})
    shown = await http.get(f"/{quote(name, safe='')}/runs/{made.json()['run_id']}")
    assert shown.json()["name"] == name
    listed = await http.get("/runs", params={"name": name})
    assert [run["run_id"] for run in listed.json()["runs"]] == [made.json()["run_id"]]


async def test_slow_heads_are_cut_off_and_cost_nobody_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.http.server.HEAD_SECONDS", 2)
    http = await site.local()
    url = str(http.base_url)
    starts = [b"", b"GET /runs HT", b"GET /runs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "]
    slow = [asyncio.create_task(raw(url, start)) for start in starts * 20]
    assert (await http.get("/runs")).status_code == 200
    answers = await asyncio.gather(*slow)
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 408 Request Timeout"}
    # and so is one that was answered once and then sends half a head
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 200")
    writer.write(b"GET /health")
    assert (await reader.read()).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_slow_bodies_are_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.http.bodies.BODY_SECONDS", 0.3)
    http = await site.local()
    head = b"POST /a/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    answers = await asyncio.gather(*(raw(str(http.base_url), head) for _ in range(20)))
    assert {body_of(answer)["code"] for answer in answers} == {"RequestTimeout"}


async def test_a_reader_who_does_not_read_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.http.server.WRITE_SECONDS", 0.3)
    client, http = await site.client(), await site.local()
    run = await client.submit("http_echo", metadata="x" * (MIB - 100))
    address = urlsplit(str(http.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1024)
    asked = f"GET /http_echo/runs/{run} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    # many answers of a megabyte, and none of them is taken
    writer.write(asked * 20)

    async def closed() -> bool:
        return "pyrula_http_requests_open 1.0" in (await http.get("/metrics")).text

    await wait_until_async(closed, description="the reader to be cut off", interval=0.05)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(30 * MIB)
    writer.close()


@pytest.mark.parametrize(
    "data", [b"\x00\xff" * 100, b"GET / / HTTP/1.1\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_http(site: Site, data: bytes) -> None:
    http = await site.local()
    assert (await raw(str(http.base_url), data)).startswith(b"HTTP/1.1 400")
    assert (await http.get("/healthz")).status_code == 200


API = """
import logging, sys
import tests.http.workflows
from pyrula.http import create_app, serve
from pyrula.workflows import ValkeyStore, WorkflowClient

logging.basicConfig(level="INFO")
url, namespace = sys.argv[1:]
serve(create_app(WorkflowClient(ValkeyStore(url, namespace=namespace, shards=2))), port=0)
"""


async def test_a_thousand_wait_and_hold_nothing_but_memory(site: Site, valkey: str, namespace: str) -> None:
    """500 long polls and 500 streams, of runs that a worker with two places has parked: that worker still runs others,
    and each of those who wait gets the answer."""
    client = await site.client()
    worker = await site.worker(max_concurrency=2)
    runs = await asyncio.gather(*(client.submit("http_echo") for _ in range(20)))

    async def parked() -> bool:
        return (await client.counts("http_echo")).by_status[RunStatus.SIGNAL_WAITING] == len(runs)

    await wait_until_async(parked, description="the runs to be parked", timeout=60, interval=0.1)
    with WorkerProcess(API, valkey, namespace) as api:
        url = api.wait_for_line(r"listens on (\S+)", timeout=60)[1]
        http = await site.http(url)
        assert (await http.get("/runs")).status_code == 200
        before = api.rss_bytes

        def asked(number: int) -> bytes:
            run = runs[number % 20]
            path = f"runs/{run}/result?timeout=60" if number < 500 else f"stream/{run}"
            return f"GET /http_echo/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()

        waiting = [asyncio.create_task(raw(url, asked(number), seconds=120)) for number in range(1000)]

        async def all_there() -> bool:
            text = (await http.get("/metrics")).text
            return "pyrula_http_streams_open 500.0" in text and "pyrula_http_requests_open 1001.0" in text

        await wait_until_async(all_there, description="a thousand to wait", timeout=60, interval=0.5)
        grown = api.rss_bytes - before
        print(f"{grown / 1000 / 1024:.0f} KiB for each of 1,000 who wait")
        assert grown < 100 * MIB
        assert worker.held == ()
        other = await client.submit("http_charge", {"order": {"id": "o", "amount_cents": 1}})
        assert (await other.result(timeout=180))["paid"] == 1
        for number, run in enumerate(runs):
            await run.signal("go", number)
        for number, answer in enumerate(await asyncio.gather(*waiting)):
            if number < 500:
                assert answer.startswith(b"HTTP/1.1 200")
                assert answer.endswith(b'{"value":%d}' % (number % 20))
            else:
                assert b'event: end\ndata: {"run_id":"%b"' % str(runs[number % 20]).encode() in answer
                assert b'"value":%d,' % (number % 20) in answer


async def test_a_waiter_that_leaves_changes_nothing(site: Site) -> None:
    client, http = await site.client(), await site.local()
    run = await client.submit("http_nobody_serves")
    calls = [
        ("GET", "result?timeout=60", None),
        ("POST", "query", {"query": "items"}),
        ("POST", "update", {"update": "add", "update_id": "u", "timeout": 60}),
    ]
    for method, path, body in calls:
        with pytest.raises(httpx.ReadTimeout):
            await http.request(method, f"/http_nobody_serves/runs/{run}/{path}", json=body, timeout=0.5)

    async def all_gone() -> bool:
        return "pyrula_http_requests_open 1.0" in (await http.get("/metrics")).text

    await wait_until_async(all_gone, description="the waits to end", interval=0.05)
    report = await run.detail()
    assert report.status == "queued"
    # what was sent stays: an update is applied once somebody serves the workflow
    assert [(message.kind, message.id) for message in report.unread] == [("update", "u")]
    assert 'status="499"' in (await http.get("/metrics")).text


async def test_answers_have_safe_headers_and_no_cors(site: Site) -> None:
    http = await site.local()
    for answer in (
        await http.get("/runs", headers={"Origin": "https://evil.example"}),
        await http.get("/nosuch"),
        await http.options("/runs", headers={"Origin": "https://e.example", "Access-Control-Request-Method": "POST"}),
        await http.post("/http_echo/runs", content=b"{", headers=JSON),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "server" not in answer.headers


async def test_who_is_not_let_in_is_not_read(site: Site) -> None:
    tokens = Tokens([Token(hash=hash_of(new_token()), owner="a", role=Role.ADMIN)])
    http = await site.local(tokens=tokens)
    head = b"POST /a/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
    answer = await raw(str(http.base_url), head)
    assert body_of(answer)["code"] == "Unauthorized"


async def test_a_name_that_rebinds_is_refused(site: Site) -> None:
    http = await site.local()
    for host in ("evil.example", "127.0.0.1.evil.example", f"evil.example:{http.base_url.port}"):
        answer = await http.get("/runs", headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (421, "HostNotAllowed")


async def test_names_that_nobody_knows_are_not_remembered_for_ever(site: Site) -> None:
    client = WorkflowClient(MemoryStore())
    http = await site.http(await site.served(create_app(client)))
    await http.post("/http_made_up/runs", json={})
    await http.request("MADEUP", "/http_made_up/runs")
    assert "made" not in (await http.get("/metrics")).text.lower()
    for number in range(1_050):
        await client.submit(f"http_made_up_{number}")
    assert len(client._unknown) == 1_000
