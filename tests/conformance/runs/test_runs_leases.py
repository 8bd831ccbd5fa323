"""Workers that die, workers that leave, answers that get lost: nobody's run is lost, none is held twice."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.leases import Watch
from pyrula.workflows.store.messages import Change, Child, End, Lease, Message, Parent, Wait
from pyrula.workflows.store.runs import Beat, Finished, Suspect
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server

GO = Wait("signal", "go")


@pytest.fixture
def cluster_shards() -> int:
    """Some of these are about the order of one queue."""
    return 1


async def test_two_workers_never_hold_one_run(rig: Rig) -> None:
    runs = {await rig.submit(owner=f"o{number % 7}") for number in range(60)}
    claims = await asyncio.gather(
        *((rig.store, rig.other)[number % 2].claim(f"w{number % 4}", SERVED, 3) for number in range(24))
    )
    taken = [run.lease.run_id for claim in claims for run in claim.runs]
    assert sorted(taken) == sorted(runs)


async def test_a_dead_workers_runs_go_to_others(rig: Rig) -> None:
    runs = {await rig.submit() for _ in range(100)}
    leases = [run.lease for run in (await rig.store.claim("w", SERVED, 100)).runs]
    assert await rig.die() == 100
    assert [suspect.worker for suspect in await rig.store.beats()] == []
    again = (await rig.other.claim("w2", SERVED, 200)).runs
    assert {run.lease.run_id for run in again} == runs
    assert {run.deaths for run in again} == {1}
    for lease in leases[:3]:
        with pytest.raises(LeaseLost):
            await rig.store.append(lease, Change(1, rows=[(0, b"z")]))
    beat = await rig.store.heartbeat("w", dict.fromkeys(leases, 0))
    assert set(beat.lost) == set(leases)


async def test_a_worker_that_beats_is_not_reaped(rig: Rig) -> None:
    lease = (await rig.started()).lease
    before = await rig.other.beats()
    assert await rig.store.heartbeat("w", {lease: 0}) == Beat((), ())
    assert [await rig.other.reap(suspect) for suspect in before] == [0] * len(before)
    await rig.store.append(lease, Change(1))


async def test_a_counters_value_never_returns(rig: Rig) -> None:
    await rig.started()
    before = await rig.other.beats()
    await rig.store.leave("w")
    await rig.claim()
    assert [await rig.other.reap(suspect) for suspect in before] == [0] * len(before)


async def test_deaths_are_forgotten_when_the_journal_grows(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.die()
    claimed = await rig.claim()
    assert claimed.deaths == 1
    await rig.store.append(claimed.lease, Change(1))
    assert (await rig.store.detail(lease.run_id)).deaths == 1
    await rig.store.append(claimed.lease, Change(2, rows=[(0, b"a")]))
    await rig.die()
    assert (await rig.claim()).deaths == 1


async def test_only_a_death_alone_dooms_a_run(rig: Rig) -> None:
    await rig.submit()
    for deaths in range(5):
        claimed = await rig.claim()
        assert (claimed.deaths, claimed.alone, claimed.doomed) == (deaths, deaths >= 3, False)
        await rig.die()
    claimed = await rig.claim()
    await rig.store.append(claimed.lease, Change(1, alone=True))
    await rig.store.release(claimed.lease)
    claimed = await rig.claim()
    await rig.store.append(claimed.lease, Change(1, alone=True))
    await rig.die()
    claimed = await rig.claim()
    assert claimed.doomed
    await rig.store.finish(claimed.lease, Change(1), End("failed", error=b'"worker died"'))
    assert await rig.store.status(claimed.lease.run_id) == "failed"


async def test_a_worker_that_leaves_is_not_charged(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.store.leave("w")
    assert await rig.store.beats() == []
    with pytest.raises(LeaseLost):
        await rig.store.append(lease, Change(1))
    assert (await rig.other.claim("w2", SERVED, 1)).runs[0].deaths == 0


async def test_a_claim_whose_answer_was_lost_is_put_back(rig: Rig) -> None:
    run_id = await rig.submit()
    await rig.store.claim("w", SERVED, 1)
    assert await rig.store.heartbeat("w", {}) == Beat((), ())
    assert await rig.store.status(run_id) == "running"
    assert await rig.store.heartbeat("w", {}) == Beat((), ())
    assert await rig.store.status(run_id) == "queued"
    claimed = await rig.claim()
    assert claimed.deaths == 0
    for _ in range(3):
        assert await rig.store.heartbeat("w", {claimed.lease: 0}) == Beat((), ())
    assert await rig.store.status(run_id) == "running"


async def test_a_run_is_not_put_back_while_its_claim_is_under_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder would begin with it when the answer comes, beside whoever had it then."""
    store = ValkeyStore(server.url, namespace=server.namespace, shards=1)
    rig = Rig(store, store)
    run_id = await rig.submit()
    claimer: Any = store._claimer
    complete, taken, answered = claimer._complete, asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: Any) -> Any:
        taken.set()
        await answered.wait()
        return await complete(*arguments)

    monkeypatch.setattr(claimer, "_complete", slowly)
    claiming = asyncio.create_task(rig.claim())
    await taken.wait()
    for _ in range(3):
        assert await store.heartbeat("w", {}) == Beat((), ())
        assert await store.status(run_id) == "running"
    answered.set()
    claimed = await claiming
    # its holder has a beat more to take it in hand
    assert await store.heartbeat("w", {}) == Beat((), ())
    assert await rig.complete(claimed.lease) == Finished("completed", ())
    await store.close()


