"""What is queued behind a lane's head: each script and rule by itself. `test_lanes` plays them all at random."""

from collections.abc import Sequence
from typing import Any

import pytest

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.lanes import (
    HandedOver,
    HandingOver,
    Homecoming,
    LaneBounds,
    LaneState,
    LinedUp,
    LiningUp,
    lane_of,
)
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Change, End, Message, Wait
from pyrula.workflows.store.refusals import TransitionRefused
from pyrula.workflows.store.runs import ClaimedRun
from tests.conformance.records.rig import ADDRESS, SOURCE, Rig

A, B = lane_of(b"a"), lane_of(b"b")
WAIT = (Wait("signal", "go"),)
ORDERS = f"@k{ADDRESS.rpartition('-')[0]}"
SERVED = [(ORDERS, "1")]
MANY = LaneBounds(1000, 1 << 20, 1 << 20)
CANCEL = Message("cancel", "cancel")
FAILURE = b'{"type":"ValueError","message":"no","trace":""}'


async def park(rig: Rig, position: int, lane: bytes | None = A, **fields: Any) -> HandedOver:
    await rig.change(position, 1, status=RunStatus.SIGNAL_WAITING, waits=WAIT, rows=[(0, b"row")])
    values: dict[str, Any] = {"attempt": 1, "seen": 0, "waits": WAIT, "rows": [(0, b"row")], **fields}
    run = HandingOver(rig.id(position), lane, ORDERS, b"{}", **values)
    answer: HandedOver = await rig.store.hand_over(rig.registration, rig.token, run)
    return answer


async def block(rig: Rig, position: int, lane: bytes | None = A) -> HandedOver:
    return await park(rig, position, lane, waits=(), failure=FAILURE)


async def line_up(rig: Rig, positions: Sequence[int], lane: bytes = A, bounds: LaneBounds = MANY) -> LinedUp:
    records = [(rig.id(position), b'{"value":%d}' % position) for position in positions]
    (answer,) = await rig.store.line_up(rig.registration, rig.token, ORDERS, [LiningUp(lane, records)], bounds)
    assert isinstance(answer, LinedUp)
    return answer


async def ask(rig: Rig, position: int, lane: bytes = A, bounds: LaneBounds = MANY) -> Homecoming:
    (answer,) = await rig.store.come_home(rig.registration, rig.token, [(lane, position)], bounds)
    assert isinstance(answer, Homecoming)
    return answer


async def lane(rig: Rig, name: bytes = A) -> LaneState:
    found: dict[bytes, LaneState] = await rig.store.lanes(SOURCE, rig.registration.address)
    return found[name]


async def claim(rig: Rig, worker: str = "x") -> ClaimedRun:
    (claimed,) = (await rig.other.claim(worker, SERVED, 5)).runs
    assert isinstance(claimed, ClaimedRun)
    return claimed


async def nothing_ready(rig: Rig) -> bool:
    return not (await rig.other.claim("x", SERVED, 5)).runs


async def finish(rig: Rig, claimed: ClaimedRun, status: Any = "completed") -> None:
    await rig.other.finish(claimed.lease, Change(1), End(status, error=FAILURE if status == "failed" else None))


async def test_what_is_queued_follows_its_head(rig: Rig) -> None:
    await park(rig, 3)
    assert await line_up(rig, [4, 6]) == LinedUp(2, "all")
    size = len(b'{"value":4}')
    assert await lane(rig) == LaneState(6, True, str(rig.id(3)), 2, 2 * size)
    assert await nothing_ready(rig)
    await rig.signal(3)
    head = await claim(rig)
    assert (head.lease.run_id, await nothing_ready(rig)) == (str(rig.id(3)), True)
    await finish(rig, head)
    assert await lane(rig) == LaneState(6, True, str(rig.id(4)), 1, size)
    for position, left in ((4, 1), (6, 0)):
        claimed = await claim(rig)
        assert (claimed.lease.run_id, claimed.params) == (str(rig.id(position)), b'{"value":%d}' % position)
        assert (claimed.rows, claimed.attempt, claimed.lease.epoch) == ((), 1, 1)
        assert (await lane(rig)).queued == left
        await finish(rig, claimed)
    assert await lane(rig) == LaneState(6, False)
    assert await ask(rig, 7) == Homecoming("home")
    # their ends are known, though the commit hasn't passed them
    assert [await rig.other.status(str(rig.id(position))) for position in (3, 4, 6)] == ["completed"] * 3


