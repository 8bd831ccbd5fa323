"""What is sent to the run of a record: kept from the registration of its source on, each once, until it is over."""

import asyncio

import pytest

from pyrula.workflows.errors import LeaseLost, SerializationError
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import MAX_UNREAD, Applied, Interrupt, Message, Wait
from pyrula.workflows.store.port import SourceStore
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.record_places import answer_where
from pyrula.workflows.store.records import ENDED
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    TransitionRefused,
)
from pyrula.workflows.store.runs import Query
from tests.conformance.records.rig import SOURCE, Rig
from tests.services.waiting import wait_until_async


async def test_nothing_is_kept_for_a_source_that_nobody_registered(store: SourceStore, other: SourceStore) -> None:
    rig = Rig(store, other)
    with pytest.raises(RunNotFoundError):
        await rig.signal(1)


async def test_a_signal_is_kept_before_anything_is_known_of_the_run(rig: Rig) -> None:
    delivered = await rig.signal(7, payload=b'"x"')
    assert (delivered.status, delivered.duplicate) == (RunStatus.QUEUED, False)
    (unread,) = await rig.unread(7)
    assert (unread.number, unread.message.kind, unread.message.payload) == (1, "signal", b'"x"')
    assert await rig.store.board(rig.id(7).shard, rig.id(7).address) == {7: 1}


async def test_a_repeated_id_is_kept_once(rig: Rig) -> None:
    await rig.signal(7, id="a")
    assert (await rig.signal(7, id="a")).duplicate
    assert len(await rig.unread(7)) == 1


async def test_a_consumed_signal_is_not_taken_again(rig: Rig) -> None:
    await rig.signal(7, id="a")
    assert await rig.change(7, 1, rows=[(0, b"row")], consumed=[1]) is None
    assert await rig.unread(7) == []
    assert (await rig.signal(7, id="a")).duplicate
    assert await rig.unread(7) == []


async def test_rows_and_consumption_are_refused_together(rig: Rig) -> None:
    await rig.signal(7)
    old = rig.token
    await rig.claim(rig.other, 2)
    assert isinstance(await rig.change(7, 1, token=old, rows=[(0, b"row")], consumed=[1]), LeaseLost)
    assert len(await rig.unread(7)) == 1
    assert await rig.rows() == []


async def test_a_change_is_written_once(rig: Rig) -> None:
    await rig.signal(7)
    await rig.change(7, 1, rows=[(0, b"first")], events=[b"[1]"])
    await rig.change(7, 1, rows=[(0, b"second")], events=[b"[2]"])
    assert await rig.store.events(str(rig.id(7))) == [b"[1]"]
    await rig.change(7, 1, holder="h2", rows=[(1, b"third")], events=[b"[3]"])
    assert await rig.store.events(str(rig.id(7))) == [b"[1]", b"[3]"]
    assert await rig.rows() == [(7, 0, b"first"), (7, 1, b"third")]


async def test_rows_are_deleted_by_an_empty_one(rig: Rig) -> None:
    await rig.change(7, 1, rows=[(0, b"a"), (1, b"b")])
    await rig.change(7, 2, rows=[(1, b""), (2, b"c"), (2, b""), (3, b"d")])
    assert await rig.rows() == [(7, 0, b"a"), (7, 3, b"d")]


async def test_an_update_has_its_answer_for_who_asks_again(rig: Rig) -> None:
    run, update = str(rig.id(7)), Message("update", "u1", "add", b"1")
    await rig.other.deliver(run, update)
    assert await rig.other.read_update(run, "u1") is None
    applied = Applied("u1", "ok", b"5")
    await rig.change(7, 1, rows=[(0, b"row")], consumed=[1], applied=[applied])
    assert await rig.other.read_update(run, "u1") == applied
    again = await rig.other.deliver(run, update)
    assert (again.duplicate, again.applied) == (True, applied)
    await rig.end(7, 2)
    assert (await rig.other.deliver(run, update)).applied == applied


async def test_a_rejected_update_may_come_again(rig: Rig) -> None:
    run, update = str(rig.id(7)), Message("update", "u1", "add", b"1")
    await rig.other.deliver(run, update)
    await rig.change(7, 1, consumed=[1], applied=[Applied("u1", "rejected", b"{}")])
    assert not (await rig.other.deliver(run, update)).duplicate
    assert len(await rig.unread(7)) == 1


