"""Claiming, writing, parking and ending: what a run's holder may do, and nobody else."""

import pytest

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.events import decode_event, encode_event
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Applied, Change, End, Interrupt, Lease, Message, Reply, Wait
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import LINKS_KEPT, Result
from tests.conformance.runs.rig import SERVED, Rig

SLEEP = Wait("sleep", deadline=4_000_000_000.0)
GO = Wait("signal", "go")


async def test_a_claimed_run_comes_with_all_that_replay_needs(rig: Rig) -> None:
    run_id = await rig.submit(params=b'{"a":1}', owner="t1", metadata=b'{"m":2}')
    claimed = await rig.claim()
    assert claimed.lease == Lease(run_id, "w", 1)
    assert (claimed.name, claimed.version, claimed.params) == ("cart", "1", b'{"a":1}')
    assert (claimed.owner, claimed.metadata, claimed.attempt) == ("t1", b'{"m":2}', 1)
    assert (list(claimed.rows), list(claimed.messages), claimed.parent) == ([], [], None)
    assert await rig.store.status(run_id) == "running"
    assert abs(claimed.created_at - rig.store.now()) < 10
    await rig.nothing()


async def test_a_worker_gets_only_what_it_serves(rig: Rig) -> None:
    await rig.submit(version="2")
    await rig.submit("other")
    await rig.nothing()
    assert (await rig.claim(served=[("cart", "1"), ("cart", "2")])).version == "2"


async def test_a_run_without_a_stamp_gets_the_claiming_workers_version(rig: Rig) -> None:
    run_id = await rig.submit(version=None)
    assert (await rig.store.detail(run_id)).version is None
    claimed = await rig.claim(served=[("cart", "7")])
    assert claimed.version == "7"
    await rig.store.release(claimed.lease)
    await rig.nothing(served=[("cart", "8")])
    assert (await rig.claim(served=[("cart", "7")])).version == "7"
    assert (await rig.store.detail(run_id)).version == "7"


async def test_rows_and_events_come_back(rig: Rig) -> None:
    lease = (await rig.started()).lease
    event = encode_event("step_completed", 5.0, op="m.1", step="charge", attempt=1, seconds=0.5)
    assert await rig.store.append(lease, Change(1, rows=[(0, b"a"), (1, bytes(range(256)))], events=[event])) == Reply()
    assert await rig.store.append(lease, Change(2, rows=[(2, b"c"), (0, b""), (10, b"k")])) == Reply()
    await rig.store.release(lease)
    again = await rig.claim()
    assert list(again.rows) == [(1, bytes(range(256))), (2, b"c"), (10, b"k")]
    assert again.lease.epoch > lease.epoch
    events = [decode_event(row) for row in await rig.store.events(lease.run_id)]
    assert [event.type for event in events] == ["submitted", "step_completed"]
    assert events[1].data["step"] == "charge"
    assert list((await rig.store.history(lease.run_id)).rows) == list(again.rows)


async def test_a_change_is_written_once(rig: Rig) -> None:
    lease = (await rig.started()).lease
    change = Change(1, rows=[(0, b"a")], events=[encode_event("waiting", 1.0)])
    await rig.store.append(lease, change)
    await rig.store.append(lease, Change(2, rows=[(0, b"")]))
    await rig.store.append(lease, change)
    history = await rig.store.history(lease.run_id)
    assert list(history.rows) == []
    assert len(await rig.store.events(lease.run_id)) == 2
    with pytest.raises(LeaseLost):
        await rig.store.append(lease, Change(4))


async def test_who_does_not_hold_the_run_writes_nothing(rig: Rig) -> None:
    lease = (await rig.started()).lease
    run_id, change = lease.run_id, Change(1, rows=[(0, b"z")], events=[encode_event("started", 1.0)])
    strangers = [
        lease._replace(worker="x"),
        lease._replace(epoch=lease.epoch + 1),
        lease._replace(epoch=lease.epoch - 1),
        lease._replace(run_id=run_id + "~2"),
        lease._replace(run_id=run_id[:-1] + ("0" if run_id[-1] != "0" else "1")),
    ]
    for stranger in strangers:
        with pytest.raises(LeaseLost):
            await rig.store.append(stranger, change)
        with pytest.raises(LeaseLost):
            await rig.store.unread(stranger, 0)
        with pytest.raises(LeaseLost):
            await rig.store.park(stranger, change, [SLEEP])
        with pytest.raises(LeaseLost):
            await rig.store.pause(stranger, change, b'"x"')
        with pytest.raises(LeaseLost):
            await rig.store.release(stranger, change)
        with pytest.raises(LeaseLost):
            await rig.store.finish(stranger, change, End("completed"))
        with pytest.raises(LeaseLost):
            await rig.store.finish(stranger, change, End("continued_as_new", params=b"{}"))
    assert await rig.store.status(run_id) == "running"
    assert list((await rig.store.history(run_id)).rows) == []
    assert len(await rig.store.events(run_id)) == 1
    await rig.store.append(lease, change)


