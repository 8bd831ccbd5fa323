"""Submitting and talking to runs: idempotency, deduplication, and each refusal told apart."""

import asyncio

import pytest

from pyrula.workflows.errors import SerializationError
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.store.events import decode_event
from pyrula.workflows.store.messages import MAX_UNREAD, Applied, Change, Delivered, End, Interrupt, Message, Wait
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    TransitionRefused,
)
from pyrula.workflows.store.runs import Submitted
from tests.conformance.runs.rig import SERVED, Rig

GO = Wait("signal", "go")
CANCEL = Message("cancel", "cancel")
PAUSE = Message("pause", "pause", payload=b'"hold"')
AWKWARD = ["{", "}", "{a}:b", " ", "\n", "\x00", "é🜁", "x" * 10_000, "a:b"]


async def test_a_hundred_submits_with_one_key_make_one_run(rig: Rig) -> None:
    submissions = [rig.submission(idempotency_key="order-7", params=b'{"n":1}') for _ in range(100)]
    stores = [rig.store, rig.other] * 50
    answers = await asyncio.gather(*(store.submit(s) for store, s in zip(stores, submissions, strict=True)))
    assert len({answer.run_id for answer in answers}) == 1
    assert [answer.created for answer in answers].count(True) == 1
    claimed = await rig.claim()
    await rig.nothing()
    await rig.complete(claimed.lease)
    late = await rig.store.submit(rig.submission(idempotency_key="order-7", params=b'{"n":2}'))
    assert late == Submitted(claimed.lease.run_id, created=False, same_params=False)
    await rig.nothing()


async def test_a_key_belongs_to_its_workflow(rig: Rig) -> None:
    assert await rig.submit("a", idempotency_key="k") != await rig.submit("b", idempotency_key="k")


async def test_a_submission_may_be_sent_again(rig: Rig) -> None:
    submission = rig.submission(params=b'{"n":1}')
    expected = Submitted(submission.run_id, created=True)
    assert [await rig.store.submit(submission), await rig.other.submit(submission)] == [expected, expected]
    await rig.claim()
    assert await rig.store.submit(submission) == expected
    await rig.nothing()


@pytest.mark.parametrize("text", AWKWARD)
async def test_any_text_names_what_it_names(rig: Rig, text: str) -> None:
    served = [(text, text)]
    run_id = await rig.submit(text, version=text, owner=text, idempotency_key=text)
    assert await rig.submit(text, version=text, idempotency_key=text) == run_id
    lease = (await rig.claim(served=served)).lease
    await rig.store.append(lease, Change(1, opened=[Interrupt(text, b"1")]))
    for message in (Message("signal", text, text), Message("update", text, text), Message("resume", "r", text)):
        await rig.store.deliver(run_id, message)
    reply = await rig.store.append(lease, Change(2, applied=[Applied(text, "ok", b"1")]))
    assert [unread.message.name for unread in reply.messages] == [text] * 3
    assert await rig.store.read_update(run_id, text) == Applied(text, "ok", b"1")
    assert (await rig.store.park(lease, Change(3, seen=3), [Wait("signal", text + "!")])).parked
    detail = await rig.store.detail(run_id)
    assert (detail.name, detail.version, detail.owner) == (text, text, text)
    assert detail.waits == (Wait("signal", text + "!"),)


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        "x",
        "00-",
        "zz-01JDZ8Z5Y3Q4R5S6T7V8W9XABC",
        "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC",
        "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC~1",
        "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC~0",
        "00-81JDZ8Z5Y3Q4R5S6T7V8W9XABC",
        "ffff-01JDZ8Z5Y3Q4R5S6T7V8W9XABC",
        "00-{x}",
        "00-01jdz8z5y3q4r5s6t7v8w9xabc",
        "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC\n",
        "\x00" * 30,
        "00-k0123456789-3-17",
    ],
)
async def test_an_id_of_no_run_is_not_found(rig: Rig, run_id: str) -> None:
    store = rig.store
    for call in (
        lambda: store.status(run_id),
        lambda: store.result(run_id),
        lambda: store.detail(run_id),
        lambda: store.events(run_id),
        lambda: store.history(run_id),
        lambda: store.read_update(run_id, "u"),
        lambda: store.deliver(run_id, Message("signal", "s", "go")),
        lambda: store.deliver(run_id, CANCEL),
        lambda: store.unpause(run_id),
        lambda: store.retry(run_id),
    ):
        with pytest.raises(RunNotFoundError):
            await call()


