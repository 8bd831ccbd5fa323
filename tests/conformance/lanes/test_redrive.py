"""The run of a dead-lettered record is run once more, from what was kept of it or from its letter."""

import asyncio
from typing import Any

import pytest

from pyrula.workflows.codec import loads
from pyrula.workflows.store.lanes import HandingOver, lane_of
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Change, End, Wait
from pyrula.workflows.store.redrive import Letter
from pyrula.workflows.store.refusals import RunNotFoundError, TransitionRefused
from pyrula.workflows.store.runs import ClaimedRun
from tests.conformance.records.rig import ADDRESS, SOURCE, Rig

SERVED = [(f"@k{ADDRESS.rpartition('-')[0]}", "2")]
ROWS = ((0, b"row"), (1, b"other"))


async def failed(rig: Rig, position: int, **fields: Any) -> str:
    params, rows = fields.get("params", b'{"value":1}'), fields.get("rows", ROWS)
    await rig.change(position, 1, rows=[(0, b"row")], attempt=3)
    await rig.end(position, 2, "failed", error=b'{"message":"no"}', params=params, rows=rows)
    return str(rig.id(position))


async def passed(rig: Rig, below: int) -> None:
    await rig.store.prune_source(SOURCE, rig.token, below, None)
    await rig.store.pass_records(rig.registration, rig.token, below, list(range(below)))


async def claimed(rig: Rig) -> ClaimedRun:
    (run,) = (await rig.other.claim("x", SERVED, 5)).runs
    return run  # type: ignore[no-any-return]


@pytest.mark.parametrize("committed", [False, True])
async def test_a_failed_run_goes_on_from_what_was_kept(rig: Rig, committed: bool) -> None:
    run = await failed(rig, 3)
    if committed:
        await passed(rig, 4)
    assert await rig.other.retry(run) == RunStatus.QUEUED
    assert await rig.other.status(run) == RunStatus.QUEUED
    with pytest.raises(TransitionRefused, match="is queued"):
        await rig.other.retry(run)
    taken = await claimed(rig)
    assert (taken.lease.run_id, taken.params, taken.rows) == (run, b'{"value":1}', ROWS)
    assert (taken.attempt, taken.retried, taken.version) == (4, True, "2")
    assert loads(taken.metadata) == {"topic": "orders", "redrive": 1}
    with pytest.raises(TransitionRefused, match="is running"):
        await rig.other.redrive(run)
    await rig.other.finish(taken.lease, Change(1), End("completed", b"7"))
    assert (await rig.other.result(run)).value == b"7"
    assert (await rig.other.detail(run)).name == "cart"
    with pytest.raises(TransitionRefused, match="is completed"):
        await rig.other.retry(run)


async def test_one_that_fails_again_is_redriven_again(rig: Rig) -> None:
    run = await failed(rig, 3)
    await rig.other.retry(run)
    taken = await claimed(rig)
    await rig.other.finish(taken.lease, Change(1), End("failed", error=b"{}"))
    assert await rig.other.redrive(run)
    taken = await claimed(rig)
    assert (taken.attempt, loads(taken.metadata)["redrive"]) == (5, 2)


async def test_a_run_of_which_nothing_was_journaled_begins_anew(rig: Rig) -> None:
    run = await failed(rig, 3, rows=())
    assert await rig.other.redrive(run) is False
    assert (await claimed(rig)).rows == ()
    kinds = [loads(event)[0] for event in await rig.other.events(run)]
    assert kinds == ["redriven"]


async def test_two_at_once_are_one(rig: Rig) -> None:
    run = await failed(rig, 3)
    answers = await asyncio.gather(rig.store.redrive(run), rig.other.redrive(run), return_exceptions=True)
    assert sorted(type(answer) for answer in answers if isinstance(answer, Exception)) == [TransitionRefused]
    assert len((await rig.other.claim("x", SERVED, 5)).runs) == 1


