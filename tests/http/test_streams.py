"""A run followed by server-sent events: every event once, in order, whoever dies or leaves in between."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pyrula.http import Tokens, create_app, hash_of, new_token
from pyrula.http.following import Position
from pyrula.workflows import Event, WorkflowClient
from tests.http.conftest import Site
from tests.http.remote import seconds
from tests.http.sse import Sent, read_all, read_stream
from tests.services.process import WorkerProcess
from tests.services.waiting import wait_until_async

WORKER = """
import asyncio, sys
from pyrula.workflows import ValkeyStore, WorkerOptions, WorkflowWorker
from tests.http.workflows import ALL

url, namespace = sys.argv[1:]
options = WorkerOptions(claim_poll_interval=0.1, park_after=0.2, lease_seconds=1.5, heartbeat_interval=0.2)
worker = WorkflowWorker(ALL, store=ValkeyStore(url, namespace=namespace, shards=2), options=options)
print("ready", flush=True)
asyncio.run(worker.run())
"""
STEPS = "http steps/a b%é"


async def in_the_store(client: WorkflowClient, name: str, run_id: str) -> list[tuple[str, Event]]:
    """Every event of every link of the run, straight from the store."""
    found: list[tuple[str, Event]] = []
    link = run_id
    while True:
        events = await client.events_of(name, link)
        found += [(link, event) for event in events]
        if events[-1].type != "continued_as_new":
            return found
        link = events[-1].data["run_id"]


def told(sent: list[Sent]) -> list[tuple[str, Event]]:
    assert all(each.event != "end" for each in sent[:-1])
    events = sent[:-1] if sent[-1].event == "end" else sent
    return [(each.data["run_id"], Event(each.event, seconds(each.data["at"]), each.data["data"])) for each in events]


async def test_a_run_is_followed_to_its_end(site: Site) -> None:
    client, http = await site.client(), await site.local()
    await site.worker()
    run = await client.submit("http_cart", {"size": 1})
    reading = asyncio.create_task(read_all(http, f"/http_cart/stream/{run}"))
    await run.update("add", "A-1")
    await run.signal("checkout")
    sent = await reading
    assert told(sent) == await in_the_store(client, "http_cart", str(run))
    assert sent[-1].data == {"run_id": str(run), "status": "completed", "value": ["A-1"], "error": None}
    assert [each.event for each in sent[:2]] == ["submitted", "started"]
    # nothing is left to tell: a browser stops here
    async with http.stream("GET", f"/http_cart/stream/{run}", headers={"Last-Event-ID": sent[-1].id}) as answer:
        assert answer.status_code == 204


async def test_any_event_is_a_place_to_go_on_from(site: Site) -> None:
    client, http = await site.client(), await site.local()
    await site.worker()
    run = await client.submit("http_counts", {"left": 3})
    await run.result(timeout=180)
    path = f"/http_counts/stream/{run}"
    sent = await read_all(http, path)
    assert told(sent) == await in_the_store(client, "http_counts", str(run))
    assert {each.data["run_id"] for each in sent} == {str(run), f"{run}~2", f"{run}~3"}
    for number, each in enumerate(sent):
        assert await read_all(http, path, each.id) == sent[number + 1 :]
    assert await read_all(http, f"{path}?after={sent[3].id}") == sent[4:]
    # a later link's id begins with that link
    later = await read_all(http, f"/http_counts/stream/{run}~2")
    assert later == [each for each in sent if each.data["run_id"] != str(run)]


async def test_a_submit_is_followed_at_once(site: Site) -> None:
    http = await site.local()
    await site.worker()
    body = {"params": {"left": 2}, "idempotency_key": "k"}
    sent = await read_all(http, "/http_counts/stream", method="POST", json=body)
    assert (sent[0].event, sent[-1].data["value"]) == ("submitted", 1)
    async with http.stream("POST", "/http_counts/stream", json=body) as again:
        assert again.status_code == 200
        location = str(again.url.join(again.headers["location"]))
    assert await read_all(http, location) == sent


async def test_a_run_that_is_retried_goes_on(site: Site) -> None:
    client, http = await site.client(), await site.local()
    await site.worker()
    run = await client.submit("http_fails")
    first = await read_all(http, f"/http_fails/stream/{run}")
    assert first[-1].data["status"] == "failed"
    assert first[-1].data["error"]["message"] == "broken"
    await run.retry()
    second = await read_all(http, f"/http_fails/stream/{run}", first[-1].id)
    assert second[0].event == "retried"
    assert told(first) + told(second) == await in_the_store(client, "http_fails", str(run))


@pytest.mark.parametrize("text", ["", "x", "1", "1-", "-1-0", "1-0.ende", "1-0 ", "9" * 40 + "-1", "1-" + "9" * 40])
async def test_what_is_no_position(site: Site, text: str) -> None:
    client, http = await site.client(), await site.local()
    run = await client.submit("http_echo")
    answer = await http.get(f"/http_echo/stream/{run}", params={"after": text})
    if text == "":
        assert Position.parse(text) is None
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")


async def test_who_leaves_changes_nothing(site: Site) -> None:
    client, http = await site.client(), await site.local()
    run = await client.submit("http_nobody_serves")
    stream = read_stream(http, f"/http_nobody_serves/stream/{run}")
    assert (await anext(stream)).event == "submitted"
    assert "pyrula_http_streams_open 1.0" in (await http.get("/metrics")).text
    await stream.aclose()  # type: ignore[attr-defined]

    async def closed() -> bool:
        return "pyrula_http_streams_open 0.0" in (await http.get("/metrics")).text

    await wait_until_async(closed, description="the stream to be closed", interval=0.05)
    assert await run.status() == "queued"
    assert [event.type for event in await run.events()] == ["submitted"]


async def test_a_shutdown_ends_a_stream_and_another_server_goes_on(site: Site) -> None:
    client = await site.client()
    app = create_app(client)
    http, other = await site.http(await site.served(app)), await site.local()
    run = await client.submit("http_echo")
    stream = read_stream(http, f"/http_echo/stream/{run}")
    first = await anext(stream)
    app.closing.begin()
    assert [sent async for sent in stream] == []
    await site.worker()
    await run.signal("go", 1)
    rest = await read_all(other, f"/http_echo/stream/{run}", first.id)
    assert told([first, *rest]) == await in_the_store(client, "http_echo", str(run))


@pytest.fixture
def workers(valkey: str, namespace: str) -> Iterator[list[WorkerProcess]]:
    started = [WorkerProcess(WORKER, valkey, namespace) for _ in range(2)]
    try:
        for worker in started:
            worker.__enter__()
        yield started
    finally:
        for worker in started:
            worker.__exit__(None, None, None)


async def test_over_a_kill_of_the_worker_and_broken_connections(site: Site, workers: list[WorkerProcess]) -> None:
    """The worker that has the run is killed twice; the reader's connection breaks again and again, and it comes back to
    one server or the other."""
    seed = int(os.environ.get("PYRULA_SEED", "0")) or random.randrange(1, 10**6)
    print(f"PYRULA_SEED={seed}")
    chance = random.Random(seed)
    client = await site.client()
    servers = [await site.local(), await site.local()]
    for worker in workers:
        worker.wait_for_line("ready")
    run = await client.submit(STEPS, {"steps": 30, "seconds": 0.25, "hold_at": 20})
    path = f"/{quote(STEPS, safe='')}/stream/{run}"
    sent: list[Sent] = []
    connections = kills = 0
    while not sent or sent[-1].event != "end":
        connections += 1
        until = len(sent) + chance.randrange(1, 30)
        stream: Any = read_stream(chance.choice(servers), path, sent[-1].id if sent else None)
        async for each in stream:
            sent.append(each)
            steps = sum(one.event == "step_completed" for one in sent)
            if steps >= (5, 12, 10**9)[kills]:
                await kill_the_holder(client, run, workers)
                kills += 1
                if kills == 2:
                    await run.update("go")
            if len(sent) >= until:
                break
        await stream.aclose()
    assert (kills, connections > 3) == (2, True)
    assert len({each.id for each in sent}) == len(sent)
    assert told(sent) == await in_the_store(client, STEPS, str(run))
    assert sent[-1].data["value"] == 30
    emitted = [each.data["data"]["item"] for each in sent if each.event == "emitted"]
    assert emitted == [{"done": number} for number in range(30)]
    attempts = [each.data["data"]["worker"] for each in sent if each.event == "started"]
    assert len(attempts) >= 3


async def kill_the_holder(client: WorkflowClient, run: Any, workers: list[WorkerProcess]) -> None:
    """SIGKILL, and a new process in its place."""

    async def held() -> str | None:
        return (await run.detail()).worker

    holder = await wait_until_async(held, description="somebody to hold the run")
    victim = next(worker for worker in workers if f"-{worker.pid}-" in holder)
    victim.kill()
    victim.start()


async def test_a_stream_ends_when_its_token_is_taken_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrula.http.tokens.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("pyrula.http.streams._HOLDS_SECONDS", 0.0)
    kept, taken = new_token(), new_token()
    tables = [f'[[tokens]]\nhash = "{hash_of(each)}"\nowner = "a"\nrole = "read"\n' for each in (kept, taken)]
    file = tmp_path / "tokens.toml"
    file.write_text("\n".join(tables))
    run = await (await site.client()).submit("http_echo", owner="a")
    base_url = await site.served(await site.app(tokens=Tokens.load(file)))
    http = await site.http(base_url, taken)
    async with http.stream("GET", f"/http_echo/stream/{run}") as answer:
        lines = answer.aiter_lines()
        while "submitted" not in await anext(lines):
            pass
        file.write_text(tables[0])
        # to the end of the answer: the run itself goes on
        assert not [line async for line in lines if line.startswith("event: ")]
    assert (await http.get(f"/http_echo/runs/{run}")).status_code == 401
    assert (await (await site.http(base_url, kept)).get(f"/http_echo/runs/{run}")).json()["status"] == "queued"