async def test_one_that_is_queued_is_a_run_like_others(rig: Rig) -> None:
    await park(rig, 3)
    await rig.signal(4, payload=b"7")  # before its record is in the store
    await line_up(rig, [4])
    run = str(rig.id(4))
    assert await rig.other.status(run) == RunStatus.QUEUED
    detail = await rig.other.detail(run)
    assert (detail.name, detail.params, detail.metadata) == ("cart", b'{"value":4}', b'{"topic":"orders"}')
    assert any(b"lined_up" in event for event in await rig.other.events(run))
    await rig.signal(4, payload=b"8")
    assert [unread.message.payload for unread in (await rig.other.detail(run)).unread] == [b"7", b"8"]
    outlook = await rig.other.outlook(run)
    assert (outlook.before, outlook.behind) == (1, str(rig.id(3)))
    await rig.other.deliver(str(rig.id(3)), CANCEL)
    await finish(rig, await claim(rig), "cancelled")
    assert [unread.message.payload for unread in (await claim(rig)).messages] == [b"7", b"8"]


async def test_an_answer_that_was_lost_is_given_again(rig: Rig) -> None:
    await park(rig, 3)
    assert await line_up(rig, [4, 5], bounds=LaneBounds(1, 999, 999)) == LinedUp(1, "full")
    assert await line_up(rig, [4, 5], bounds=LaneBounds(1, 999, 999)) == LinedUp(1, "full")
    assert (await lane(rig)).queued == 1
    await rig.signal(3)
    await finish(rig, await claim(rig))
    await finish(rig, await claim(rig))
    # the lane came home in between: what was taken isn't run again, what wasn't is
    assert await line_up(rig, [4, 5], bounds=LaneBounds(1, 999, 999)) == LinedUp(1, "home")
    assert await nothing_ready(rig)


async def test_what_a_commit_has_passed_is_not_taken_again(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4])
    await rig.signal(3)
    await finish(rig, await claim(rig))
    await finish(rig, await claim(rig))
    await rig.store.prune_source(SOURCE, rig.token, 5, None)
    assert await rig.store.pass_records(rig.registration, rig.token, 5, [3]) == [A]
    assert await rig.store.lanes(SOURCE, rig.registration.address) == {}
    # copies of what was sent, from a connection that broke
    assert (await park(rig, 3)).taken
    assert await line_up(rig, [4, 5]) == LinedUp(1, "home")
    assert await nothing_ready(rig)


@pytest.mark.parametrize(
    ("bounds", "taken"),
    [
        (LaneBounds(0, 999, 999), 0),
        (LaneBounds(2, 999, 999), 2),
        (LaneBounds(99, 12, 999), 1),
        (LaneBounds(99, 999, 23), 2),
    ],
    ids=["nothing", "records", "bytes", "bytes of all lanes"],
)
async def test_a_queue_is_bounded(rig: Rig, bounds: LaneBounds, taken: int) -> None:
    await park(rig, 3)
    assert await line_up(rig, [4, 5, 6], bounds=bounds) == LinedUp(taken, "full")
    assert (await lane(rig)).queued == taken
    assert (await lane(rig)).floor == 3 + taken
    assert (await ask(rig, 4 + taken, bounds=bounds)).where in ("full", "open")
    if bounds.size_in_all == 23:
        await park(rig, 10, B)
        assert await line_up(rig, [11], B, bounds) == LinedUp(0, "full")


async def test_room_comes_back(rig: Rig) -> None:
    one = LaneBounds(1, 999, 11)
    await park(rig, 3)
    assert await line_up(rig, [4, 5], bounds=one) == LinedUp(1, "full")
    assert await ask(rig, 5, bounds=one) == Homecoming("full", str(rig.id(3)))
    await rig.other.deliver(str(rig.id(4)), CANCEL)
    assert await ask(rig, 5, bounds=one) == Homecoming("open", str(rig.id(3)))
    assert await line_up(rig, [5, 6], bounds=one) == LinedUp(1, "full")


async def test_several_lanes_line_up_in_one_call(rig: Rig) -> None:
    await park(rig, 1)
    await park(rig, 2, B)
    sent = [
        LiningUp(A, [(rig.id(3), b"{}")]),
        LiningUp(lane_of(b"c"), [(rig.id(4), b"{}")]),
        LiningUp(B, [(rig.id(5), b"{}"), (rig.id(6), b"{}")]),
    ]
    answers = await rig.store.line_up(rig.registration, rig.token, ORDERS, sent, LaneBounds(1, 999, 999))
    assert answers == [LinedUp(1, "all"), LinedUp(0, "home"), LinedUp(1, "full")]
    await rig.signal(2)
    await finish(rig, await claim(rig))
    assert (await claim(rig)).lease.run_id == str(rig.id(5))
    assert (await lane(rig)).head == str(rig.id(1))


async def test_only_the_holder_of_a_source_queues(rig: Rig) -> None:
    await park(rig, 3)
    old = rig.token
    await rig.claim(rig.other, 2)
    sent = [LiningUp(A, [(rig.id(4), b"{}")])]
    with pytest.raises(LeaseLost):
        await rig.store.line_up(rig.registration, old, ORDERS, sent, MANY)
    assert (await lane(rig)).queued == 0