async def test_its_lane_is_home_meanwhile(rig: Rig) -> None:
    lane, waits = lane_of(b"a"), (Wait("signal", "go"),)
    await rig.change(3, 1, status=RunStatus.SIGNAL_WAITING, waits=waits)
    run = HandingOver(rig.id(3), lane, SERVED[0][0], b"{}", 1, 0, waits, [])
    assert (await rig.store.hand_over(rig.registration, rig.token, run)).taken
    await rig.signal(3)
    (taken,) = (await rig.other.claim("x", [(SERVED[0][0], "1")], 5)).runs
    await rig.other.finish(taken.lease, Change(1, consumed=[1]), End("failed", error=b"{}"))
    await rig.other.retry(str(rig.id(3)))
    answers = await rig.store.come_home(rig.registration, rig.token, [(lane, 3), (lane, 4)])
    assert [answer.where for answer in answers] == ["taken", "home"]
    state = (await rig.store.lanes(SOURCE, rig.registration.address))[lane]
    assert (state.floor, state.away) == (3, False)
    (taken,) = (await rig.other.claim("x", SERVED, 5)).runs
    await rig.other.finish(taken.lease, Change(1), End("completed"))
    answers = await rig.store.come_home(rig.registration, rig.token, [(lane, 3), (lane, 4)])
    assert [answer.where for answer in answers] == ["taken", "home"]
    assert await rig.claim(rig.other, 2) == {3: -2}


async def test_a_letter_stands_in_for_what_is_gone(rig: Rig) -> None:
    run, letter = str(rig.id(3)), Letter(b'{"value":2}', [(0, b"letter")])
    with pytest.raises(TransitionRefused, match="isn't complete, or no worker"):
        await rig.other.redrive(run, letter)
    await passed(rig, 4)
    with pytest.raises(RunNotFoundError, match="dead letter"):
        await rig.other.redrive(run)
    assert await rig.other.redrive(run, letter)
    taken = await claimed(rig)
    assert (taken.params, taken.rows, taken.attempt) == (b'{"value":2}', ((0, b"letter"),), 1)
    assert loads(taken.metadata) == {"topic": "orders", "redrive": 1}
    await rig.other.finish(taken.lease, Change(1), End("completed", b"7"))
    assert (await rig.other.result(run)).value == b"7"
    with pytest.raises(TransitionRefused, match="is completed"):
        await rig.other.redrive(run, letter)


async def test_a_record_too_large_to_be_kept_comes_from_its_letter(rig: Rig) -> None:
    run = await failed(rig, 3, params=b"")
    with pytest.raises(TransitionRefused, match="isn't kept: redrive its dead letter"):
        await rig.other.retry(run)
    assert await rig.other.redrive(run, Letter(b'{"value":2}', [(0, b"letter")]))
    taken = await claimed(rig)
    assert (taken.params, taken.rows) == (b'{"value":2}', ROWS)


async def test_what_hasnt_failed_isnt_redriven(rig: Rig) -> None:
    await rig.change(3, 1, status=RunStatus.SLEEPING, waits=(Wait("sleep", "", 9e9),))
    letter = Letter(b"{}")
    with pytest.raises(TransitionRefused, match="is sleeping"):
        await rig.other.redrive(str(rig.id(3)), letter)
    await rig.end(4, 1)
    with pytest.raises(TransitionRefused, match="is completed"):
        await rig.other.redrive(str(rig.id(4)), letter)
    for unknown in ("00-kaaaaaaaaaa-3-4", "nothing"):
        with pytest.raises(RunNotFoundError):
            await rig.other.redrive(unknown, letter)


async def test_another_log_begins_afresh(rig: Rig) -> None:
    run = await failed(rig, 3)
    await rig.other.retry(run)
    taken = await claimed(rig)
    await rig.other.finish(taken.lease, Change(1), End("failed", error=b"{}"))
    await rig.claim(rig.store, 2, over="everything")
    with pytest.raises(TransitionRefused, match="isn't complete, or no worker"):
        await rig.other.redrive(run, Letter(b"{}"))
