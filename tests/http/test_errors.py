"""One request for each row of the table of errors, on a real socket; and the table of the docs is the code's."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyrula.http import create_app
from pyrula.http.problems import REFUSALS, TABLE, problem_of
from pyrula.workflows import (
    BackpressureRejected,
    ConfigurationError,
    InboxFullError,
    QueryError,
    StoreUnavailable,
)
from pyrula.workflows.store.messages import MAX_UNREAD
from tests.http.conftest import Site
from tests.services.waiting import wait_until_async

DOC = Path(__file__).parents[2] / "docs" / "http.md"
NOBODY = "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC"


class Rows:
    """The API as a caller has it, with a worker behind."""

    def __init__(self, site: Site, http: httpx.AsyncClient, patch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.http = http
        self.patch = patch

    async def start(self, name: str, **params: Any) -> str:
        answer = await self.http.post(f"/{name}/runs", json={"params": params})
        assert answer.status_code == 201
        return f"/{name}/runs/{answer.json()['run_id']}"

    async def until(self, run: str, status: str) -> str:
        async def there() -> bool:
            return bool((await self.http.get(run)).json()["status"] == status)

        await wait_until_async(there, description=f"{run} to be {status}", interval=0.02)
        return run

    async def broken(self, error: Exception, site_method: str = "submit") -> httpx.Response:
        """What a submit answers when the client raises this."""
        client = await self.site.client()

        async def raising(*args: Any, **kwargs: Any) -> Any:
            raise error

        setattr(client, site_method, raising)
        http = await self.site.http(await self.site.served(create_app(client)))
        return await http.post("/http_echo/runs", json={})


@pytest.fixture
async def rows(site: Site, monkeypatch: pytest.MonkeyPatch) -> Rows:
    await site.worker()
    monkeypatch.setattr("pyrula.workflows.client.calls._ANSWER_GRACE", 0.0)
    return Rows(site, await site.local(), monkeypatch)


async def run_not_found(rows: Rows) -> httpx.Response:
    return await rows.http.get(f"/http_echo/runs/{NOBODY}")


async def schedule_not_found(rows: Rows) -> httpx.Response:
    return await rows.http.post("/schedules/nosuch/pause")


async def backfill_not_found(rows: Rows) -> httpx.Response:
    return await rows.http.post("/backfills/nosuch/pause")


async def backfill_refused(rows: Rows) -> httpx.Response:
    body = {"workflow": "http_echo", "topic": "orders", "backfill_id": "b"}
    made = await rows.http.post("/backfills", json=body)
    assert (made.status_code, made.json()["status"]) == (200, "requested")
    return await rows.http.post("/backfills", json=body | {"topic": "other"})


async def run_finished(rows: Rows) -> httpx.Response:
    run = await rows.until(await rows.start("http_fails"), "failed")
    return await rows.http.post(f"{run}/signal", json={"signal": "go"})


async def run_not_waiting(rows: Rows) -> httpx.Response:
    return await rows.http.post(f"{await rows.start('http_echo')}/resume", json={"action": "yes"})


async def transition_refused(rows: Rows) -> httpx.Response:
    return await rows.http.post(f"{await rows.start('http_echo')}/unpause")


async def inbox_full(rows: Rows) -> httpx.Response:
    run = await rows.start("http_nobody_serves")
    client = await rows.site.client()
    run_id = run.rpartition("/")[2]
    await asyncio.gather(*(client.signal("http_nobody_serves", run_id, "go") for _ in range(MAX_UNREAD)))
    return await rows.http.post(f"{run}/signal", json={"signal": "go"})


async def query_unknown(rows: Rows) -> httpx.Response:
    run = await rows.until(await rows.start("http_cart"), "signal_waiting")
    return await rows.http.post(f"{run}/query", json={"query": "nonsense"})


async def query_raised(rows: Rows) -> httpx.Response:
    run = await rows.until(await rows.start("http_cart"), "signal_waiting")
    return await rows.http.post(f"{run}/query", json={"query": "broken"})


async def query_timed_out(rows: Rows) -> httpx.Response:
    client = await rows.site.client(query_timeout=0.05)
    http = await rows.site.http(await rows.site.served(create_app(client)))
    return await http.post(f"{await rows.start('http_nobody_serves')}/query", json={"query": "items"})


async def update_rejected(rows: Rows) -> httpx.Response:
    return await rows.http.post(
        f"{await rows.start('http_cart', size=0)}/update", json={"update": "add", "payload": "A", "update_id": "u"}
    )


async def update_failed(rows: Rows) -> httpx.Response:
    return await rows.http.post(f"{await rows.start('http_cart')}/update", json={"update": "explode", "update_id": "u"})


async def update_timed_out(rows: Rows) -> httpx.Response:
    run = await rows.start("http_nobody_serves")
    return await rows.http.post(f"{run}/update", json={"update": "add", "update_id": "u", "timeout": 0})


async def failed(rows: Rows) -> httpx.Response:
    return await rows.http.get(f"{await rows.start('http_fails')}/result")


async def cancelled(rows: Rows) -> httpx.Response:
    run = await rows.start("http_nobody_serves")
    answer = await rows.http.delete(run.replace("/runs/", "/stream/"))
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    return await rows.http.get(f"{run}/result")


async def unfinished(rows: Rows) -> httpx.Response:
    return await rows.http.get(f"{await rows.start('http_nobody_serves')}/result", params={"timeout": 0.05})


async def backpressure(rows: Rows) -> httpx.Response:
    return await rows.broken(BackpressureRejected("the worker's egress is behind"))


async def bad_params(rows: Rows) -> httpx.Response:
    order = {"id": "o", "amount_cents": "many"}
    return await rows.http.post("/http_charge/runs", json={"params": {"order": order, "extra": 1} | {}})


async def too_large(rows: Rows) -> httpx.Response:
    run = await rows.start("http_echo")
    return await rows.http.post(f"{run}/signal", json={"signal": "go", "payload": "x" * 1_048_576})


async def store_away(rows: Rows) -> httpx.Response:
    return await rows.broken(StoreUnavailable("valkey://:hunter2@10.0.0.7:6379 doesn't answer"))


async def misconfigured(rows: Rows) -> httpx.Response:
    return await rows.broken(ConfigurationError("maxmemory-policy of 10.0.0.7 is hunter2"))


async def no_json(rows: Rows) -> httpx.Response:
    return await rows.http.post("/http_echo/runs", content=b'{"params": ', headers={"Content-Type": "application/json"})


async def no_token(rows: Rows) -> httpx.Response:
    http = await rows.site.local(authenticate=lambda _: None)
    return await http.get("/runs")


async def foreign_page(rows: Rows) -> httpx.Response:
    return await rows.http.post("/http_echo/runs", json={}, headers={"Origin": "https://evil.example"})


async def no_route(rows: Rows) -> httpx.Response:
    return await rows.http.get("/a/b/c/d/e")


async def no_method(rows: Rows) -> httpx.Response:
    return await rows.http.patch("/http_echo/runs", json={})


async def slow_body(rows: Rows) -> httpx.Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"params":'
        await asyncio.sleep(3)

    rows.patch.setattr("pyrula.http.bodies.BODY_SECONDS", 0.1)
    return await rows.http.post("/http_echo/runs", content=chunks(), headers={"Content-Type": "application/json"})


async def large_body(rows: Rows) -> httpx.Response:
    return await rows.http.post("/http_echo/runs", json={"params": {"x": "y" * 3_000_000}})


async def form(rows: Rows) -> httpx.Response:
    return await rows.http.post("/http_echo/runs", content=b"{}", headers={"Content-Type": "text/plain"})


async def other_host(rows: Rows) -> httpx.Response:
    return await rows.http.get("/runs", headers={"Host": "evil.example"})


async def bad_request(rows: Rows) -> httpx.Response:
    return await rows.http.post("/http_echo/runs", json={"param": {}})


async def bug(rows: Rows) -> httpx.Response:
    return await rows.broken(ZeroDivisionError("hunter2"))


async def shutting_down(rows: Rows) -> httpx.Response:
    app = create_app(await rows.site.client())
    http = await rows.site.http(await rows.site.served(app))
    run = await rows.start("http_nobody_serves")
    waiting = asyncio.create_task(http.get(f"{run}/result"))
    metrics = await http.get("/metrics")
    await wait_until_async(lambda: metrics.status_code == 200, description="the app to answer")
    app.closing.begin()
    return await waiting


ROWS: dict[str, tuple[int, Callable[[Rows], Awaitable[httpx.Response]]]] = {
    "RunNotFoundError": (404, run_not_found),
    "ScheduleNotFoundError": (404, schedule_not_found),
    "BackfillNotFoundError": (404, backfill_not_found),
    "BackfillRefused": (409, backfill_refused),
    "RunFinishedError": (409, run_finished),
    "RunNotWaitingError": (409, run_not_waiting),
    "TransitionRefused": (409, transition_refused),
    "InboxFullError": (429, inbox_full),
    "QueryError": (404, query_unknown),
    "QueryError (the handler raised)": (400, query_raised),
    "QueryTimeout": (504, query_timed_out),
    "UpdateRejected": (422, update_rejected),
    "UpdateError": (422, update_failed),
    "UpdateTimeout": (504, update_timed_out),
    "DurableInvocationError": (409, failed),
    "DurableInvocationCancelled": (409, cancelled),
    "DurableInvocationTimeout": (202, unfinished),
    "BackpressureRejected": (429, backpressure),
    "ParamsError": (422, bad_params),
    "SerializationError": (422, too_large),
    "StoreUnavailable": (503, store_away),
    "ConfigurationError": (503, misconfigured),
    "InvalidJSON": (400, no_json),
    "Unauthorized": (401, no_token),
    "Forbidden": (403, foreign_page),
    "NotFound": (404, no_route),
    "MethodNotAllowed": (405, no_method),
    "RequestTimeout": (408, slow_body),
    "BodyTooLarge": (413, large_body),
    "UnsupportedMediaType": (415, form),
    "HostNotAllowed": (421, other_host),
    "InvalidRequest": (422, bad_request),
    "InternalError": (500, bug),
    "ShuttingDown": (503, shutting_down),
}


@pytest.mark.parametrize("row", ROWS)
async def test_each_row(rows: Rows, row: str) -> None:
    status, request = ROWS[row]
    answer = await request(rows)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, row.partition(" ")[0])
    assert problem["type"] == f"urn:pyrula:problem:{problem['code']}"
    assert problem["detail"]
    assert problem["title"]
    if status in (429, 503) and row != "ConfigurationError":
        assert int(answer.headers["retry-after"]) >= 1
    if row.startswith("Update"):
        assert problem["update_id"] == "u"
    # nothing of the inside goes out: no trace, no file, no secret of an error that isn't the caller's
    assert not re.search(r"Traceback|\.py\b|hunter2|10\.0\.0\.7|trace", answer.text)


async def test_bad_params_name_each_field(rows: Rows) -> None:
    answer = await rows.http.post("/http_charge/runs", json={"params": {"order": {"id": 1}, "note": []}})
    assert {each["field"] for each in answer.json()["errors"]} == {
        "params.order.id",
        "params.order.amount_cents",
        "params.note",
    }
    answer = await rows.http.post("/http_charge/runs", json={"params": 1, "priority": 101})
    assert {each["field"] for each in answer.json()["errors"]} == {"params", "priority"}


def test_every_row_of_the_code_is_tried() -> None:
    codes = {kind.__name__ for kind in TABLE} | REFUSALS.keys()
    assert {row.partition(" ")[0] for row in ROWS} == codes


def test_the_table_of_the_docs_is_the_code() -> None:
    written = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    coded = [(row.partition(" ")[0], str(status)) for row, (status, _) in ROWS.items()]
    assert sorted(written) == sorted(coded)


def test_statuses_of_the_code() -> None:
    for kind, row in TABLE.items():
        assert ROWS[kind.__name__][0] == row.status
    for code, status in REFUSALS.items():
        assert ROWS[code][0] == status


def test_a_subclass_is_told_by_the_name_that_is_documented() -> None:
    class OfAStore(InboxFullError):
        """What a store may raise."""

    answer = problem_of(OfAStore("00-1", "queued", "is full"), route="")
    assert answer.status_code == 429
    assert b'"code":"InboxFullError"' in bytes(answer.body)


def test_texts_that_are_no_utf8_are_told_all_the_same() -> None:
    answer = problem_of(QueryError("00-1", "\ud800", "", "no query '\ud800'"), route="")
    assert answer.status_code == 404
    bytes(answer.body).decode()