async def test_how_a_lane_stands(rig: Rig) -> None:
    await park(rig, 3)
    head = str(rig.id(3))
    assert await ask(rig, 3) == Homecoming("taken", head)
    assert await ask(rig, 4) == Homecoming("open", head)
    await rig.signal(3)
    assert await ask(rig, 4) == Homecoming("busy", head)
    claimed = await claim(rig)
    assert await ask(rig, 4) == Homecoming("busy", head)
    await rig.other.park(claimed.lease, Change(1, seen=1, consumed=[1]), WAIT)
    assert await ask(rig, 4) == Homecoming("open", head)


@pytest.mark.parametrize("way", ["completed", "failed", "cancelled", "discarded", "died"])
async def test_every_end_of_a_head_lets_the_next_go(rig: Rig, way: str) -> None:
    if way == "discarded":
        await block(rig, 3)
        await line_up(rig, [4])
        assert (await rig.other.deliver(str(rig.id(3)), CANCEL)).status == "cancelled"
    else:
        await park(rig, 3)
        await line_up(rig, [4])
        await (rig.other.deliver(str(rig.id(3)), CANCEL) if way == "cancelled" else rig.signal(3))
        claimed = await claim(rig)
        if way == "died":  # its worker: whoever gets it next writes that it failed
            (suspect,) = [one for one in await rig.other.beats() if one.worker == "x"]
            assert await rig.other.reap(suspect) == 1
            assert (await lane(rig)).queued == 1
            claimed = await claim(rig, "y")
        await finish(rig, claimed, "failed" if way == "died" else way)
    assert await lane(rig) == LaneState(4, True, str(rig.id(4)))
    assert (await claim(rig, "y")).lease.run_id == str(rig.id(4))


async def test_what_doesnt_end_a_head_leaves_the_queue(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4])
    await rig.signal(3)
    claimed = await claim(rig)
    await rig.other.release(claimed.lease)
    claimed = await claim(rig)
    await rig.other.pause(claimed.lease, Change(1), b"{}")
    assert await nothing_ready(rig)
    await rig.other.unpause(str(rig.id(3)))
    claimed = await claim(rig)
    await rig.other.park(claimed.lease, Change(1, seen=9, consumed=[1]), WAIT)
    assert await nothing_ready(rig)
    assert await lane(rig) == LaneState(4, True, str(rig.id(3)), 1, len(b'{"value":4}'))


async def test_a_queued_one_is_cancelled_at_once(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4, 5])
    run = str(rig.id(4))
    assert (await rig.other.deliver(run, CANCEL)).status == "cancelled"
    assert (await rig.other.result(run)).status == "cancelled"
    assert (await lane(rig)).queued == 1
    assert await nothing_ready(rig)
    await rig.signal(3)
    await finish(rig, await claim(rig))
    assert (await claim(rig)).lease.run_id == str(rig.id(5))


async def test_one_that_was_to_be_cancelled_is_queued_with_it(rig: Rig) -> None:
    await rig.other.deliver(str(rig.id(4)), CANCEL)  # its holder hasn't seen it yet
    await park(rig, 3)
    assert await line_up(rig, [4]) == LinedUp(1, "all")
    await rig.signal(3)
    await finish(rig, await claim(rig))
    assert [unread.message.kind for unread in (await claim(rig)).messages] == ["cancel"]


async def test_one_that_ended_while_it_waited_is_not_queued(rig: Rig) -> None:
    await park(rig, 3)
    await rig.other.deliver(str(rig.id(4)), CANCEL)
    await rig.end(4, 1, "cancelled")
    assert await line_up(rig, [4, 5]) == LinedUp(2, "all")
    assert await lane(rig) == LaneState(5, True, str(rig.id(3)), 1, len(b'{"value":5}'))
    assert (await rig.other.result(str(rig.id(4)))).status == "cancelled"


async def test_a_queued_one_is_paused(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4, 5])
    run = str(rig.id(4))
    for _ in range(2):
        await rig.other.deliver(run, Message("pause", "p1", payload=b'"wait"'))
        assert await rig.other.status(run) == "paused"
        assert await rig.other.unpause(run) == "queued"
    await rig.other.deliver(run, Message("pause", "p2", payload=b'"wait"'))
    assert await nothing_ready(rig)
    await rig.signal(3)
    await finish(rig, await claim(rig))
    # it is the head now, but isn't ready
    assert await lane(rig) == LaneState(5, True, run, 1, len(b'{"value":5}'))
    assert await nothing_ready(rig)
    assert await ask(rig, 6) == Homecoming("open", run)
    await rig.other.unpause(run)
    assert (await claim(rig)).lease.run_id == run