async def test_a_resume_answers_an_open_interrupt_once(rig: Rig) -> None:
    run = str(rig.id(7))
    with pytest.raises(RunNotWaitingError):
        await rig.other.deliver(run, Message("resume", "r0"))
    await rig.change(7, 1, rows=[(0, b"row")], opened=[Interrupt("i0", b'"ok?"')])
    assert (await rig.other.detail(run)).interrupts == (Interrupt("i0", b'"ok?"'),)
    await rig.other.deliver(run, Message("resume", "r1"))
    assert [unread.message.name for unread in await rig.unread(7)] == ["i0"]
    with pytest.raises(RunNotWaitingError):
        await rig.other.deliver(run, Message("resume", "r2"))
    await rig.change(7, 2, opened=[Interrupt("i1", b"1"), Interrupt("i2", b"2")])
    with pytest.raises(RunNotWaitingError, match="several"):
        await rig.other.deliver(run, Message("resume", "r3"))
    await rig.change(7, 3, closed=["i1"])
    await rig.other.deliver(run, Message("resume", "r4", "i2"))


async def test_a_cancel_is_told_once_and_stays_asked_for(rig: Rig) -> None:
    run, cancel = str(rig.id(7)), Message("cancel", "cancel")
    assert not (await rig.other.deliver(run, cancel)).duplicate
    assert (await rig.other.deliver(run, cancel)).duplicate
    assert [unread.message.kind for unread in await rig.unread(7)] == ["cancel"]
    assert (await rig.other.detail(run)).cancel_requested


async def test_the_status_is_what_the_holder_wrote(rig: Rig) -> None:
    run = str(rig.id(7))
    await rig.change(7, 1, rows=[(0, b"row")])
    assert await rig.other.status(run) == RunStatus.RUNNING
    wait = Wait("signal", "go", 1_900_000_000.5)
    await rig.change(7, 2, status=RunStatus.SIGNAL_WAITING, waits=[wait])
    assert await rig.other.status(run) == RunStatus.SIGNAL_WAITING
    detail = await rig.other.detail(run)
    assert (detail.waits, detail.name, detail.version, detail.metadata) == ((wait,), "cart", "1", b'{"topic":"orders"}')


async def test_an_end_is_final(rig: Rig) -> None:
    run = str(rig.id(7))
    await rig.signal(7, id="late")
    await rig.end(7, 1, "failed", error=b'{"type":"E"}', value=b"null", events=[b"[1]"])
    result = await rig.other.result(run)
    assert (result.status, result.error) == (RunStatus.FAILED, b'{"type":"E"}')
    await rig.change(7, 2, rows=[(0, b"row")])
    await rig.end(7, 3)
    assert await rig.other.status(run) == RunStatus.FAILED
    assert await rig.store.board(rig.id(7).shard, rig.id(7).address) == {7: ENDED}
    with pytest.raises(RunFinishedError, match="failed"):
        await rig.signal(7)
    assert (await rig.other.deliver(run, Message("cancel", "cancel"))).status == RunStatus.FAILED
    with pytest.raises(TransitionRefused, match="dead letter"):
        await rig.other.retry(run)
    assert [unread.message.id for unread in (await rig.other.detail(run)).unread] == ["late"]
    assert await rig.rows() == []


async def test_an_end_that_nobody_asked_for_leaves_nothing(rig: Rig) -> None:
    await rig.change(7, 1, rows=[(0, b"row")], status=RunStatus.SLEEPING, events=[b"[1]"])
    await rig.end(7, 2, seconds=0)
    assert await rig.store.board(rig.id(7).shard, rig.id(7).address) == {}
    assert await rig.other.events_of(str(rig.id(7)), 0) == []
    assert await rig.store.read_record(rig.id(7), 0) is None
    await rig.change(8, 1, rows=[(0, b"row")])
    await rig.signal(8)
    await rig.end(8, 2, seconds=0)
    assert await rig.other.status(str(rig.id(8))) == RunStatus.COMPLETED


