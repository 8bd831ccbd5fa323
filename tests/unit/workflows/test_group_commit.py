"""Group commit against a store whose answers the test gives."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from pyrula.workflows.clock import ManualClock
from pyrula.workflows.errors import ConfigurationError, LeaseLost, StoreUnavailable
from pyrula.workflows.group_commit import GroupCommit, SourceQueue
from pyrula.workflows.store.port import Batch, Token

A, B = b"a" * 16, b"b" * 16
TOKEN = Token(1, 1)
Answers = list[Exception | None]


class Writer:
    """A store that notes what it is given and answers when told to; ``auto`` answers at once."""

    def __init__(self) -> None:
        self.writes: list[list[Batch]] = []
        self.auto: Callable[[Sequence[Batch]], Answers] | None = lambda batches: [None] * len(batches)
        self.contexts: list[contextvars.Context] = []
        self._pending: asyncio.Future[Answers] | None = None

    async def __call__(self, batches: Sequence[Batch]) -> Answers:
        assert self._pending is None or self._pending.done(), "two flushes in flight"
        self.writes.append(list(batches))
        self.contexts.append(contextvars.copy_context())
        if self.auto is not None:
            return self.auto(batches)
        self._pending = asyncio.get_running_loop().create_future()
        return await self._pending

    def answer(self, *answers: Exception | None) -> None:
        assert self._pending is not None
        self._pending.set_result(list(answers) or [None] * len(self.writes[-1]))

    def fail(self, error: Exception) -> None:
        assert self._pending is not None
        self._pending.set_exception(error)

    def rows(self, write: int) -> list[tuple[bytes, int, int, bytes]]:
        return [(batch.source, *row) for batch in self.writes[write] for row in batch.rows]


class Sleeps:
    """Delays that pass at once, on the manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.delays: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sleeps(clock: ManualClock) -> Sleeps:
    return Sleeps(clock)


@pytest.fixture
async def commit(writer: Writer, clock: ManualClock, sleeps: Sleeps) -> AsyncIterator[GroupCommit]:
    commit = GroupCommit(writer, clock=clock, sleep=sleeps)
    yield commit
    await commit.close()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_rows_of_one_turn_travel_together_whatever_their_source(commit: GroupCommit, writer: Writer) -> None:
    a, b = commit.lane(A, TOKEN), commit.lane(B, Token(2, 7))
    first = a.add(5, 0, b"x")
    second = b.add(1, 0, b"y")
    third = a.add(6, 0, b"z")
    assert third is first
    assert second is not first
    assert writer.writes == []
    await asyncio.gather(first.wait(), second.wait())
    assert writer.writes == [
        [Batch(A, TOKEN, [(5, 0, b"x"), (6, 0, b"z")], 6, None), Batch(B, Token(2, 7), [(1, 0, b"y")], 1, None)]
    ]
    assert first.done
    assert second.done
    assert first.error is None