async def test_a_zombie_changes_nothing_after_its_run_went_to_another(rig: Rig) -> None:
    old = (await rig.started()).lease
    await rig.store.append(old, Change(1, rows=[(0, b"a")]))
    assert await rig.die() == 1
    for act in (
        rig.store.append(old, Change(2, rows=[(1, b"z")])),
        rig.store.finish(old, Change(2), End("failed", error=b'"z"')),
    ):
        with pytest.raises(LeaseLost):
            await act
    new = await rig.claim("w2")
    for act in (
        rig.store.append(old, Change(2, rows=[(1, b"z")])),
        rig.store.park(old, Change(2), [SLEEP]),
        rig.store.finish(old, Change(2), End("completed", b'"z"')),
    ):
        with pytest.raises(LeaseLost):
            await act
    assert list(new.rows) == [(0, b"a")]
    await rig.complete(new.lease, value=b'"good"')
    assert await rig.store.result(old.run_id) == Result(old.run_id, RunStatus.COMPLETED, b'"good"', None)
    with pytest.raises(LeaseLost):
        await rig.store.finish(old, Change(2), End("completed", b'"z"'))


async def test_a_finish_is_final_and_may_be_sent_again(rig: Rig) -> None:
    lease = (await rig.started()).lease
    assert await rig.store.result(lease.run_id) is None
    end = End("failed", error=b'{"type":"E"}', events=[encode_event("failed", 2.0)])
    first = await rig.store.finish(lease, Change(1, rows=[(0, b"a")]), end)
    assert first == await rig.store.finish(lease, Change(1, rows=[(0, b"a")]), end)
    assert first.status == "failed"
    with pytest.raises(LeaseLost):
        await rig.store.append(lease, Change(2))
    with pytest.raises(LeaseLost):
        await rig.store.park(lease, Change(2), [SLEEP])
    result = await rig.store.result(lease.run_id)
    assert result == Result(lease.run_id, RunStatus.FAILED, b"null", b'{"type":"E"}')
    assert await rig.store.status(lease.run_id) == "failed"
    events = [decode_event(row).type for row in await rig.store.events(lease.run_id)]
    assert events == ["submitted", "failed"]
    detail = await rig.store.detail(lease.run_id)
    assert detail.finished_at is not None
    assert detail.worker is None
    await rig.nothing()


@pytest.mark.parametrize(
    ("wait", "status"),
    [
        (Wait("sleep", deadline=4e9), "sleeping"),
        (GO, "signal_waiting"),
        (Wait("interrupt", "i1"), "interrupt_waiting"),
        (Wait("child", "c1"), "child_waiting"),
        (Wait("retry", deadline=4e9), "retrying"),
    ],
)
async def test_the_first_wait_names_the_status(rig: Rig, wait: Wait, status: str) -> None:
    run_id = await rig.parked(wait, GO)
    assert await rig.store.status(run_id) == status
    assert list((await rig.store.detail(run_id)).waits) == [wait, GO]
    await rig.nothing()


async def test_a_park_may_be_sent_again(rig: Rig) -> None:
    lease = (await rig.started()).lease
    for _ in range(2):
        assert await rig.store.park(lease, Change(1, rows=[(0, b"a")]), [GO]) == Reply(parked=True)
    with pytest.raises(LeaseLost):
        await rig.store.append(lease, Change(2))
    await rig.signal(lease.run_id)
    assert await rig.store.park(lease, Change(1, rows=[(0, b"a")]), [GO]) == Reply(parked=True)
    again = await rig.claim()
    assert list(again.rows) == [(0, b"a")]
    assert await rig.store.status(lease.run_id) == "running"