async def test_a_paused_run_is_asked_to_go_on_once(rig: Rig) -> None:
    run = str(rig.id(7))
    await rig.change(7, 1, status=RunStatus.RUNNING)
    with pytest.raises(TransitionRefused):
        await rig.other.unpause(run)
    await rig.other.deliver(run, Message("pause", "pause", payload=b'{"message":"why"}'))
    assert (await rig.other.deliver(run, Message("pause", "pause"))).duplicate
    await rig.other.unpause(run)
    assert await rig.unread(7) == []
    await rig.change(7, 2, status=RunStatus.PAUSED, error=b'{"message":"why"}')
    assert (await rig.other.detail(run)).error == b'{"message":"why"}'
    assert await rig.other.unpause(run) == RunStatus.QUEUED
    assert (await rig.state(7)).restarts == 1
    with pytest.raises(TransitionRefused):
        await rig.other.unpause(run)
    await rig.change(7, 3, status=RunStatus.PAUSED)
    assert await rig.other.retry(run) == RunStatus.QUEUED
    assert (await rig.state(7)).restarts == 2


async def test_a_result_is_waited_for_from_before_the_run_began(rig: Rig) -> None:
    run = str(rig.id(7))
    assert await rig.other.result(run) is None
    assert await rig.store.board(rig.id(7).shard, rig.id(7).address) == {7: 1}
    await rig.end(7, 1, value=b'"done"')
    assert (await rig.other.result(run)).value == b'"done"'


async def test_one_that_is_over_and_not_kept_is_not_found(rig: Rig) -> None:
    await rig.signal(7)
    await rig.store.forget_record(rig.registration, rig.token, rig.id(7))
    assert await rig.store.board(rig.id(7).shard, rig.id(7).address) == {}
    for call in (rig.signal(7), rig.other.status(str(rig.id(7))), rig.other.result(str(rig.id(7)))):
        with pytest.raises(RunNotFoundError):
            await call


async def test_nothing_below_what_was_passed_is_found_but_what_is_kept(rig: Rig) -> None:
    await rig.end(7, 1)
    await rig.store.pass_records(rig.registration, rig.token, 9, [7])
    assert await rig.store.board(rig.id(7).shard, rig.id(7).address) == {}
    assert await rig.other.status(str(rig.id(7))) == RunStatus.COMPLETED
    with pytest.raises(RunFinishedError):
        await rig.signal(7)
    with pytest.raises(RunNotFoundError):
        await rig.signal(8)
    await rig.signal(9)


async def test_only_the_present_holder_registers_passes_and_forgets(rig: Rig) -> None:
    old = rig.token
    await rig.claim(rig.other, 2)
    with pytest.raises(LeaseLost):
        await rig.store.register_source(old, rig.registration)
    with pytest.raises(LeaseLost):
        await rig.store.pass_records(rig.registration, old, 9, [])
    with pytest.raises(LeaseLost):
        await rig.store.forget_record(rig.registration, old, rig.id(7))


async def test_the_next_holder_is_told_of_all(rig: Rig) -> None:
    await rig.signal(7)
    await rig.signal(7)
    await rig.end(8, 1)
    assert await rig.claim(rig.other, 2) == {7: 2, 8: ENDED}


async def test_a_position_that_is_to_be_done_again_begins_anew(rig: Rig) -> None:
    run = str(rig.id(8))
    await rig.signal(7)
    await rig.end(8, 1)
    assert await rig.claim(rig.other, 2, over="ended") == {7: 1}
    await rig.signal(8)
    assert await rig.other.status(run) == RunStatus.QUEUED
    rig.store, rig.other = rig.other, rig.store
    await rig.change(8, 1, holder="h2", rows=[(0, b"row")], consumed=[1])
    assert await rig.rows() == [(8, 0, b"row")]


async def test_another_log_knows_nothing_of_the_old_one(rig: Rig) -> None:
    await rig.signal(7)
    await rig.end(8, 1)
    assert await rig.claim(rig.other, 2, over="everything") == {}


async def test_another_incarnation_has_other_runs(rig: Rig) -> None:
    first = str(rig.id(7))
    await rig.signal(7)
    rig.token = (await rig.other.claim_source(SOURCE, 1, replaces=rig.token)).token
    assert await rig.other.register_source(rig.token, rig.registration) == {}
    assert await rig.store.incarnation(rig.id(7).shard, rig.id(7).address) == 2
    await rig.signal(7)
    assert str(rig.id(7)) == first + ".2"
    unknown = RecordId.parse(str(rig.id(9)).removesuffix(".2"))
    with pytest.raises(RunNotFoundError):
        await rig.other.deliver(str(unknown), Message("signal", "x", "go"))


