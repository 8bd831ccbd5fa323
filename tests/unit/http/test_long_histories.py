"""What is long goes out page by page: events of any number, all of them, in order, and never more of them in memory
than a page; a run's journal, which is bounded, in pieces.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pyrula.http import create_app
from pyrula.workflows import (
    Context,
    InlineWorkflowRunner,
    MemoryStore,
    RunStatus,
    StoreUnavailable,
    WorkflowClient,
    step,
    workflow,
)
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.history import History
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.record_changes import RecordChange, RecordId
from pyrula.workflows.store.record_places import answer_where
from pyrula.workflows.store.records import Registration
from tests.http.remote import seconds
from tests.services.waiting import wait_until_async

ITEM = 64 * 1024


@workflow(name="long_history")
async def long_history(ctx: Context, items: int, size: int) -> None:
    for number in range(items):
        await ctx.emit(f"{number} ".ljust(size, "."))
    await ctx.wait_for_signal("go")


@step
async def large(size: int) -> str:
    return "." * size


@workflow(name="long_journal")
async def long_journal(ctx: Context, rows: int, size: int) -> None:
    for _ in range(rows):
        await ctx.step(large, size)


@pytest.fixture
async def runner() -> AsyncIterator[InlineWorkflowRunner]:
    runner = InlineWorkflowRunner()
    yield runner
    await runner.close()


def local(client: WorkflowClient) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(client))
    return httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport)


class Pages:
    """Counts what is read of a store's events, and may fail."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch, fail_after: int = 10**9) -> None:
        self.sizes: list[int] = []
        self.lengths: list[int] = []
        read = store.events_of

        async def events_of(run_id: str, start: int, limit: int | None = None) -> list[bytes]:
            assert limit is not None
            if len(self.sizes) == fail_after:
                raise StoreUnavailable("it is gone")
            rows = await read(run_id, start, limit)
            self.sizes.append(sum(map(len, rows)))
            self.lengths.append(len(rows))
            return rows

        async def events(run_id: str) -> list[bytes]:
            raise AssertionError("all events are read at once")

        monkeypatch.setattr(store, "events_of", events_of)
        monkeypatch.setattr(store, "events", events)


@pytest.mark.parametrize(("items", "size"), [(3000, 10), (60, ITEM), (0, 0)])
async def test_all_of_it_in_pages(
    runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch, items: int, size: int
) -> None:
    run = await runner.start(long_history, {"items": items, "size": size})
    happened = await run.events()
    pages = Pages(runner.store, monkeypatch)
    async with local(runner.client) as http:
        told = (await http.get(f"/long_history/runs/{run}/events")).json()
    assert [(each["type"], seconds(each["at"]), each["data"]) for each in told] == happened
    assert sum(each["type"] == "emitted" for each in told) == items
    assert max(pages.sizes) <= 1024 * 1024
    assert max(pages.lengths) <= 64
    if items == 3000:
        assert len(pages.lengths) < 60


async def test_a_stream_reads_in_pages_too(runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await runner.start(long_history, {"items": 60, "size": ITEM})
    await run.cancel()
    pages = Pages(runner.store, monkeypatch)
    async with local(runner.client) as http:
        sent = (await http.get(f"/long_history/stream/{run}")).text
    assert sent.count("event: emitted") == 60
    assert sent.count("event: end") == 1
    assert max(pages.sizes) <= 1024 * 1024


async def test_a_request_to_cancel_stays_behind_what_came_before_it(runner: InlineWorkflowRunner) -> None:
    run = await runner.start(long_history, {"items": 20, "size": 1})
    await run.cancel()
    async with local(runner.client) as http:
        told = [each["type"] for each in (await http.get(f"/long_history/runs/{run}/events")).json()]
    assert told == [event.type for event in await run.events()]
    assert told.index("emitted") < told.index("cancel_requested") < told.index("cancelled")


async def test_a_history_that_is_cut_is_no_json(runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await runner.start(long_history, {"items": 500, "size": 1})
    Pages(runner.store, monkeypatch, fail_after=2)
    async with local(runner.client) as http:
        answer = await http.get(f"/long_history/runs/{run}/events")
        with pytest.raises(json.JSONDecodeError):
            answer.json()
        Pages(runner.store, monkeypatch, fail_after=0)
        # nothing was sent yet, so there is a status to say it
        assert (await http.get(f"/long_history/runs/{run}/events")).status_code == 503


async def test_the_events_of_a_records_run_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    token, address = Token(1, 1), "k0123456789-3"
    await store.claim_source(b"source", 1)
    await store.register_source(token, Registration(b"source", address, "long_history", "1", "w1", b"{}", 0))
    run, nothing = (RecordId(store.shard_of(b"source"), address, position, 1) for position in (7, 8))
    events = [encode_event("emitted", float(number), item="." * ITEM) for number in range(60)]
    change = RecordChange(run, "h1", 1, RunStatus.RUNNING, events=events)
    assert await store.append_rows([Batch(b"source", token, (), 7, None, change)]) == [None]
    async with local(WorkflowClient(store)) as http:
        asking = asyncio.create_task(http.get(f"/long_history/runs/{nothing}/events"))
        asked = await wait_until_async(
            lambda: store.take_questions(nothing.shard, address), description="its worker to be asked"
        )
        await store.answer(asked[0], answer_where(RunStatus.RUNNING, [["started", 1.5, {}]]))
        assert [each["type"] for each in (await asking).json()] == ["started"]
        pages = Pages(store, monkeypatch)
        told = (await http.get(f"/long_history/runs/{run}/events")).json()
    assert [seconds(each["at"]) for each in told] == [float(number) for number in range(60)]
    assert max(pages.sizes) <= 1024 * 1024


@pytest.mark.parametrize(("rows", "size"), [(4000, 10), (30, ITEM), (0, 0)])
async def test_a_journal_goes_out_in_pieces(runner: InlineWorkflowRunner, rows: int, size: int) -> None:
    run = await runner.start(long_journal, {"rows": rows, "size": size})
    await run.result()
    pieces: list[bytes] = []
    app = create_app(runner.client)

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            pieces.append(message.get("body", b""))
            await send(message)

        await app(scope, receive, sent)

    transport = httpx.ASGITransport(noted)
    async with httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport) as http:
        answer = await http.get(f"/long_journal/runs/{run}/history")
    assert answer.headers["content-type"] == "application/json"
    assert History.from_json(answer.content) == await run.history()
    assert answer.text == (await run.history()).to_json()
    assert len((await run.history()).rows) == rows
    assert max(map(len, pieces)) <= ITEM + 1024
