"""client.list and client.counts on each store."""

from datetime import UTC, datetime, timedelta

import pytest

from pyrula.workflows import RunStatus, WorkflowClient
from pyrula.workflows.store.messages import Wait
from tests.conformance.client.holder import Holder


async def listed(client: WorkflowClient, **wanted: object) -> list[str]:
    """All pages."""
    found: list[str] = []
    cursor = None
    while True:
        page = await client.list(**wanted, cursor=cursor)  # type: ignore[arg-type]
        found += [summary.run_id for summary in page]
        cursor = page.cursor
        if cursor is None:
            return found


async def test_the_newest_come_first_page_after_page(client: WorkflowClient) -> None:
    runs = [(await client.submit("client_cart", {"size": number})).run_id for number in range(7)]
    runs.sort(key=lambda run_id: run_id[3:], reverse=True)
    assert await listed(client) == runs
    for limit in (1, 3, 7):
        assert await listed(client, limit=limit) == runs
    first = await client.list(limit=3)
    assert len(first) == 3
    assert first.cursor == first.runs[-1].run_id
    assert (await client.list(limit=7)).cursor is None


async def test_a_run_is_told_as_it_is(client: WorkflowClient, holder: Holder) -> None:
    run = await client.submit("client_cart", {"size": 1}, owner="ada")
    held = await holder.take()
    (summary,) = await client.list()
    assert (summary.run_id, summary.name, summary.owner, summary.version) == (run.run_id, "client_cart", "ada", "1")
    assert (summary.status, summary.attempt, summary.worker) == ("running", 1, held.lease.worker)
    now = datetime.fromtimestamp(client.store.now(), UTC)
    assert now - timedelta(minutes=1) < summary.created_at < now + timedelta(minutes=1)
    assert summary.finished_at is None
    assert not summary.finished
    await held.complete(5)
    (summary,) = await client.list()
    assert summary.finished_at is not None
    assert summary.finished_at >= summary.created_at
    assert summary.worker is None
    assert summary.finished


async def test_filters_go_together(client: WorkflowClient, holder: Holder) -> None:
    cart = [(await client.submit("client_cart", owner=owner)).run_id for owner in ("ada", "ada", "ben", "")]
    pay = [(await client.submit("client_pay", {"cents": 1}, owner=owner)).run_id for owner in ("ada", "ben")]
    assert set(await listed(client, name="client_cart")) == set(cart)
    assert set(await listed(client, owner="ada")) == {*cart[:2], pay[0]}
    assert await listed(client, owner="") == [cart[3]]
    assert await listed(client, owner="ben", name="client_pay") == [pay[1]]
    assert await listed(client, owner="nobody") == []
    assert await listed(client, name="nothing") == []
    held = await holder.take()
    await held.fail(ValueError("no"))
    ended = held.lease.run_id
    assert await listed(client, status="failed") == [ended]
    assert set(await listed(client, status=["queued", "failed"])) == {*cart, *pay}
    assert set(await listed(client, status="unfinished")) == {*cart, *pay} - {ended}
    assert await listed(client, status="finished") == [ended]
    assert await listed(client, status="parked") == []
    assert await listed(client, status=[]) == []
    assert await listed(client, status="continued_as_new") == []
    for limit in (1, 2):
        mine = await listed(client, owner="ada", status="queued", name="client_cart", limit=limit)
        assert set(mine) == set(cart[:2]) - {ended}
    assert set(await listed(client, since=timedelta(hours=1))) == {*cart, *pay}
    now = datetime.fromtimestamp(client.store.now(), UTC)
    assert await listed(client, since=now + timedelta(hours=1)) == []


async def test_counts_by_status(client: WorkflowClient, holder: Holder) -> None:
    none = await client.counts()
    assert set(none.by_status) == set(RunStatus)
    assert (none.total, none.unfinished, none.oldest_queued) == (0, 0, None)
    for _ in range(3):
        await client.submit("client_cart")
    await client.submit("client_pay", {"cents": 1})
    held = await holder.take()
    await held.park(Wait("signal", "paid"))
    counts = await client.counts()
    assert {status: number for status, number in counts.by_status.items() if number} == {
        "queued": 3,
        "signal_waiting": 1,
    }
    assert (counts.total, counts.unfinished) == (4, 4)
    assert counts.oldest_queued is not None
    assert timedelta(0) <= counts.oldest_queued < timedelta(minutes=1)
    assert (await client.counts("client_pay")).total + (await client.counts("client_cart")).total == 4
    assert (await client.counts("nothing")).oldest_queued is None


async def test_what_makes_no_sense_is_refused(client: WorkflowClient) -> None:
    with pytest.raises(ValueError, match="limit must be a number from 1 to 1000, not 0"):
        await client.list(limit=0)
    with pytest.raises(ValueError, match="status 'gone' is none of queued, running"):
        await client.list(status="gone")
    with pytest.raises(ValueError, match="cursor 'x' is none that a page has given"):
        await client.list(cursor="x")
    with pytest.raises(ValueError, match="since must be a datetime with a time zone"):
        await client.list(since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="a workflow's name must be a text"):
        await client.counts("")