async def test_an_inbox_has_its_limits(rig: Rig) -> None:
    for number in range(MAX_UNREAD):
        await rig.signal(7, id=str(number))
    with pytest.raises(InboxFullError):
        await rig.signal(7)
    await rig.other.deliver(str(rig.id(7)), Message("cancel", "cancel"))
    with pytest.raises(SerializationError):
        await rig.signal(8, payload=b"x" * (1 << 20 | 1))


async def test_the_holder_hears_of_it(rig: Rig) -> None:
    heard: list[str] = []
    subscription = rig.store.on_inbox("w1", heard.append)
    try:
        # the first is that it listens
        await wait_until_async(lambda: _told(rig, heard), description="to hear of a message")
    finally:
        subscription.close()


async def _told(rig: Rig, heard: list[str]) -> bool:
    await rig.signal(7)
    await asyncio.sleep(0.01)
    return str(rig.id(7)) in heard


async def test_news_grow_with_everything_that_is_to_be_looked_at(rig: Rig) -> None:
    shard, address = rig.id(7).shard, rig.id(7).address
    (before,) = await rig.store.news(shard, [address])
    await rig.signal(7)
    (after,) = await rig.store.news(shard, [address])
    assert after > before
    assert await rig.store.news(shard, ["kaaaaaaaaaa-1"]) == [0]


async def test_questions_go_to_one_holder(rig: Rig) -> None:
    query = Query("q1", str(rig.id(7)), "items", b"{}")
    await rig.other.ask(query.run_id, query, seconds=60)
    assert await rig.store.take_questions(rig.id(7).shard, rig.id(7).address) == (query,)
    assert await rig.store.take_questions(rig.id(7).shard, rig.id(7).address) == ()
    await rig.store.answer(query, b'{"ok":1}')
    assert await rig.other.read_answer(query) == b'{"ok":1}'
    with pytest.raises(RunNotFoundError):
        await rig.other.ask("03-kaaaaaaaaaa-1-5", query._replace(run_id="03-kaaaaaaaaaa-1-5"), seconds=60)


async def test_a_run_of_which_nothing_is_known_is_where_its_holder_says(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrula.workflows.store.record_places._SECONDS", 180.0)
    run = str(rig.id(7))

    async def answer() -> None:
        for status in (RunStatus.RUNNING, None):
            asked = await wait_until_async(
                lambda: rig.store.take_questions(rig.id(7).shard, rig.id(7).address), description="a question"
            )
            await rig.store.answer(asked[0], answer_where(status, [["started", 1.5, {}]]))

    answering = asyncio.create_task(answer())
    assert await rig.other.status(run) == RunStatus.RUNNING
    with pytest.raises(RunNotFoundError):
        await rig.other.events(run)
    await answering


async def test_with_nobody_there_to_say_it_is_queued(rig: Rig) -> None:
    assert await rig.other.status(str(rig.id(7))) == RunStatus.QUEUED


async def test_history_is_the_journal_of_that_position(rig: Rig) -> None:
    await rig.change(7, 1, rows=[(0, b"a"), (1, b"b")])
    await rig.change(70, 1, rows=[(0, b"c")])
    history = await rig.other.history(str(rig.id(7)))
    assert (history.rows, history.name) == (((0, b"a"), (1, b"b")), "cart")


async def test_the_history_of_an_ended_run_is_what_was_kept_with_its_end(rig: Rig) -> None:
    await rig.change(7, 1, rows=[(0, b"a"), (1, b"b")])
    await rig.end(7, 2, params=b'{"offset":7}', rows=[(0, b"a"), (2, b"c")])
    await rig.store.pass_records(rig.registration, rig.token, 8, [7])
    history = await rig.other.history(str(rig.id(7)))
    assert (history.params, history.rows) == (b'{"offset":7}', ((0, b"a"), (2, b"c")))
    assert history.status == RunStatus.COMPLETED
    await rig.end(9, 1)
    assert (await rig.other.history(str(rig.id(9)))).params == b"{}"