async def test_a_blocked_head_is_retried_and_its_queue_follows(rig: Rig) -> None:
    assert (await block(rig, 3)).taken
    assert (await block(rig, 3)).taken
    await line_up(rig, [4])
    run = str(rig.id(3))
    detail = await rig.other.detail(run)
    assert (detail.status, detail.error) == ("paused", FAILURE)
    await rig.signal(3)  # which it doesn't wait for
    assert await nothing_ready(rig)
    assert await rig.other.retry(run) == "queued"
    with pytest.raises(TransitionRefused):
        await rig.other.retry(run)
    head = await claim(rig)
    assert (head.lease.run_id, head.retried, head.attempt, head.rows) == (run, True, 2, ((0, b"row"),))
    await rig.other.pause(head.lease, Change(1), FAILURE, failed=True)  # it failed again
    assert await nothing_ready(rig)
    assert await rig.other.unpause(run) == "queued"
    head = await claim(rig)
    assert (head.retried, head.attempt) == (True, 3)
    await finish(rig, head)
    assert (await claim(rig)).lease.run_id == str(rig.id(4))


async def test_a_cancel_that_came_in_between_is_seen_to_first(rig: Rig) -> None:
    await rig.other.deliver(str(rig.id(3)), CANCEL)
    answer = await block(rig, 3)
    assert (answer.taken, [unread.message.kind for unread in answer.messages]) == (False, ["cancel"])


async def test_one_that_was_blocked_and_cancelled_is_like_others_when_it_is_retried(rig: Rig) -> None:
    await block(rig, 3)
    run = str(rig.id(3))
    assert (await rig.other.deliver(run, CANCEL)).status == "cancelled"
    assert await rig.other.retry(run) == "queued"
    claimed = await claim(rig)
    assert (await rig.other.deliver(run, CANCEL)).status == "running"  # its body is to hear of it
    await finish(rig, claimed, "cancelled")


async def test_a_record_without_a_lane_may_be_blocked_too(rig: Rig) -> None:
    assert (await block(rig, 3, None)).taken
    assert await rig.other.retry(str(rig.id(3))) == "queued"
    await finish(rig, await claim(rig))
    assert await rig.store.lanes(SOURCE, rig.registration.address) == {}


async def test_one_that_is_retried_after_its_end_goes_beside_its_lane(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4, 5])
    await rig.signal(3)
    await finish(rig, await claim(rig), "failed")
    head = await claim(rig)
    assert await rig.other.retry(str(rig.id(3))) == "queued"
    await finish(rig, await claim(rig))
    assert await lane(rig) == LaneState(5, True, str(rig.id(4)), 1, len(b'{"value":5}'))
    await finish(rig, head)
    assert (await claim(rig)).lease.run_id == str(rig.id(5))


async def test_only_lanes_that_are_home_are_forgotten(rig: Rig) -> None:
    await park(rig, 3)
    await park(rig, 4, B)
    await line_up(rig, [5], B)
    await rig.signal(3)
    await finish(rig, await claim(rig))
    assert await rig.store.pass_records(rig.registration, rig.token, 3, []) == []
    assert await rig.store.pass_records(rig.registration, rig.token, 6, [3, 4]) == [A]
    assert list(await rig.store.lanes(SOURCE, rig.registration.address)) == [B]


async def test_another_log_lines_up_behind_the_former_one(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4, 5])
    await park(rig, 6, B)
    await rig.signal(6)
    await finish(rig, await claim(rig))
    await rig.claim(rig.store, 2, over="everything")
    assert list(await rig.store.lanes(SOURCE, rig.registration.address)) == [A]
    assert (await lane(rig)).floor == -1
    # an id that a run of the former log still has can't be had twice
    assert await line_up(rig, [0, 4]) == LinedUp(1, "full")
    assert not (await park(rig, 5, B)).taken
    order = []
    await rig.signal(3)
    for _ in range(4):
        claimed = await claim(rig)
        order.append(claimed.lease.run_id)
        await finish(rig, claimed)
    assert order == [str(rig.id(position)) for position in (3, 4, 5, 0)]
    assert await ask(rig, 4) == Homecoming("home")


async def test_after_a_reset_lanes_that_are_away_keep_their_floor(rig: Rig) -> None:
    await park(rig, 3)
    await line_up(rig, [4])
    await park(rig, 6, B)
    await rig.signal(6)
    await finish(rig, await claim(rig))
    await rig.claim(rig.store, 2, over="ended")
    assert await lane(rig) == LaneState(4, True, str(rig.id(3)), 1, len(b'{"value":4}'))
    assert list(await rig.store.lanes(SOURCE, rig.registration.address)) == [A]
    assert await line_up(rig, [2, 3, 4, 5]) == LinedUp(4, "all")
    assert (await lane(rig)).queued == 2
