"""Listing on many shards: in one order, without a walk over the keyspace, with an index that runs leave behind."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyrula.workflows.store.ids import new_run_id
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import Line, Wanted, order_of
from pyrula.workflows.store.messages import Change, End, Message, Wait
from pyrula.workflows.store.runs import Submission
from pyrula.workflows.store.valkey import ValkeyStore, run_listing
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until_async

QUEUED = frozenset({RunStatus.QUEUED})


@pytest.fixture
async def rig(server: Server) -> AsyncIterator[Rig]:
    store, other = (ValkeyStore(server.url, namespace=server.namespace) for _ in range(2))
    await asyncio.gather(store.open(), other.open())
    yield Rig(store, other)
    await asyncio.gather(store.close(), other.close())


async def lines(rig: Rig, wanted: Wanted) -> list[Line]:
    found: list[Line] = []
    while True:
        page = await rig.other.list_runs(wanted)
        found += page.runs
        if page.after is None:
            return found
        wanted = replace(wanted, after=page.after)


async def submit(rig: Rig, number: int, name: str = "cart", owner: str = "") -> str:
    """Ids of five runs are equal but for the shard."""
    run_id = new_run_id(number % 5, 1e9 + number // 5, number // 5)
    return (await rig.store.submit(Submission(run_id, name, version="1", owner=owner))).run_id


@pytest.mark.parametrize("limit", [1, 4, 7, 64, 1000])
async def test_pages_over_many_shards_miss_nothing_and_repeat_nothing(rig: Rig, limit: int) -> None:
    runs = await asyncio.gather(*(submit(rig, number, f"n{number % 4}", f"o{number % 3}") for number in range(120)))
    expected = sorted(runs, key=order_of, reverse=True)
    for wanted in (Wanted(), Wanted(statuses=QUEUED)):
        assert [line.run_id for line in await lines(rig, replace(wanted, limit=limit))] == expected
    some = await lines(rig, Wanted(name="n1", limit=limit))
    assert [line.run_id for line in some] == [run for run in expected if runs.index(run) % 4 == 1]
    some = await lines(rig, Wanted(name="n1", owner="o2", limit=limit))
    assert [line.run_id for line in some] == [run for run in expected if runs.index(run) % 12 == 5]
    some = await lines(rig, Wanted(since=1e9 + 20, limit=limit))
    assert [line.run_id for line in some] == [run for run in expected if runs.index(run) >= 100]


async def test_a_rare_run_among_many_is_found_in_bounded_steps(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_listing, "MAX_EXAMINED", 40)
    rare = await submit(rig, 0, owner="big")
    await asyncio.gather(*(submit(rig, number, "other", owner="big") for number in range(5, 200)))
    page = await rig.other.list_runs(Wanted(name="cart", owner="big", limit=10))
    assert (page.runs, page.after is None) == ((), False)
    assert [line.run_id for line in await lines(rig, Wanted(name="cart", owner="big", limit=10))] == [rare]


async def test_nothing_walks_the_keyspace(own_valkey: ValkeyServer, namespace: str) -> None:
    server = Server(own_valkey.url, namespace)
    store = ValkeyStore(server.url, namespace=namespace)
    await store.open()
    rig = Rig(store, store)
    await asyncio.gather(*(submit(rig, number) for number in range(50)))
    before = [await server.calls(command) for command in ("keys", "scan")]
    for wanted in (Wanted(), Wanted(name="cart"), Wanted(statuses=QUEUED), Wanted(owner="o"), Wanted(limit=3)):
        await lines(rig, wanted)
    await rig.other.count_runs()
    await rig.other.count_runs("cart")
    assert [await server.calls(command) for command in ("keys", "scan")] == before
    await store.close()
    await server.clear()
    await server.close()


async def test_a_run_that_was_queued_again_waits_from_then_on(rig: Rig) -> None:
    run_id = await rig.submit()
    first = (await rig.other.count_runs("cart")).queued_since
    claimed = await rig.claim()
    assert (await rig.other.count_runs("cart")).queued_since is None
    await rig.store.park(claimed.lease, Change(1), [Wait("signal", "go")])
    await rig.signal(run_id)
    again = (await rig.other.count_runs("cart")).queued_since
    assert first is not None
    assert again is not None
    assert again > first


async def test_the_index_forgets_what_is_gone(rig: Rig, server: Server) -> None:
    rig.store._runs.retention = 2.0  # type: ignore[attr-defined]
    await asyncio.gather(*(submit(rig, number, owner="o") for number in range(40)))
    first, *others = (await rig.store.claim("w", SERVED, 20)).runs
    for line in await lines(rig, Wanted(statuses=QUEUED)):
        await rig.store.deliver(line.run_id, Message("cancel", "cancel"))
    # the one that is retried ends last, so that it is still there
    for claimed in (*others, first):
        await rig.store.finish(claimed.lease, Change(1), End("failed", error=b'"x"'))
    kept = first.lease.run_id
    await rig.store.retry(kept)

    async def left() -> int:
        await rig.store.claim("w2", [("nothing", "1")], 1)
        tags = [b"{%b:%d}list" % (server.namespace.encode(), shard) for shard in range(16)]
        return sum([await server.call("ZCARD", tag) for tag in tags]) == 4

    await wait_until_async(left, description="entries of all runs but the one that was retried to go")
    assert [line.run_id for line in await lines(rig, Wanted())] == [kept]
    assert dict((await rig.other.count_runs()).by_status) == {"queued": 1}
