"""Many shards: where a run lies, and that no owner waits for another's work on all of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows.store.ids import RunId, new_run_id
from pyrula.workflows.store.messages import Change, End, Message, Wait
from pyrula.workflows.store.runs import Query, Submission
from pyrula.workflows.store.valkey import ValkeyStore
from pyrula.workflows.store.valkey.run_claims import Tour
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server
from tests.services.valkey import ValkeyServer

BIG, SMALL = 600, 50


@pytest.fixture
async def rig(server: Server) -> AsyncIterator[Rig]:
    store, other = (ValkeyStore(server.url, namespace=server.namespace) for _ in range(2))
    await asyncio.gather(store.open(), other.open())
    yield Rig(store, other)
    await asyncio.gather(store.close(), other.close())


async def test_a_run_lies_where_its_id_says(rig: Rig, server: Server) -> None:
    runs = [RunId.parse(await rig.submit()) for _ in range(60)]
    assert len({run.shard for run in runs}) > 8
    for run in runs:
        tag = b"{%b:%d}" % (server.namespace.encode(), run.shard)
        assert await server.call("EXISTS", tag + b"r:" + run.chain.encode())
    assert len({RunId.parse(rig.store.new_run_id(name="a", idempotency_key="k")).shard for _ in range(20)}) == 1
    parent = str(runs[0])
    assert RunId.parse(rig.store.new_run_id(name="a", parent=parent)).shard == runs[0].shard


async def test_all_keys_of_a_shard_carry_its_tag(rig: Rig, server: Server) -> None:
    for number in range(20):
        await rig.submit("{x}", owner="}{", idempotency_key=f"{{{number}}}")
    name = server.namespace.encode()
    for key in await server.keys() - {b"{%b}meta" % name}:
        tag, _, _ = key.partition(b"}")
        assert tag[1:].partition(b":")[0] == name
        assert 0 <= int(tag.rpartition(b":")[2]) < 16


@pytest.mark.parametrize("n", [1, 7, 16, 102])
async def test_small_owners_start_within_the_bound_beside_a_big_one(rig: Rig, n: int) -> None:
    async def submit(owner: str, number: int) -> str:
        run_id = new_run_id(number % 16, 1e9 + number, number)
        return (await rig.store.submit(Submission(run_id, "cart", version="1", owner=owner))).run_id

    await asyncio.gather(*(submit("big", number) for number in range(BIG)))
    small = set(await asyncio.gather(*(submit(f"s{number}", BIG + number * 7) for number in range(SMALL))))
    started: list[str] = []
    while len(started) < 102:
        claims = await rig.store.claim("w", SERVED, min(n, 102 - len(started)))
        assert claims.runs
        started += [run.lease.run_id for run in claims.runs]
    assert small <= set(started)
    assert len(set(started)) == len(started)


async def test_every_run_is_claimed_once_and_no_more_than_asked(rig: Rig) -> None:
    runs = await asyncio.gather(*(rig.submit(owner=f"o{number % 3}") for number in range(100)))
    taken: list[str] = []
    for _ in range(30):
        claims = await rig.store.claim("w", SERVED, 7)
        assert len(claims.runs) <= 7
        taken += [run.lease.run_id for run in claims.runs]
    assert sorted(taken) == sorted(runs)


async def test_life_on_many_shards(rig: Rig) -> None:
    runs = await asyncio.gather(*(rig.submit() for _ in range(40)))
    claimed = (await rig.store.claim("w", SERVED, 40)).runs
    assert {run.lease.run_id for run in claimed} == set(runs)
    held = {run.lease: 0 for run in claimed}
    assert (await rig.store.heartbeat("w", held)).lost == ()
    await asyncio.gather(
        *(
            rig.store.park(run.lease, Change(1), [Wait("sleep", deadline=4e9 + place)])
            for place, run in enumerate(claimed)
        )
    )
    assert await rig.store.next_due() == 4e9
    assert (await rig.store.claim("w", SERVED, 1)).next_due == 4e9
    await asyncio.gather(*(rig.other.deliver(run_id, Message("cancel", "cancel")) for run_id in runs))
    again = (await rig.store.claim("w", SERVED, 100)).runs
    assert len(again) == 40
    queries = [Query(f"q{place}", run.lease.run_id, "x", b"[]") for place, run in enumerate(again)]
    await asyncio.gather(*(rig.other.ask(query.run_id, query, seconds=60) for query in queries))
    assert sorted(await rig.store.questions("w", SERVED, 100)) == sorted(queries)
    for run in again[:20]:
        await rig.store.finish(run.lease, Change(1), End("cancelled"))
    assert await rig.die() == 20


async def test_no_walk_over_the_keyspace(own_valkey: ValkeyServer, namespace: str) -> None:
    server = Server(own_valkey.url, namespace)
    store = ValkeyStore(server.url, namespace=namespace)
    await store.open()
    rig = Rig(store, store)
    before = [await server.calls(command) for command in ("keys", "scan")]
    await asyncio.gather(*(rig.submit() for _ in range(20)))
    for run in (await rig.store.claim("w", SERVED, 20)).runs:
        await rig.store.detail(run.lease.run_id)
        await rig.complete(run.lease)
    await rig.store.heartbeat("w", {})
    assert [await server.calls(command) for command in ("keys", "scan")] == before
    await store.close()
    await server.clear()
    await server.close()


def test_a_tour_asks_for_no_more_than_wanted_and_serves_every_seat_in_turn() -> None:
    tour = Tour(4)
    seats = [3, 0, 1, 2]
    served = [0, 0, 0, 0]
    for _ in range(6):
        for shard, share in tour.share(seats, 1).items():
            served[shard] += share
    assert served == seats
    assert tour.share(seats, 6) == {0: 3, 2: 1, 3: 2}
    shares = tour.share(seats, 14)
    assert sum(shares.values()) == 14
    assert shares[0] >= 6
    assert tour.share([0, 0, 0, 0], 5) == {}
    assert tour.share(seats, 4) == {0: 3, 2: 1}
    assert tour.share([1, 0, 0, 0], 1) == {0: 1}