async def test_a_park_answers_a_message_that_came_first(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.signal(lease.run_id, "other")
    await rig.signal(lease.run_id, "go", id="s1", payload=b"1")
    reply = await rig.store.park(lease, Change(1, rows=[(0, b"a")]), [GO])
    assert not reply.parked
    assert [unread.message for unread in reply.messages][1] == Message("signal", "s1", "go", b"1")
    # and what was answered is in nobody's way
    assert await rig.store.park(lease, Change(1, rows=[(0, b"a")]), [GO]) == reply
    taken = reply.messages[1].number
    assert await rig.store.park(lease, Change(2, seen=taken, consumed=[taken]), [GO]) == Reply(parked=True)
    await rig.nothing()
    await rig.signal(lease.run_id, "other")
    await rig.nothing()
    await rig.signal(lease.run_id, "go")
    again = await rig.claim()
    assert [unread.message.name for unread in again.messages] == ["other", "other", "go"]


async def test_messages_the_holder_has_seen_do_not_keep_it_from_parking(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.store.deliver(lease.run_id, Message("update", "u1", "add"))
    (unread,) = (await rig.store.append(lease, Change(1))).messages
    assert await rig.store.unread(lease, 0) == (unread,)
    assert await rig.store.unread(lease, unread.number) == ()
    assert (await rig.store.park(lease, Change(2, seen=unread.number), [GO])).parked
    await rig.nothing()


async def test_an_update_is_applied_with_its_entry(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.store.deliver(lease.run_id, Message("update", "u1", "add", b'{"n":1}'))
    assert await rig.store.read_update(lease.run_id, "u1") is None
    (unread,) = (await rig.store.append(lease, Change(1))).messages
    applied = Applied("u1", "ok", b"41")
    change = Change(2, unread.number, rows=[(0, b"u")], consumed=[unread.number], applied=[applied])
    assert await rig.store.append(lease, change) == Reply()
    assert await rig.store.read_update(lease.run_id, "u1") == applied
    assert list((await rig.store.detail(lease.run_id)).unread) == []


async def test_a_released_run_is_not_charged(rig: Rig) -> None:
    claimed = await rig.started()
    await rig.store.release(claimed.lease, Change(1, rows=[(0, b"a")]))
    await rig.store.release(claimed.lease, Change(1, rows=[(0, b"a")]))
    assert await rig.store.status(claimed.lease.run_id) == "queued"
    again = await rig.claim()
    assert (again.deaths, list(again.rows)) == (0, [(0, b"a")])
    await rig.store.release(claimed.lease, Change(1, rows=[(0, b"a")]))
    assert await rig.store.status(claimed.lease.run_id) == "running"


@pytest.mark.parametrize("cluster_shards", [1])  # of one queue
async def test_a_due_timer_queues_the_run_ahead_of_new_ones(rig: Rig) -> None:
    first = await rig.submit()
    claimed = await rig.claim()
    assert (await rig.store.claim("w", SERVED, 1)).next_due is None
    await rig.submit()
    assert (await rig.store.park(claimed.lease, Change(1), [Wait("sleep", deadline=1.0)])).parked
    assert (await rig.claim()).lease.run_id == first


async def test_the_next_timer_is_told(rig: Rig) -> None:
    await rig.parked(GO, Wait("sleep", deadline=4e9 + 0.5))
    await rig.parked(GO, Wait("sleep", deadline=4e9))
    assert await rig.store.next_due() == 4e9
    assert (await rig.store.claim("w", SERVED, 1)).next_due == 4e9


async def test_a_woken_run_leaves_no_timer(rig: Rig) -> None:
    run_id = await rig.parked(GO, SLEEP)
    assert await rig.store.next_due() == SLEEP.deadline
    await rig.signal(run_id)
    assert await rig.store.next_due() is None


async def test_a_run_that_continues_goes_on_in_the_same_hands(rig: Rig) -> None:
    lease = (await rig.started(params=b'{"n":0}', owner="t", idempotency_key="k")).lease
    run_id = lease.run_id
    await rig.store.append(lease, Change(1, rows=[(0, b"a")], opened=[Interrupt("i1", b"1")]))
    await rig.signal(run_id, payload=b"7")
    end = End("continued_as_new", params=b'{"n":1}', version="2")
    change = Change(2, rows=[(1, b"b")])
    finished = await rig.store.finish(lease, change, end)
    link = finished.next
    assert finished.status == "continued_as_new"
    assert link is not None
    assert link == (await rig.store.finish(lease, change, end)).next
    assert link.lease == Lease(run_id + "~2", "w", lease.epoch + 1)
    assert (link.params, link.version, link.owner, list(link.rows)) == (b'{"n":1}', "2", "t", [])
    assert [unread.message.payload for unread in link.messages] == [b"7"]
    assert list(link.interrupts) == []
    with pytest.raises(LeaseLost):
        await rig.store.append(lease, Change(3))
    assert await rig.store.status(run_id) == "running"
    assert (await rig.store.detail(run_id)).run_id == run_id + "~2"
    old, new = await rig.store.history(run_id), await rig.store.history(run_id + "~2")
    assert (old.status, list(old.rows), old.params) == ("continued_as_new", [(0, b"a"), (1, b"b")], b'{"n":0}')
    assert (new.status, list(new.rows), new.params) == ("running", [], b'{"n":1}')
    with pytest.raises(RunNotFoundError):
        await rig.store.status(run_id + "~3")
    assert [decode_event(row).type for row in await rig.store.events(run_id)] == ["continued"]
    await rig.store.append(link.lease, Change(1, rows=[(0, b"c")]))
    await rig.complete(link.lease, 2, b"9")
    expected = Result(run_id + "~2", RunStatus.COMPLETED, b"9", None)
    assert await rig.store.result(run_id) == await rig.store.result(run_id + "~2") == expected
    with pytest.raises(LeaseLost):
        await rig.store.finish(lease, change, end)


async def test_a_long_chain_stays_flat(rig: Rig) -> None:
    lease = (await rig.started()).lease
    first = lease.run_id
    for _ in range(LINKS_KEPT + 5):
        link = (await rig.store.finish(lease, Change(1, rows=[(0, b"a")]), End("continued_as_new", params=b"{}"))).next
        assert link is not None
        lease = link.lease
    assert lease.run_id == f"{first}~{LINKS_KEPT + 6}"
    for link_id in (first, f"{first}~5"):
        with pytest.raises(RunNotFoundError):
            await rig.store.history(link_id)
    for number in range(6, LINKS_KEPT + 6):
        history = await rig.store.history(f"{first}~{number}")
        assert (history.status, list(history.rows)) == ("continued_as_new", [(0, b"a")])
    await rig.store.release(lease)
    assert list((await rig.claim()).rows) == []