async def test_a_run_whose_claim_was_answered_late_may_end_while_a_heartbeat_puts_it_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ValkeyStore(server.url, namespace=server.namespace, shards=1)
    rig = Rig(store, store)
    lease = (await rig.started()).lease
    assert await store.heartbeat("w", {}) == Beat((), ())
    release = store.release

    async def overtaken(lost: Lease, change: Change | None = None) -> None:
        await rig.complete(lease)
        await release(lost, change)

    monkeypatch.setattr(store, "release", overtaken)
    assert await store.heartbeat("w", {}) == Beat((), ())
    assert await store.status(lease.run_id) == "completed"
    await store.close()


async def test_a_heartbeat_tells_of_messages_and_lost_leases(rig: Rig) -> None:
    lease = (await rig.started()).lease
    other = lease._replace(epoch=9)
    await rig.signal(lease.run_id)
    assert await rig.store.heartbeat("w", {lease: 0, other: 0}) == Beat((other,), (lease.run_id,))
    assert await rig.store.heartbeat("w", {lease: 1}) == Beat((), ())


async def test_an_abandoned_claim_call_loses_nothing(rig: Rig) -> None:
    run_id = await rig.submit()
    call = asyncio.ensure_future(rig.store.claim("w", SERVED, 1))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await rig.store.status(run_id)
    for _ in range(2):
        await rig.store.heartbeat("w", {})
    assert (await rig.claim()).lease.run_id == run_id


async def test_owners_are_served_in_turn(rig: Rig) -> None:
    for _ in range(60):
        await rig.submit(owner="big")
    small = {await rig.submit(owner=f"small{number}") for number in range(20)}
    first = [(await rig.claim()).lease.run_id for _ in range(22)]
    assert small <= set(first)


async def test_one_turn_an_owner_over_all_it_runs(rig: Rig) -> None:
    served = [("a", "1"), ("b", "1"), ("c", "1")]
    for name in ("a", "b", "c"):
        for _ in range(10):
            await rig.submit(name, owner="big")
    small = [await rig.submit("a", owner=f"small{number}") for number in range(5)]
    first = [(await rig.claim(served=served)).lease.run_id for _ in range(7)]
    assert set(small) <= set(first)