async def test_signals_before_the_body_waits_are_kept_in_order(rig: Rig) -> None:
    run_id = await rig.submit(message=Message("signal", "s0", "go", b"0"))
    for number in range(1, 5):
        await rig.signal(run_id, id=f"s{number}", payload=b"%d" % number)
    claimed = await rig.claim()
    assert [unread.message.payload for unread in claimed.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert [unread.number for unread in claimed.messages] == [1, 2, 3, 4, 5]


async def test_a_signal_with_start_goes_to_the_run_that_is_there(rig: Rig) -> None:
    first = rig.submission(idempotency_key="k", message=Message("signal", "s1", "go", b"1"))
    second = rig.submission(idempotency_key="k", message=Message("signal", "s2", "go", b"2"))
    for submission in (first, second, second, first):
        assert (await rig.store.submit(submission)).run_id == first.run_id
    claimed = await rig.claim()
    assert [unread.message.payload for unread in claimed.messages] == [b"1", b"2"]
    await rig.complete(claimed.lease)
    third = rig.submission(idempotency_key="k", message=Message("signal", "s3", "go"))
    with pytest.raises(RunFinishedError):
        await rig.store.submit(third)


async def test_a_signal_is_taken_once_for_an_id_over_the_chain(rig: Rig) -> None:
    lease = (await rig.started()).lease
    run_id = lease.run_id
    await rig.signal(run_id, id="s1")
    assert (await rig.store.deliver(run_id, Message("signal", "s1", "go"))).duplicate
    await rig.store.append(lease, Change(1, seen=1, consumed=[1]))
    assert (await rig.store.deliver(run_id, Message("signal", "s1", "go"))).duplicate
    # the same id for another kind is another message
    assert not (await rig.store.deliver(run_id, Message("update", "s1", "go"))).duplicate
    link = (await rig.store.finish(lease, Change(2), End("continued_as_new", params=b"{}"))).next
    assert link is not None
    assert (await rig.store.deliver(run_id, Message("signal", "s1", "go"))).duplicate
    await rig.complete(link.lease)
    assert (await rig.store.deliver(run_id, Message("signal", "s1", "go"))).duplicate
    with pytest.raises(RunFinishedError) as refused:
        await rig.store.deliver(run_id, Message("signal", "s2", "go"))
    assert refused.value.status == "completed"


async def test_an_update_is_applied_once_over_the_chain_and_after_its_end(rig: Rig) -> None:
    lease = (await rig.started()).lease
    run_id, update = lease.run_id, Message("update", "u1", "add", b"1")
    answers = await asyncio.gather(*(store.deliver(run_id, update) for store in [rig.store, rig.other] * 10))
    assert [answer.duplicate for answer in answers].count(False) == 1
    applied = Applied("u1", "ok", b"41")
    reply = await rig.store.append(lease, Change(1, seen=1, consumed=[1], applied=[applied]))
    assert reply.messages == ()
    link = (await rig.store.finish(lease, Change(2), End("continued_as_new", params=b"{}"))).next
    assert link is not None
    expected = Delivered(link.lease.run_id, "running", True, applied)
    assert await rig.store.deliver(run_id, update) == expected
    await rig.complete(link.lease)
    assert (await rig.store.deliver(run_id, update)).applied == applied
    assert await rig.other.read_update(run_id, "u1") == applied


async def test_an_update_that_was_never_applied_is_refused_after_the_end(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.store.deliver(lease.run_id, Message("update", "u1", "add"))
    finished = await rig.complete(lease)
    assert [unread.message.id for unread in finished.unread] == ["u1"]
    with pytest.raises(RunFinishedError):
        await rig.store.deliver(lease.run_id, Message("update", "u1", "add"))
    assert await rig.store.read_update(lease.run_id, "u1") is None
    assert [unread.message.id for unread in (await rig.store.detail(lease.run_id)).unread] == ["u1"]


async def test_a_rejected_update_may_be_sent_again_under_its_id(rig: Rig) -> None:
    lease = (await rig.started()).lease
    update = Message("update", "u1", "add")
    await rig.store.deliver(lease.run_id, update)
    rejected = Applied("u1", "rejected", b'"no"')
    await rig.store.append(lease, Change(1, seen=1, consumed=[1], applied=[rejected]))
    assert await rig.store.read_update(lease.run_id, "u1") == rejected
    again = await rig.store.deliver(lease.run_id, update)
    assert not again.duplicate
    assert await rig.store.read_update(lease.run_id, "u1") is None
    reply = await rig.store.append(lease, Change(2, seen=1))
    assert [unread.message for unread in reply.messages] == [update]
    await rig.store.append(lease, Change(3, seen=2, consumed=[2], applied=[Applied("u1", "ok", b"1")]))
    assert (await rig.store.read_update(lease.run_id, "u1")) == Applied("u1", "ok", b"1")


async def test_the_inbox_is_bounded(rig: Rig) -> None:
    run_id = await rig.submit()
    await asyncio.gather(*(rig.signal(run_id, id=f"s{number}") for number in range(MAX_UNREAD)))
    with pytest.raises(InboxFullError):
        await rig.signal(run_id, id="more")
    # what must get through does
    assert (await rig.store.deliver(run_id, Message("signal", "s1", "go"))).duplicate
    await rig.store.deliver(run_id, Message("child", "c", "c"))
    claimed = await rig.claim()
    assert len(claimed.messages) == MAX_UNREAD + 1
    assert [unread.number for unread in claimed.messages] == list(range(1, MAX_UNREAD + 2))
    await rig.store.append(claimed.lease, Change(1, seen=1001, consumed=[1, 2]))
    await rig.signal(run_id, id="more")


async def test_what_is_too_large_is_refused(rig: Rig) -> None:
    run_id = await rig.submit(params=b"1" * MAX_VALUE)
    await rig.signal(run_id, payload=b"1" * MAX_VALUE)
    with pytest.raises(SerializationError):
        await rig.signal(run_id, payload=b"1" * (MAX_VALUE + 1))
    with pytest.raises(SerializationError):
        await rig.submit(params=b"1" * (MAX_VALUE + 1))


async def test_an_interrupt_is_answered_once(rig: Rig) -> None:
    lease = (await rig.started()).lease
    run_id = lease.run_id
    with pytest.raises(RunNotWaitingError):
        await rig.store.deliver(run_id, Message("resume", "r0", "i1"))
    opened = [Interrupt("i1", b'"a"'), Interrupt("i2", b'"b"')]
    waits = [Wait("interrupt", "i1"), Wait("interrupt", "i2")]
    assert (await rig.store.park(lease, Change(1, opened=opened), waits)).parked
    assert (await rig.store.detail(run_id)).interrupts == tuple(opened)
    with pytest.raises(RunNotWaitingError, match="'i1', 'i2'"):
        await rig.store.deliver(run_id, Message("resume", "r1", ""))
    resumes = [Message("resume", f"r{n}", "i2", b"%d" % n) for n in range(10)]
    answers = await asyncio.gather(*(rig.store.deliver(run_id, resume) for resume in resumes), return_exceptions=True)
    assert [type(answer).__name__ for answer in answers].count("RunNotWaitingError") == 9
    winner = next(n for n, answer in enumerate(answers) if isinstance(answer, Delivered))
    assert (await rig.store.deliver(run_id, resumes[winner])).duplicate
    claimed = await rig.claim()
    assert [unread.message for unread in claimed.messages] == [resumes[winner]]
    assert claimed.interrupts == (opened[0],)
    await rig.store.deliver(run_id, Message("resume", "last", "", b"9"))
    (unread,) = await rig.store.unread(claimed.lease, 1)
    assert unread.message == Message("resume", "last", "i1", b"9")
    await rig.complete(claimed.lease)
    with pytest.raises(RunNotWaitingError):
        await rig.store.deliver(run_id, Message("resume", "late", "i1"))


async def test_an_interrupt_that_was_given_up_takes_no_answer(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.store.append(lease, Change(1, opened=[Interrupt("i1", b"1")]))
    await rig.store.append(lease, Change(2, closed=["i1"]))
    with pytest.raises(RunNotWaitingError):
        await rig.store.deliver(lease.run_id, Message("resume", "r", "i1"))


async def test_cancel_before_the_first_claim_is_the_end(rig: Rig) -> None:
    run_id = await rig.submit(idempotency_key="k")
    assert (await rig.store.deliver(run_id, CANCEL)).status == "cancelled"
    await rig.nothing()
    result = await rig.store.result(run_id)
    assert result is not None
    assert (result.status, result.error) == ("cancelled", None)
    assert [decode_event(row).type for row in await rig.store.events(run_id)] == ["submitted", "cancelled"]
    assert (await rig.store.deliver(run_id, CANCEL)).status == "cancelled"
    assert await rig.submit(idempotency_key="k") == run_id


@pytest.mark.parametrize("wait", [Wait("sleep", deadline=4e9), GO, Wait("retry", deadline=4e9), Wait("child", "c")])
async def test_cancel_of_a_parked_run_lets_its_body_clean_up(rig: Rig, wait: Wait) -> None:
    run_id = await rig.parked(wait)
    assert (await rig.store.deliver(run_id, CANCEL)).status == "queued"
    assert await rig.store.next_due() is None
    claimed = await rig.claim()
    assert [unread.message.kind for unread in claimed.messages] == ["cancel"]
    second = await rig.store.deliver(run_id, CANCEL)
    assert (second.status, second.duplicate) == ("running", True)
    await rig.store.finish(claimed.lease, Change(1, seen=1, consumed=[1]), End("cancelled"))
    assert (await rig.store.deliver(run_id, CANCEL)).status == "cancelled"


async def test_a_finish_that_came_first_wins_over_a_cancel(rig: Rig) -> None:
    lease = (await rig.started()).lease
    assert (await rig.store.deliver(lease.run_id, CANCEL)).status == "running"
    assert (await rig.store.detail(lease.run_id)).cancel_requested
    await rig.complete(lease)
    assert (await rig.store.deliver(lease.run_id, CANCEL)).status == "completed"
    assert await rig.store.status(lease.run_id) == "completed"


async def test_races_of_cancel_and_claim_agree_with_what_stands(rig: Rig) -> None:
    for number in range(40):
        run_id = await rig.submit()
        cancel, claim = rig.other.deliver(run_id, CANCEL), rig.store.claim("w", SERVED, 1)
        if number % 2:
            cancelled, claims = await asyncio.gather(cancel, claim)
        else:
            claims, cancelled = await asyncio.gather(claim, cancel)
        if claims.runs:
            assert cancelled.status == "running"
            await rig.complete(claims.runs[0].lease)
            assert await rig.store.status(run_id) == "completed"
        else:
            assert cancelled.status == await rig.store.status(run_id) == "cancelled"


async def test_pause_stops_what_is_not_running_at_once(rig: Rig) -> None:
    queued = await rig.submit()
    assert (await rig.store.deliver(queued, PAUSE)).status == "paused"
    parked = await rig.parked(Wait("sleep", deadline=4e9))
    assert (await rig.store.deliver(parked, PAUSE)).status == "paused"
    assert await rig.store.next_due() is None
    await rig.signal(parked)
    await rig.nothing()
    assert (await rig.store.detail(parked)).error == b'"hold"'
    for run_id in (queued, parked):
        assert await rig.store.unpause(run_id) == "queued"
        assert (await rig.claim()).lease.run_id == run_id
        with pytest.raises(TransitionRefused):
            await rig.store.unpause(run_id)


async def test_pause_of_a_running_run_is_its_holders_to_answer(rig: Rig) -> None:
    lease = (await rig.started()).lease
    assert (await rig.store.deliver(lease.run_id, PAUSE)).status == "running"
    assert (await rig.store.deliver(lease.run_id, PAUSE)).duplicate
    for _ in range(2):
        await rig.store.pause(lease, Change(1, rows=[(0, b"a")]), b'"asked"')
    assert await rig.store.status(lease.run_id) == "paused"
    await rig.nothing()
    await rig.store.unpause(lease.run_id)
    claimed = await rig.claim()
    assert (claimed.messages, claimed.rows) == ((), ((0, b"a"),))
    await rig.store.deliver(lease.run_id, PAUSE)
    assert await rig.store.unpause(lease.run_id) == "running"
    assert await rig.store.unread(claimed.lease, 0) == ()


async def test_cancel_of_a_paused_run_queues_it(rig: Rig) -> None:
    lease = (await rig.started()).lease
    await rig.store.pause(lease, Change(1), b'"mismatch"')
    assert (await rig.store.deliver(lease.run_id, CANCEL)).status == "queued"
    never = await rig.submit()
    await rig.store.deliver(never, PAUSE)
    assert (await rig.store.deliver(never, CANCEL)).status == "cancelled"


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_retry_brings_a_run_back_with_its_journal(rig: Rig, how: str) -> None:
    lease = (await rig.started(idempotency_key="k")).lease
    run_id = lease.run_id
    with pytest.raises(TransitionRefused):
        await rig.store.retry(run_id)
    await rig.store.deliver(run_id, CANCEL)
    await rig.store.finish(lease, Change(1, rows=[(0, b"a")]), End(how, error=b'"bad"'))
    assert await rig.store.retry(run_id) == "queued"
    assert await rig.store.result(run_id) is None
    assert not (await rig.store.detail(run_id)).cancel_requested
    claimed = await rig.claim()
    assert (claimed.attempt, claimed.retried, claimed.rows, claimed.messages) == (2, True, ((0, b"a"),), ())
    await rig.store.append(claimed.lease, Change(1))
    await rig.store.release(claimed.lease)
    claimed = await rig.claim()
    assert (claimed.attempt, claimed.retried) == (2, False)
    assert (await rig.store.deliver(run_id, CANCEL)).duplicate is False
    await rig.complete(claimed.lease)
    with pytest.raises(TransitionRefused):
        await rig.store.retry(run_id)
    types = [decode_event(row) for row in await rig.store.events(run_id)]
    retried = next(event for event in types if event.type == "retried")
    assert retried.data == {"attempt": 2}