async def test_rows_that_arrive_during_a_flush_go_with_the_next_one(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    queue = commit.lane(A, TOKEN)
    first = queue.add(1, 0, b"1")
    await turns()
    second = queue.add(2, 0, b"2")
    queue.add(3, 0, b"3")
    await turns()
    assert len(writer.writes) == 1
    assert not first.done
    assert not second.done
    writer.answer()
    await turns()
    assert first.done
    assert not second.done
    assert writer.rows(1) == [(A, 2, 0, b"2"), (A, 3, 0, b"3")]
    writer.answer()
    await second.wait()


async def test_what_a_flush_wakes_joins_the_next_flush(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    queue = commit.lane(A, TOKEN)

    async def run(position: int) -> None:
        for index in range(3):
            await queue.add(position, index, b"x").wait()

    first = asyncio.create_task(run(1))
    await turns()
    second = asyncio.create_task(run(2))
    await turns()
    for _ in range(4):
        writer.answer()
        await turns()
    await asyncio.gather(first, second)
    # the two runs, started apart, end up in one flush each time
    assert [len(writer.rows(number)) for number in range(4)] == [1, 2, 2, 1]


async def test_many_rows_do_not_wait_for_what_a_flush_wakes(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    queue = commit.lane(A, TOKEN)

    async def run() -> None:
        for index in range(2):
            await queue.add(1, index, b"x").wait()

    woken = asyncio.create_task(run())
    await turns()
    for position in range(2, 102):
        last = queue.add(position, 0, b"x")
    writer.answer()
    await turns()
    assert [position for _, position, _, _ in writer.rows(1)] == list(range(2, 102))
    writer.answer()
    await last.wait()
    await turns()
    assert writer.rows(2) == [(A, 1, 1, b"x")]
    writer.answer()
    await woken


async def test_every_row_is_written_once_and_in_order(commit: GroupCommit, writer: Writer) -> None:
    queues = [commit.lane(bytes([number]) * 16, TOKEN) for number in range(5)]

    async def run(queue: SourceQueue, position: int) -> None:
        for index in range(4):
            await queue.add(position, index, b"%d" % index).wait()

    await asyncio.gather(*(run(queue, position) for queue in queues for position in range(20)))
    written = [row for number in range(len(writer.writes)) for row in writer.rows(number)]
    assert len(written) == len(set(written)) == 5 * 20 * 4
    for source in {row[0] for row in written}:
        for position in range(20):
            assert [row[2] for row in written if row[:2] == (source, position)] == [0, 1, 2, 3]


async def test_a_flush_is_cut_into_batches_by_rows_and_by_bytes(writer: Writer) -> None:
    commit = GroupCommit(writer, max_rows=3, max_bytes=10)
    many, large = commit.lane(A, TOKEN), commit.lane(B, TOKEN)
    for index in range(7):
        many.add(1, index, b"x")
    for index, size in enumerate([4, 5, 4, 30, 1]):
        large.add(1, index, b"y" * size)
    await large.touch().wait()
    assert [(batch.source, len(batch.rows)) for batch in writer.writes[0]] == [
        (A, 3),
        (A, 3),
        (A, 1),
        (B, 2),
        (B, 1),
        (B, 1),
        (B, 1),
    ]
    assert [row[2] for row in writer.rows(0) if row[0] == A] == list(range(7))
    await commit.close()


async def test_a_flush_of_many_batches_is_written_in_parts_and_done_with_its_last(writer: Writer) -> None:
    commit = GroupCommit(writer, max_rows=1)
    writer.auto = None
    queue, behind = commit.lane(A, TOKEN), commit.lane(B, TOKEN)
    flush = queue.add(0, 0, b"x")
    for index in range(1, 40):
        queue.add(0, index, b"x")
    other = behind.add(0, 0, b"y")
    await turns()
    writer.answer()
    await turns()
    assert not flush.done
    writer.answer()
    await asyncio.gather(flush.wait(), other.wait())
    assert [row[2] for number in (0, 1) for row in writer.rows(number) if row[0] == A] == list(range(40))
    assert len(writer.writes) == 2
    await commit.close()


async def test_marks_are_asked_as_the_flush_leaves(commit: GroupCommit, writer: Writer) -> None:
    mark = 0, b"early"
    sizes = []

    def marks(size: int) -> tuple[int, bytes | None]:
        sizes.append(size)
        return mark

    queue = commit.lane(A, TOKEN, marks)
    queue.add(5, 0, b"x")
    flush = queue.add(5, 1, b"xyz")
    mark = 9, b"late"
    await flush.wait()
    assert (writer.writes[0][0].high, writer.writes[0][0].witness) == (9, b"late")
    assert sizes == [4]


async def test_marks_that_raise_fail_their_source_alone(commit: GroupCommit, writer: Writer) -> None:
    def broken(size: int) -> tuple[int, bytes | None]:
        raise KeyError("marks")

    bad, good = commit.lane(A, TOKEN, broken).add(1, 0, b"x"), commit.lane(B, TOKEN).add(1, 0, b"y")
    await good.wait()
    with pytest.raises(KeyError):
        await bad.wait()


async def test_touch_writes_an_empty_batch_and_waits_for_rows_before_it(commit: GroupCommit, writer: Writer) -> None:
    queue = commit.lane(A, TOKEN, lambda size: (3, None))
    await queue.touch().wait()
    assert writer.writes == [[Batch(A, TOKEN, [], 3, None)]]
    flush = queue.add(4, 0, b"x")
    assert queue.touch() is flush


async def test_a_lost_lease_fails_only_its_source(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = lambda batches: [LeaseLost("gone") if batch.source == A else None for batch in batches]
    lost, kept = commit.lane(A, TOKEN), commit.lane(B, TOKEN)
    failing, fine = lost.add(1, 0, b"x"), kept.add(1, 0, b"y")
    await fine.wait()
    with pytest.raises(LeaseLost, match="gone"):
        await failing.wait()
    later = lost.add(2, 0, b"x")
    assert later.done
    with pytest.raises(LeaseLost, match="gone"):
        await later.wait()
    await kept.add(2, 0, b"y").wait()
    assert [row[0] for number in (0, 1) for row in writer.rows(number)] == [A, B, B]


async def test_rows_queued_behind_a_lost_flush_fail_with_it(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    queue = commit.lane(A, TOKEN)
    first = queue.add(1, 0, b"x")
    await turns()
    second = queue.add(2, 0, b"x")
    writer.answer(LeaseLost("gone"))
    for flush in (first, second):
        with pytest.raises(LeaseLost):
            await flush.wait()
    assert len(writer.writes) == 1


async def test_a_new_lane_of_a_lost_source_starts_afresh(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = lambda batches: [LeaseLost("gone") if batch.token == TOKEN else None for batch in batches]
    old, new = commit.lane(A, TOKEN), commit.lane(A, Token(1, 2))
    failing, fine = old.add(1, 0, b"x"), new.add(1, 0, b"y")
    await fine.wait()
    with pytest.raises(LeaseLost):
        await failing.wait()


async def test_an_outage_keeps_rows_and_order_and_is_visible(
    writer: Writer, clock: ManualClock, sleeps: Sleeps
) -> None:
    told: list[float | None] = []
    commit = GroupCommit(writer, clock=clock, sleep=sleeps, on_outage=lambda since, _: told.append(since))
    left = 30

    def answers(batches: Sequence[Batch]) -> Answers:
        nonlocal left
        left -= 1
        if left > 0:
            raise StoreUnavailable(f"refused, {left} to go")
        return [None] * len(batches)

    writer.auto = answers
    clock.advance(100)
    queue = commit.lane(A, TOKEN)
    first = queue.add(1, 0, b"x")
    await turns()
    assert commit.outage == 100
    assert isinstance(commit.outage_error, StoreUnavailable)
    second = queue.add(2, 0, b"y")
    await asyncio.gather(first.wait(), second.wait())
    assert commit.outage is None
    assert commit.outage_error is None
    assert told == [100.0] * 29 + [None]
    assert [writer.rows(number) for number in (0, 28, 29)] == [[(A, 1, 0, b"x")]] * 3
    assert writer.rows(30) == [(A, 2, 0, b"y")]
    assert sleeps.delays[0] < 0.1 < 0.8 < sleeps.delays[-1]
    assert max(sleeps.delays) <= 1.2
    await commit.close()


async def test_one_source_out_of_reach_is_sent_again_whole_and_alone(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    commit._max_rows = 1
    queue, other = commit.lane(A, TOKEN), commit.lane(B, TOKEN)
    flush = queue.add(1, 0, b"0")
    queue.add(1, 1, b"1")
    queue.add(1, 2, b"2")
    fine = other.add(1, 0, b"y")
    await turns()
    writer.answer(None, StoreUnavailable("replica"), None, None)
    await turns()
    # order: what was written behind the refused batch is written again after it
    assert writer.rows(1) == [(A, 1, 0, b"0"), (A, 1, 1, b"1"), (A, 1, 2, b"2")]
    assert not flush.done
    writer.answer()
    await asyncio.gather(flush.wait(), fine.wait())


@pytest.mark.parametrize("error", [ConfigurationError("password"), RuntimeError("a fault")])
async def test_any_other_failure_is_final_for_the_sources_written(
    commit: GroupCommit, writer: Writer, error: Exception
) -> None:
    writer.auto = None
    queue = commit.lane(A, TOKEN)
    flush = queue.add(1, 0, b"x")
    await turns()
    writer.fail(error)
    with pytest.raises(type(error)):
        await flush.wait()
    assert queue.add(1, 1, b"x").error is error


async def test_a_writer_that_answers_wrongly_leaves_nobody_waiting(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = lambda _: []
    with pytest.raises(ValueError, match="zip"):
        await commit.lane(A, TOKEN).add(1, 0, b"x").wait()
    writer.auto = lambda batches: [None] * len(batches)
    await commit.lane(A, TOKEN).add(1, 0, b"x").wait()


async def test_closing_a_queue_drops_what_is_queued_but_not_what_has_left(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    queue = commit.lane(A, TOKEN)
    left = queue.add(1, 0, b"x")
    await turns()
    queued = queue.add(2, 0, b"x")
    queue.close()
    late = queue.add(3, 0, b"x")
    for flush in (queued, late):
        with pytest.raises(LeaseLost, match="let go"):
            await flush.wait()
    writer.answer()
    await left.wait()
    await turns()
    assert len(writer.writes) == 1


async def test_a_queue_closed_in_an_outage_is_not_sent_again(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    closed, other = commit.lane(A, TOKEN), commit.lane(B, TOKEN)
    dropped, kept = closed.add(1, 0, b"x"), other.add(1, 0, b"y")
    await turns()
    closed.close()
    writer.fail(StoreUnavailable("down"))
    with pytest.raises(LeaseLost):
        await dropped.wait()
    await turns()
    assert writer.rows(1) == [(B, 1, 0, b"y")]
    writer.answer()
    await kept.wait()


async def test_closing_in_an_outage_ends_at_once(writer: Writer, clock: ManualClock, sleeps: Sleeps) -> None:
    def answers(_: Sequence[Batch]) -> Answers:
        raise StoreUnavailable("down")

    writer.auto = answers
    commit = GroupCommit(writer, clock=clock, sleep=sleeps)
    queue, idle = commit.lane(A, TOKEN), commit.lane(B, TOKEN)
    first = queue.add(1, 0, b"x")
    await turns()
    second = queue.add(2, 0, b"x")
    waiting = asyncio.gather(first.wait(), second.wait(), return_exceptions=True)
    await commit.close()
    assert [type(error) for error in await waiting] == [LeaseLost, LeaseLost]
    assert commit.outage is None
    assert commit.idle
    assert isinstance(idle.add(1, 0, b"x").error, LeaseLost)


async def test_closing_before_the_first_flush_has_started(writer: Writer) -> None:
    commit = GroupCommit(writer)
    flush = commit.lane(A, TOKEN).add(1, 0, b"x")
    await commit.close()
    assert isinstance(flush.error, LeaseLost)
    await turns()
    assert writer.writes == []


async def test_cancelling_one_waiter_leaves_the_others_waiting(commit: GroupCommit, writer: Writer) -> None:
    writer.auto = None
    flush = commit.lane(A, TOKEN).add(1, 0, b"x")

    async def wait() -> str:
        await flush.wait()
        return "durable"

    one, two = asyncio.create_task(wait()), asyncio.create_task(wait())
    await turns()
    one.cancel()
    await turns()
    assert one.cancelled()
    assert not two.done()
    writer.answer()
    assert await two == "durable"


async def test_callbacks_run_before_waiters_and_one_that_raises_stops_nobody(
    commit: GroupCommit, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def broken(_: Exception | None) -> None:
        raise RuntimeError("callback")

    flush = commit.lane(A, TOKEN).add(1, 0, b"x")
    flush.on_done(broken)
    flush.on_done(seen.append)

    async def wait() -> None:
        await flush.wait()
        seen.append("waiter")

    await wait()
    flush.on_done(seen.append)
    assert seen == [None, "waiter", None]
    assert "callback of a journal flush raised" in caplog.text


async def test_a_callback_may_add_the_next_row(commit: GroupCommit, writer: Writer) -> None:
    queue = commit.lane(A, TOKEN)
    done = asyncio.get_running_loop().create_future()

    def more(_: Exception | None) -> None:
        queue.add(2, 0, b"y").on_done(done.set_result)

    queue.add(1, 0, b"x").on_done(more)
    assert await done is None
    assert [writer.rows(number) for number in (0, 1)] == [[(A, 1, 0, b"x")], [(A, 2, 0, b"y")]]


async def test_the_flusher_does_not_run_in_the_context_of_a_run(commit: GroupCommit, writer: Writer) -> None:
    run: contextvars.ContextVar[str] = contextvars.ContextVar("run")

    async def body() -> None:
        run.set("mine")
        await commit.lane(A, TOKEN).add(1, 0, b"x").wait()

    await asyncio.create_task(body())
    assert run not in writer.contexts[0]


async def test_a_failed_flush_nobody_awaits_is_not_logged_by_the_loop(commit: GroupCommit, writer: Writer) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    writer.auto = lambda batches: [LeaseLost("gone")] * len(batches)
    flush = commit.lane(A, TOKEN).add(1, 0, b"x")
    waiting = flush.wait()
    await turns()
    assert flush.done
    del waiting, flush
    await turns()
    assert complaints == []