async def test_a_childs_result_reaches_its_parent_once(rig: Rig) -> None:
    parent = (await rig.started()).lease
    child_id = rig.store.new_run_id(name="cart", parent=parent.run_id)
    await rig.store.append(parent, Change(1, rows=[(0, b"intent")], children=[Child(child_id)]))
    submission = rig.submission(parent=Parent(parent.run_id, child_id))
    submission = type(submission)(child_id, "cart", version="1", parent=submission.parent)
    await rig.store.submit(submission)
    assert (await rig.store.park(parent, Change(2), [Wait("child", child_id)])).parked
    child = await rig.claim()
    assert child.parent == Parent(parent.run_id, child_id)
    await rig.nothing()
    end = End("completed", b"7")
    for _ in range(2):
        await rig.store.finish(child.lease, Change(1), end)
    await rig.other.relay()
    claimed = await rig.claim()
    (unread,) = claimed.messages
    payload = b'{"run_id":"%b","status":"completed","value":7,"error":null}' % child_id.encode()
    assert unread.message == Message("child", child_id, child_id, payload)
    assert claimed.children == (Child(child_id),)
    await rig.store.append(claimed.lease, Change(1, seen=1, consumed=[1]))
    await rig.store.release(claimed.lease)
    assert (await rig.claim()).children == ()


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_parents_end_cancels_its_children_unless_abandoned(rig: Rig, end: str) -> None:
    parent = (await rig.started()).lease
    queued, abandoned = await rig.submit(), await rig.submit("other")
    parked = await rig.submit("third")
    third = (await rig.claim(served=[("third", "1")])).lease
    await rig.store.park(third, Change(1), [GO])
    children = [Child(queued), Child(abandoned, "abandon"), Child(parked), Child("00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC")]
    await rig.store.append(parent, Change(1, children=children))
    await rig.store.finish(parent, Change(2), End(end))
    assert await rig.store.status(queued) == "cancelled"
    assert await rig.store.status(abandoned) == "queued"
    assert await rig.store.status(parked) == "queued"
    assert (await rig.claim(served=[("third", "1")])).messages[0].message.kind == "cancel"


async def test_a_cancelled_child_that_never_started_tells_its_parent(rig: Rig) -> None:
    parent = await rig.parked(Wait("child", "c"))
    child = await rig.submit("other", parent=Parent(parent, "c"))
    await rig.store.deliver(child, Message("cancel", "cancel"))
    claimed = await rig.claim()
    assert b'"status":"cancelled"' in claimed.messages[0].message.payload


async def test_children_of_children_end_too(rig: Rig) -> None:
    ids = [rig.store.new_run_id(name="cart") for _ in range(4)]
    leases: list[Lease] = []
    for place, run_id in enumerate(ids):
        parent = Parent(ids[place - 1], run_id) if place else None
        base = rig.submission(parent=parent)
        await rig.store.submit(type(base)(run_id, "cart", version="1", parent=parent))
        if place < 3:
            leases.append((await rig.claim()).lease)
            await rig.store.append(leases[-1], Change(1, children=[Child(ids[place + 1])]))
    await rig.complete(leases[0], 2)
    kinds = [[unread.message.kind for unread in await rig.store.unread(lease, 0)] for lease in leases[1:]]
    assert kinds == [["cancel"], []]
    await rig.store.finish(leases[1], Change(2), End("cancelled"))
    await rig.store.finish(leases[2], Change(2), End("cancelled"))
    assert await rig.store.status(ids[3]) == "cancelled"


def test_a_watch_needs_a_whole_lease_of_its_own_time() -> None:
    watch, beat = Watch(30.0), Suspect(0, "w", 5)
    assert watch.observe([beat], 0.0) == []
    assert watch.observe([beat], 29.9) == []
    assert watch.observe([beat._replace(counter=6)], 30.0) == []
    assert watch.observe([beat._replace(counter=6)], 59.9) == []
    watch.forget()
    assert watch.observe([beat._replace(counter=6)], 60.0) == []
    assert watch.observe([beat._replace(counter=6)], 90.0) == [beat._replace(counter=6)]
    assert watch.observe([], 91.0) == []
    assert watch.observe([beat._replace(counter=6)], 92.0) == []
