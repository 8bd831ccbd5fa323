"""The routes beside those of the client's tables, each against real servers."""

import asyncio
import json
from contextlib import suppress

import httpx
import pytest
from fastapi import FastAPI

from pyrula.http import HttpApp, create_app, workflow_router
from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, MemoryStore, ValkeyStore, WorkflowClient, workflow
from pyrula.workflows.store.history import History
from tests.http.conftest import Site
from tests.services.child import free_port
from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until_async


async def start(http: httpx.AsyncClient, name: str, **params: object) -> str:
    return str((await http.post(f"/{name}/runs", json={"params": params})).json()["run_id"])


async def test_lists_and_counts(site: Site) -> None:
    http = await site.local()
    runs = [await start(http, name) for name in ("http_echo", "http_cart", "http_echo")]
    listed = (await http.get("/runs")).json()
    assert ([run["run_id"] for run in listed["runs"]], listed["cursor"]) == (runs[::-1], None)
    assert listed["runs"][0].keys() >= {"name", "status", "owner", "created_at", "worker"}
    pages = []
    cursor = None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/runs", params=query)).json()
        pages.append([run["run_id"] for run in page["runs"]])
        cursor = page["cursor"]
        if cursor is None:
            break
    assert pages == [runs[:0:-1], runs[:1]]
    assert [run["run_id"] for run in (await http.get("/http_echo/runs")).json()["runs"]] == [runs[2], runs[0]]
    queued = (await http.get("/runs?status=queued&status=failed")).json()["runs"]
    assert len(queued) == 3
    assert (await http.get("/runs?status=finished")).json()["runs"] == []
    assert (await http.get("/runs", params={"since": "2999-01-01T00:00:00Z"})).json()["runs"] == []
    assert len((await http.get("/runs", params={"since": "1d12h"})).json()["runs"]) == 3
    # a workflow's list is of that workflow
    assert (await http.get("/http_echo/runs?name=http_cart")).status_code == 422
    for query, field in (
        ("status=nonsense", "status"),
        ("cursor=nonsense", "cursor"),
        ("since=2026-01-01T00:00:00", "since"),
        ("since=yesterday", "since"),
        ("since=100", "since"),
        ("limit=0", "limit"),
        ("statuss=failed", "statuss"),
    ):
        answer = await http.get(f"/runs?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    counts = (await http.get("/counts")).json()
    assert counts["by_status"]["queued"] == 3
    assert counts["oldest_queued_seconds"] >= 0
    assert (await http.get("/counts?name=http_cart")).json()["by_status"]["queued"] == 1
    assert 'pyrula_runs{status="queued"} 3.0' in (await http.get("/metrics")).text


async def test_schedules(site: Site) -> None:
    http = await site.local()
    await site.worker()
    body = {"workflow": "http_charge", "params": {"order": {"id": "o", "amount_cents": 1}}, "overlap": "allow"}
    made = await http.put(
        "/schedules/nightly%2F1", json=body | {"trigger": {"cron": "0 9 * * mon-fri", "tz": "Europe/Paris"}}
    )
    assert made.status_code == 200, made.text
    assert made.json()["trigger"] == {"cron": "0 9 * * mon-fri", "tz": "Europe/Paris"}
    assert (await http.get("/schedules/nightly%2F1")).json() | {"note": None} == made.json()
    replaced = (await http.put("/schedules/nightly%2F1", json=body | {"trigger": {"every": 86_400}})).json()
    assert replaced["trigger"] == {"every": 86_400}
    assert (await http.post("/schedules/nightly%2F1/pause")).json()["paused"] is True
    assert (await http.post("/schedules/nightly%2F1/unpause")).json()["paused"] is False
    fired = await http.post("/schedules/nightly%2F1/trigger")
    assert fired.status_code == 201
    result = await http.get(f"/http_charge/runs/{fired.json()['run_id']}/result")
    assert result.json()["value"]["order"] == "o"
    assert [each["id"] for each in (await http.get("/schedules")).json()] == ["nightly/1"]
    for change, field in (
        ({"trigger": {"cron": "61 9 * * *"}}, "trigger.cron"),
        ({"trigger": {"cron": "0 9 * * *", "tz": "Mars"}}, "trigger.cron"),
        ({"trigger": {"every": 0.1}}, "trigger.every"),
        ({"trigger": {"every": 60, "cron": "0 9 * * *"}}, "trigger"),
        ({"trigger": {"every": 60, "tz": "UTC"}}, "trigger"),
        ({"trigger": {}}, "trigger"),
        ({"trigger": "hourly"}, "trigger"),
        ({"trigger": {"every": 60}, "params": {}}, "params.order"),
        ({"trigger": {"every": 60}, "window": 0}, "window"),
    ):
        refused = await http.put("/schedules/x", json=body | change)
        assert refused.status_code == 422
        assert [each["field"] for each in refused.json()["errors"]] == [field]
    assert (await http.put("/schedules/runs", json=body | {"trigger": {"every": 60}})).status_code == 422
    assert (await http.delete("/schedules/nightly%2F1")).status_code == 204
    assert (await http.delete("/schedules/nightly%2F1")).json()["code"] == "ScheduleNotFoundError"


async def test_backfills(site: Site) -> None:
    http = await site.local()
    body = {"workflow": "http_echo", "topic": "orders", "backfill_id": "b", "start": "24h", "end": 100, "rate": 5}
    made = await http.post("/backfills", json=body)
    assert (made.status_code, made.json()["status"], made.json()["rate"]) == (200, "requested", 5)
    assert (await http.post("/backfills", json=body)).json() == made.json()
    assert [each["id"] for each in (await http.get("/backfills")).json()] == ["b"]
    for verb, status in (("pause", "paused"), ("resume", "requested"), ("cancel", "cancelled")):
        assert (await http.post(f"/backfills/b/{verb}")).json()["status"] == status
    assert (await http.get("/backfills/b")).json()["status"] == "cancelled"
    for change, field in (
        ({"start": "nonsense"}, "start"),
        ({"end": "2026-01-01"}, "end"),
        ({"start": 10, "end": 5}, "end"),
        ({"backfill_id": "a b"}, "backfill_id"),
        ({"partitions": [-1]}, "partitions.0"),
        ({"partitions": []}, "partitions"),
        ({"where": "os:system"}, "where"),
    ):
        refused = await http.post("/backfills", json=body | change)
        assert refused.status_code == 422
        assert [each["field"] for each in refused.json()["errors"]] == [field]
    unknown = await http.post("/backfills", json=body | {"backfill_id": "c", "workflow": "http_ecko"})
    assert "hasn't imported workflow 'http_ecko'" in unknown.json()["note"]
    assert "did you mean http_echo?" in unknown.json()["note"]


async def test_what_failed_in_a_backfill_is_redriven(site: Site) -> None:
    http = await site.local()
    body = {"workflow": "http_echo", "topic": "orders", "backfill_id": "b", "dead_letter_topic": "orders.dlq"}
    await http.post("/backfills", json=body)
    refused = await http.post("/backfills/b/redrive")
    assert (refused.status_code, refused.json()["code"]) == (409, "BackfillRefused")
    await http.post("/backfills/b/cancel")
    redriven = (await http.post("/backfills/b/redrive", json={"rate": 7})).json()
    told = {name: redriven[name] for name in ("id", "topic", "failed_of", "rate", "status")}
    assert told == {"id": "b.redrive", "topic": "orders.dlq", "failed_of": "b", "rate": 7, "status": "requested"}
    assert (await http.post("/backfills/b/redrive", json={"new_id": "again"})).json()["id"] == "again"
    assert (await http.post("/backfills/b/redrive", json={"new_id": "a b"})).json()["errors"][0]["field"] == "new_id"
    assert (await http.post("/backfills/none/redrive")).status_code == 404


async def test_batches_that_are_open(site: Site) -> None:
    http = await site.local()
    for owner in ("acme", "globex"):
        body = {"event": {"user_id": "u"}, "owner": owner}
        for _ in range(2):
            # the header is the event's id
            fed = await http.post("/http_digest/events", json=body, headers={"Idempotency-Key": "e-1"})
            assert fed.json() is None
    opened = (await http.get("/http_digest/events")).json()
    assert sorted((each["key"], each["owner"], each["events"]) for each in opened) == [
        ("u", "acme", 1),
        ("u", "globex", 1),
    ]
    differs = await http.post(
        "/http_digest/events", json=body | {"event_id": "e-2"}, headers={"Idempotency-Key": "e-1"}
    )
    assert differs.json()["errors"][0]["field"] == "event_id"


async def test_the_key_in_the_header_is_a_messages_id(site: Site) -> None:
    client, http = await site.client(), await site.local()
    await site.worker()
    run_id = await start(http, "http_cart")
    key = {"Idempotency-Key": "click-1"}
    for _ in range(2):
        added = await http.post(f"/http_cart/runs/{run_id}/update", json={"update": "add", "payload": "A"}, headers=key)
        assert added.json() == {"update_id": "click-1", "value": 1}
        await http.post(f"/http_cart/runs/{run_id}/signal", json={"signal": "later"}, headers=key)
    assert [each.id for each in (await client.detail("http_cart", run_id)).unread] == ["click-1"]


async def test_what_is_there_for_get_is_there_for_head(site: Site) -> None:
    http = await site.local()
    run_id = await start(http, "http_echo")
    for path in ("/healthz", "/readyz", "/runs", "/openapi.json", f"/http_echo/runs/{run_id}"):
        answer = await http.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert answer.headers["content-type"] == "application/json"
    assert (await http.head("/http_echo/runs/none")).status_code == 404


async def test_a_method_that_is_not_there_hears_of_those_that_are(site: Site) -> None:
    http, app = await site.local(), FastAPI()
    app.include_router(workflow_router(await site.client()), prefix="/api")
    inner = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
    for method, path, allowed in (
        ("PATCH", "/http_echo/runs", "GET, HEAD, POST"),
        ("OPTIONS", "/schedules/x", "DELETE, GET, HEAD, PUT"),
        # nobody needs a stream's head, which would be kept open for nothing
        ("HEAD", "/http_echo/stream/x", "DELETE, GET"),
        ("GET", "/schedules/x/trigger", "POST"),
    ):
        for client, prefix in ((http, ""), (inner, "/api")):
            refused = await client.request(method, prefix + path)
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    await inner.aclose()


async def test_a_note_tells_of_what_was_perhaps_not_meant(site: Site) -> None:
    http, key = await site.local(), {"Idempotency-Key": "k"}
    first = await http.post("/http_cart/runs", json={"params": {"size": 1}}, headers=key)
    again = await http.post("/http_cart/runs", json={"params": {"size": 2}}, headers=key)
    assert (first.json()["note"], again.status_code, again.json()["same_params"]) == (None, 200, False)
    assert "started with other params" in again.json()["note"]
    assert "hasn't imported workflow 'http_kart'" in (await http.post("/http_kart/runs", json={})).json()["note"]
    body = {"workflow": "http_kart", "trigger": {"every": 60}, "window": 5, "metadata": {"by": "ada"}}
    made = (await http.put("/schedules/s", json=body)).json()
    assert ("did you mean http_cart?" in made["note"], made["window"], made["metadata"]) == (True, 5, {"by": "ada"})


async def test_why_a_run_is_not_running(site: Site) -> None:
    http = await site.local()
    run_id = await start(http, "http_echo")
    told = (await http.get(f"/http_echo/runs/{run_id}/explain")).json()
    assert (told["status"], told["served"]) == ("queued", False)
    assert "no live worker serves http_echo version 1" in told["text"]
    await site.worker()

    async def waits() -> bool:
        return "waits for signal go" in (await http.get(f"/http_echo/runs/{run_id}/explain")).json()["text"]

    await wait_until_async(waits, description="the run to wait for its signal", interval=0.05)


async def test_a_history_is_as_the_command_writes_it(site: Site) -> None:
    client, http = await site.client(), await site.local()
    await site.worker()
    run = await client.submit("http_counts", {"left": 2})
    await run.result(timeout=180)
    for link in (1, 2):
        told = await http.get(f"/http_counts/runs/{run}/history", params={"link": link})
        assert History.from_json(told.content) == await run.history(link=link)
    assert (await http.get(f"/http_counts/runs/{run}/history?link=3")).status_code == 404
    assert json.loads((await http.get(f"/http_counts/runs/{run}/history")).text)["run_id"] == f"{run}~2"


@workflow(name="http_double")
async def double(ctx: Context, number: int) -> int:
    return number * 2


async def test_bindings_of_a_worker_in_this_process(site: Site, kafka: str, topic_prefix: str) -> None:
    topics = Topics(kafka)
    topics.create(topic_prefix, f"{topic_prefix}.{topic_prefix}.dlq", partitions=2)
    topics.produce(topic_prefix, [Message(b"%d" % number, b"%d" % number) for number in range(20)])
    app = await site.app()
    http = await site.http(await site.served(app))
    assert (await http.get("/bindings")).json() == {"state": None, "reasons": [], "bindings": []}
    worker = KafkaWorker(
        [Binding(double, topic=topic_prefix, group=topic_prefix)],
        store=site.store(),
        kafka=KafkaOptions(bootstrap_servers=kafka),
    )
    app.worker = worker
    running = asyncio.create_task(worker.run(), name="kafka worker")
    try:

        async def done() -> bool:
            (binding,) = (await http.get("/bindings")).json()["bindings"]
            return bool(binding["completed"] == 20 and binding["lag"] == 0 and binding["state"] == "healthy")

        await wait_until_async(done, description="the binding to be through", timeout=40, interval=0.1)
        told = (await http.get("/bindings")).json()
        assert told["state"] == "healthy"
        assert (told["bindings"][0]["topics"], told["bindings"][0]["group"]) == ([topic_prefix], topic_prefix)
        metrics = (await http.get("/metrics")).text
        name = told["bindings"][0]["name"]
        assert f'pyrula_records_completed_total{{binding="{name}"}} 20.0' in metrics
        assert f'pyrula_binding_lag{{binding="{name}"}} 0.0' in metrics
    finally:
        worker.stop()
        await running


async def test_a_workflow_worker_in_this_process(site: Site) -> None:
    app = await site.app()
    http = await site.http(await site.served(app))
    assert (await http.get("/worker")).json() == {"state": None, "reasons": [], "stats": None}
    app.worker = await site.worker()
    run_id = await start(http, "http_charge", order={"id": "o", "amount_cents": 1})
    assert (await http.get(f"/http_charge/runs/{run_id}/result")).status_code == 200
    told = (await http.get("/worker")).json()
    assert (told["state"], told["reasons"], told["stats"]["completed"]) == ("healthy", [], 1)
    assert 'pyrula_worker_runs_total{how="completed"} 1.0' in (await http.get("/metrics")).text
    assert (await http.get("/bindings")).json()["bindings"] == []


class Part:
    """A worker of this process, as health sees it."""

    def __init__(self) -> None:
        self.ended = False
        self.said = "healthy"

    def state(self) -> str:
        return self.said


async def health(http: httpx.AsyncClient) -> tuple[int, int]:
    return (await http.get("/healthz")).status_code, (await http.get("/readyz")).status_code


async def test_health_tells_the_truth(site: Site) -> None:
    app, part = await site.app(), Part()
    http = await site.http(await site.served(app))
    assert await health(http) == (200, 200)
    app.watched = part
    for said, ready in (("healthy", 200), ("degraded", 200), ("starting", 503), ("unhealthy", 503), ("stopping", 503)):
        part.said = said
        # a restart mends none of these
        assert await health(http) == (200, ready), said
    part.ended = True
    assert await health(http) == (503, 503)
    part.ended, part.said = False, "healthy"
    app.closing.begin()
    assert await health(http) == (200, 503)
    assert (await http.get("/readyz")).json() == {
        "ok": False,
        "parts": {"store": "healthy", "worker": "healthy", "server": "stopping"},
    }


async def test_a_store_that_is_away_makes_it_unready_and_not_unhealthy(site: Site, unused_port: int) -> None:
    store = ValkeyStore(f"valkey://:hunter2@127.0.0.1:{unused_port}", retry_for=0.2)
    http = await site.http(await site.served(create_app(WorkflowClient(store))))
    assert await health(http) == (200, 503)
    answer = await http.get("/runs")
    assert (answer.status_code, answer.json()["code"]) == (503, "StoreUnavailable")
    assert "hunter2" not in answer.text
    assert str(unused_port) not in answer.text
    with suppress(Exception):
        await store.close()


@pytest.fixture
def unused_port() -> int:
    return free_port()


async def test_the_router_in_an_app_of_ones_own() -> None:
    app = FastAPI()
    app.include_router(workflow_router(WorkflowClient(MemoryStore())), prefix="/api")

    @app.get("/own/{word}")
    async def own(word: str) -> str:
        return word

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        made = await http.post("/api/a%2Fb/runs", json={})
        assert made.status_code == 201
        assert made.headers["location"] == f"runs/{made.json()['run_id']}"
        assert (await http.get(f"/api/a%2Fb/runs/{made.json()['run_id']}")).json()["name"] == "a/b"
        missing = await http.get("/api/a/runs/nosuch")
        assert (missing.status_code, missing.json()["code"]) == (404, "RunNotFoundError")
        assert (await http.get("/own/x")).json() == "x"
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as outside:
        refused = await outside.post("/api/a/runs", json={})
        assert (refused.status_code, refused.json()["code"]) == (421, "HostNotAllowed")
        assert (await outside.get("/own/x")).status_code == 200


async def test_an_api_for_some_workflows_only() -> None:
    app: HttpApp = create_app(WorkflowClient(MemoryStore()), workflows=[double])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        assert (await http.post("/http_double/runs", json={"params": {"number": 1}})).status_code == 201
        for answer in (
            await http.post("/http_echo/runs", json={}),
            await http.post("/http_echo/events", json={"event": {}}),
            await http.get("/http_echo/runs/00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC"),
            await http.put("/schedules/x", json={"workflow": "http_echo", "trigger": {"every": 60}}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "NotFound")
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert [path for path in paths if path.startswith("/http")] == ["/http_double/runs", "/http_double/stream"]
