"""A history of any length goes out page by page: all of it, in order, and never more of it in memory than a page."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from pyrula.http import create_app
from pyrula.workflows import Context, InlineWorkflowRunner, StoreUnavailable, workflow

ITEM = 64 * 1024


@workflow(name="long_history")
async def long_history(ctx: Context, items: int, size: int) -> None:
    for number in range(items):
        await ctx.emit(f"{number} ".ljust(size, "."))
    await ctx.wait_for_signal("go")


@pytest.fixture
async def runner() -> AsyncIterator[InlineWorkflowRunner]:
    runner = InlineWorkflowRunner()
    yield runner
    await runner.close()


def local(runner: InlineWorkflowRunner) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(runner.client))
    return httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport)


class Pages:
    """Counts what is read of a store's events, and may fail."""

    def __init__(self, runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch, fail_after: int = 10**9) -> None:
        self.sizes: list[int] = []
        self.lengths: list[int] = []
        read = runner.store.events_of

        async def events_of(run_id: str, start: int, limit: int | None = None) -> list[bytes]:
            assert limit is not None
            if len(self.sizes) == fail_after:
                raise StoreUnavailable("it is gone")
            rows = await read(run_id, start, limit)
            self.sizes.append(sum(map(len, rows)))
            self.lengths.append(len(rows))
            return rows

        monkeypatch.setattr(runner.store, "events_of", events_of)


@pytest.mark.parametrize(("items", "size"), [(3000, 10), (60, ITEM), (0, 0)])
async def test_all_of_it_in_pages(
    runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch, items: int, size: int
) -> None:
    run = await runner.start(long_history, {"items": items, "size": size})
    pages = Pages(runner, monkeypatch)
    async with local(runner) as http:
        told = (await http.get(f"/long_history/runs/{run}/events")).json()
    assert [(each["type"], each["at"], each["data"]) for each in told] == await run.events()
    assert sum(each["type"] == "emitted" for each in told) == items
    assert max(pages.sizes) <= 1024 * 1024
    assert max(pages.lengths) <= 64
    if items == 3000:
        assert len(pages.lengths) < 60


async def test_a_stream_reads_in_pages_too(runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await runner.start(long_history, {"items": 60, "size": ITEM})
    await run.cancel()
    pages = Pages(runner, monkeypatch)
    async with local(runner) as http:
        sent = (await http.get(f"/long_history/stream/{run}")).text
    assert sent.count("event: emitted") == 60
    assert sent.count("event: end") == 1
    assert max(pages.sizes) <= 1024 * 1024


async def test_a_request_to_cancel_stays_behind_what_came_before_it(runner: InlineWorkflowRunner) -> None:
    run = await runner.start(long_history, {"items": 20, "size": 1})
    await run.cancel()
    async with local(runner) as http:
        told = [each["type"] for each in (await http.get(f"/long_history/runs/{run}/events")).json()]
    assert told == [event.type for event in await run.events()]
    assert told.index("emitted") < told.index("cancel_requested") < told.index("cancelled")


async def test_a_history_that_is_cut_is_no_json(runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await runner.start(long_history, {"items": 500, "size": 1})
    Pages(runner, monkeypatch, fail_after=2)
    async with local(runner) as http:
        answer = await http.get(f"/long_history/runs/{run}/events")
        with pytest.raises(json.JSONDecodeError):
            answer.json()
        Pages(runner, monkeypatch, fail_after=0)
        # nothing was sent yet, so there is a status to say it
        assert (await http.get(f"/long_history/runs/{run}/events")).status_code == 503
