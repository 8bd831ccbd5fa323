"""The pass over a binding's runs, on a partition whose rows a test lets through: no broker, no store."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context as Variables
from contextvars import ContextVar, copy_context
from typing import Any, cast
from zlib import crc32

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from pyrula.kafka import endings, replayers
from pyrula.kafka.binding import Binding
from pyrula.kafka.buffer import Bounds
from pyrula.kafka.endings import RunEndings
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.outputs import Outputs
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import PrintParts, Record
from pyrula.kafka.replayers import Replayers
from pyrula.workflows import Context, SystemClock, step
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.run import RUN
from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.loops import give_back, prepare
from pyrula.workflows.replay.journal import decode_row
from pyrula.workflows.store.port import Batch, Token


@step
async def echo(number: int) -> int:
    return number


NOTE: ContextVar[int | None] = ContextVar("NOTE", default=None)


class Value:
    """Something of a body's own."""


class Rig:
    """One partition of one binding. Flushes wait while `gate` is closed; `refusal` is what they then answer."""

    def __init__(self, body: Any, concurrency: int = 4) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.rows: list[tuple[int, int, bytes]] = []
        binding = Binding(
            WorkflowDefinition(body, name="body"), topic="orders", group="billing", max_concurrency=concurrency
        )
        self.endings = endings = RunEndings(cast(Outputs, None), lambda: None)
        self.pool = endings.pool = Replayers(binding, endings, SystemClock())
        self.commits = GroupCommit(self._write)
        self.partition = Partition(
            TopicPartition("orders", 0),
            binding,
            shard=0,
            token=Token(1, 1),
            source=bytes(16),
            tracker=OffsetTracker(0),
            rows=[],
            known=None,
            commits=self.commits,
            bounds=Bounds(1_000, 1 << 20, 10_000, 1 << 20),
            fetch=lambda on: None,
            fenced=lambda fenced: None,
            standing=self.pool.standing,
            triggers=cast(Any, None),
        )
        self.pool.add(self.partition)

    async def _write(self, batches: Sequence[Batch]) -> list[Exception | None]:
        await self.gate.wait()
        self.rows += [row for batch in batches for row in batch.rows]
        return [self.refusal] * len(batches)

    def feed(self, count: int, value: Callable[[int], bytes] = b"%d".__mod__) -> None:
        first = self.partition.tracker.position
        records = [
            ConsumerRecord("orders", 0, at, 0, 0, b"%d" % at, value(at), None, 1, 1, ())
            for at in range(first, first + count)
        ]
        self.partition.receive(records)
        self.pool.offer(self.partition)

    async def until(self, wanted: Any) -> None:
        async with asyncio.timeout(60):
            while not wanted():  # noqa: ASYNC110 - a turn of the loop is what it waits for
                await asyncio.sleep(0)

    @property
    def done(self) -> int:
        return self.pool.stats.completed


@asynccontextmanager
async def rig(body: Any, concurrency: int = 4) -> AsyncIterator[Rig]:
    loop = asyncio.get_running_loop()
    prepare(loop)
    made = Rig(body, concurrency)
    try:
        yield made
    finally:
        made.partition.close()
        await made.pool.stop()
        await made.commits.close()
        give_back(loop)


async def test_a_body_is_in_one_task_from_its_beginning_to_its_end_and_alone_in_it() -> None:
    seen: dict[int, list[Any]] = {}

    async def body(ctx: Context, number: int) -> None:
        tasks = seen[number] = [asyncio.current_task()]
        for _ in range(3):
            await ctx.step(echo, number)
            tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        await ctx.step(echo, number)
        tasks.append(asyncio.current_task())

    async with rig(body) as made:
        made.feed(4)
        await made.until(lambda: made.done == 4)
        assert made.partition.tracker.committable() == 4
        assert made.pool.in_flight == 0
    assert all(len(tasks) == 5 and len(set(tasks)) == 1 for tasks in seen.values())
    assert len({tasks[0] for tasks in seen.values()}) == 4


async def test_a_body_that_cancels_its_task_hears_of_it_where_it_next_waits_and_nobody_else_does() -> None:
    heard: list[int] = []

    async def body(ctx: Context, number: int) -> None:
        await ctx.step(echo, number)
        await ctx.step(echo, number)
        if number % 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            try:
                await ctx.step(echo, number)
            except asyncio.CancelledError:
                heard.append(number)
                task.uncancel()

    async with rig(body, concurrency=2) as made:
        made.feed(8)
        await made.until(lambda: made.done == 8)
    assert sorted(heard) == [1, 3, 5, 7]


async def test_a_body_that_is_cut_while_it_waits_for_its_rows_is_cancelled_there() -> None:
    cleaned: list[int] = []

    async def body(ctx: Context, number: int) -> None:
        try:
            await ctx.step(echo, number)
            await ctx.step(echo, number)
        finally:
            cleaned.append(number)

    async with rig(body) as made:
        made.gate.clear()
        made.feed(2)
        await made.until(lambda: len(made.partition.running) == 2)
        made.partition.closed = True
        for run in list(made.partition.running.values()):
            run.cut()
        await made.until(lambda: not made.partition.running)
        made.gate.set()
        await made.until(lambda: made.commits.idle)
        assert made.done == 0
        assert made.pool.in_flight == 0
    assert cleaned == [0, 1]


async def test_bodies_whose_rows_are_refused_are_cut_and_their_slots_are_free() -> None:
    went_on: list[int] = []

    async def body(ctx: Context, number: int) -> None:
        await ctx.step(echo, number)
        if number:
            await ctx.step(echo, number)
            went_on.append(number)

    async with rig(body) as made:
        made.refusal = LeaseLost("another has it")
        made.feed(2)
        await made.until(lambda: made.pool.in_flight == 0 and made.commits.idle)
        assert made.partition.tracker.committable() == 0
        assert made.done == 0
    assert went_on == []


async def test_bodies_whose_rows_are_refused_before_they_ask_for_the_next_step_are_cut() -> None:
    began: list[int] = []
    went_on: list[int] = []

    async def body(ctx: Context, number: int) -> None:
        began.append(number)
        await ctx.step(echo, number)
        await ctx.step(lambda: went_on.append(number))

    async with rig(body) as made:
        made.refusal = LeaseLost("another has it")
        made.feed(1)
        await made.until(lambda: made.pool.in_flight == 0 and made.commits.idle)
        made.feed(3)
        await made.until(lambda: len(began) == 4 and made.pool.in_flight == 0)
        assert made.partition.tracker.committable() == 0
        assert not made.partition.running
    assert went_on == []


async def test_what_has_ended_or_can_go_on_waits_for_the_same_flush_and_not_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayers, "PASS_SECONDS", 60.0)

    async def body(ctx: Context, number: int) -> None:
        await ctx.step(echo, number)
        if number == 1:
            await ctx.step(echo, number)

    async with rig(body) as made:
        made.feed(3)
        await made.until(lambda: made.done == 3)
        assert made.commits.flushes == 2
        assert made.commits.rows == 4


async def test_nothing_starts_or_goes_on_while_the_group_may_have_gone_on() -> None:
    begun: list[int] = []

    async def body(ctx: Context, number: int) -> None:
        begun.append(number)
        await ctx.step(echo, number)
        await ctx.step(echo, number)
        begun.append(number)

    async with rig(body) as made:
        made.gate.clear()
        made.feed(1)
        await made.until(lambda: len(made.partition.running) == 1)
        made.pool.standing.until = 0.0
        made.gate.set()
        made.feed(1)
        await made.until(lambda: made.commits.idle)
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == [0]
        made.pool.standing.until = float("inf")
        made.pool.standing.wake()
        await made.until(lambda: made.done == 2)
    assert sorted(begun) == [0, 0, 1, 1]


@pytest.fixture
def made_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each run that is made; a pass ends early on no machine."""
    made: list[int] = []
    make = RecordRun.__init__

    def count(run: RecordRun, *args: Any, **kwargs: Any) -> None:
        made.append(1)
        make(run, *args, **kwargs)

    monkeypatch.setattr(RecordRun, "__init__", count)
    monkeypatch.setattr(replayers, "PASS_SECONDS", 60.0)
    return made


async def test_bodies_that_ask_for_nothing_share_a_run(made_runs: list[int]) -> None:
    begun: list[tuple[int, int]] = []

    async def body(ctx: Context, number: int) -> None:
        begun.append((ctx.record.offset, number))

    async with rig(body) as made:
        made.feed(50)
        await made.until(lambda: made.done == 50)
    assert begun == [(number, number) for number in range(50)]
    assert len(made_runs) == 1


async def test_bodies_that_wait_for_their_rows_alone_share_a_run(made_runs: list[int]) -> None:
    async def body(ctx: Context, number: int) -> None:
        if number % 3:
            assert await ctx.step(echo, number) == number

    async with rig(body, concurrency=100) as made:
        made.gate.clear()
        made.feed(60)
        await made.until(lambda: made.pool.in_flight == 40)
        assert made.done == 20
        made.gate.set()
        await made.until(lambda: made.done == 60)
        assert made.partition.tracker.committable() == 60
    assert len(made_runs) == 1
    assert [(at, index) for at, index, _ in made.rows] == [(at, 0) for at in range(60) if at % 3]
    for at, _, data in made.rows:
        entry, witnessed = decode_row(data)
        assert entry.value == b"%d" % at
        assert witnessed == str(PrintParts(0, crc32(b"%d" % at), crc32(b"%d" % at)))


async def test_bodies_of_several_steps_have_the_runs_of_those_that_have_ended(made_runs: list[int]) -> None:
    async def body(ctx: Context, number: int) -> None:
        for at in range(3):
            assert await ctx.step(echo, number + at) == number + at

    async with rig(body, concurrency=5) as made:
        made.feed(60)
        await made.until(lambda: made.done == 60)
        assert made.partition.tracker.committable() == 60
    assert len(made_runs) <= 10
    assert sorted((at, index) for at, index, _ in made.rows) == [(at, index) for at in range(60) for index in range(3)]
    for at, index, data in made.rows:
        entry, witnessed = decode_row(data)
        assert (entry.op, entry.value) == (str(index + 1), b"%d" % (at + index))
        assert witnessed == str(PrintParts(0, crc32(b"%d" % at), crc32(b"%d" % at)))


async def test_a_body_that_makes_tasks_follows_one_that_failed_after_its_rows() -> None:
    async def body(ctx: Context, number: int) -> None:
        if number == 0:
            await ctx.step(echo, number)
            await ctx.step(echo, number)
            raise ValueError("it fails where it was resumed")
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))

    async with rig(body) as made:
        failed: list[int] = []
        made.endings.end = lambda run, outcome: failed.append(run.offset)  # type: ignore[method-assign]
        made.gate.clear()
        made.feed(2)
        await made.until(lambda: made.done == 1)
        made.gate.set()
        await made.until(lambda: failed == [0])
        made.feed(6)
        await made.until(lambda: made.done == 7)


async def test_a_record_whose_task_is_cancelled_by_what_another_left_behind_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bodies: list[int] = []
    stepped: list[int] = []
    tasks: list[asyncio.Task[Any]] = []

    @step
    async def once(number: int) -> int:
        stepped.append(number)
        return number

    async def body(ctx: Context, number: int) -> None:
        bodies.append(number)
        if number == 0:
            tasks.append(cast("asyncio.Task[Any]", asyncio.current_task()))
            return
        assert await ctx.step(once, number) == number
        await asyncio.sleep(0.05)
        await ctx.step(echo, number)

    async with rig(body, concurrency=1) as made:
        made.feed(4)
        await made.until(lambda: stepped == [1])
        await asyncio.sleep(0)
        assert tasks[0].cancel()
        await made.until(lambda: made.done == 4)
        assert made.partition.tracker.committable() == 4
    assert bodies == [0, 1, 1, 2, 3] or bodies == [0, 1, 2, 1, 3] or bodies == [0, 1, 2, 3, 1]
    assert sorted(stepped) == [1, 2, 3]
    assert "offset 1: the task of its run" in caplog.text


async def test_a_record_whose_task_is_cancelled_again_and_again_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "AGAIN_SECONDS", 0.0001)
    failed: list[BaseException] = []
    monkeypatch.setattr(RunEndings, "_failed", lambda _, run, error: failed.append(error))
    begun: list[asyncio.Task[Any]] = []

    async def body(ctx: Context, number: int) -> None:
        begun.append(cast("asyncio.Task[Any]", asyncio.current_task()))
        await asyncio.sleep(60)

    async with rig(body) as made:
        made.feed(1)
        for times in range(1, endings.AGAIN_AT_MOST + 2):
            await made.until(lambda times=times: len(begun) == times)
            await asyncio.sleep(0.001)
            begun[-1].cancel()
        await made.until(lambda: failed)
    assert isinstance(failed[0], endings.BodyCancelled)
    assert "cancelled from outside 7 times" in str(failed[0])


async def test_nothing_is_kept_of_records_when_no_more_come() -> None:
    """They may be large, and there are as many runs to be used again as bodies were in flight at once."""
    steps = {0: 0, 1: 1, 2: 3}
    values: list[weakref.ref[Value]] = []

    async def body(ctx: Context, record: Record[Any]) -> None:
        value = Value()
        values.append(weakref.ref(value))
        for _ in range(steps[record.offset % 3]):
            await ctx.step(take, value)

    @step
    async def take(value: Value) -> str:
        return "x" * 100

    async with rig(body, concurrency=20) as made:
        made.feed(60)
        read = [weakref.ref(record) for record in made.partition.lanes.waiting()]
        assert len(read) == 60
        await made.until(lambda: made.done == 60)
        # The log is known again by two of them, the first and the last that is done.
        await made.until(lambda: sum(record() is not None for record in read) == 2)
        assert not any(value() for value in values)


async def test_what_is_left_of_a_body_of_several_steps_knows_its_own_run(made_runs: list[int]) -> None:
    kept: dict[int, Context] = {}
    left: dict[int, Variables] = {}
    late: dict[int, int] = {}

    async def body(ctx: Context, number: int) -> None:
        await ctx.step(echo, number)
        await ctx.step(echo, number)
        if number % 4 == 0:
            kept[number] = ctx
        elif number % 4 == 1:
            left[number] = copy_context()
        elif number % 4 == 2:
            asyncio.get_running_loop().call_soon(
                lambda: late.update({number: cast(RecordRun, RUN.get()).origin.offset})
            )

    async with rig(body) as made:
        made.feed(80)
        await made.until(lambda: made.done == 80 and len(late) == 20)
        assert {number: ctx.record.offset for number, ctx in kept.items()} == {n: n for n in range(0, 80, 4)}
        assert {n: cast(RecordRun, one[RUN]).origin.offset for n, one in left.items()} == {
            n: n for n in range(1, 80, 4)
        }
        assert late == {number: number for number in range(2, 80, 4)}
    assert len(made_runs) >= 40


async def test_a_run_that_was_cut_or_has_failed_is_no_other_records_run() -> None:
    seen: list[tuple[int, Any]] = []

    async def body(ctx: Context, number: int) -> None:
        await ctx.step(echo, number)
        seen.append((ctx.record.offset, await ctx.step(echo, number)))
        if number % 3 == 0:
            raise ValueError(number)
        if number % 3 == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await ctx.step(echo, number)
            task.uncancel()

    async with rig(body) as made:
        made.pool.binding.on_failure = "skip"
        made.feed(60)
        await made.until(lambda: made.done + made.pool.stats.skipped == 60)
        assert made.pool.stats.skipped == 20
        assert made.partition.tracker.committable() == 60
    assert sorted(seen) == [(number, number) for number in range(60)]


async def test_a_run_that_a_body_keeps_while_its_row_is_on_its_way_is_no_other_records_run() -> None:
    kept: dict[int, Context] = {}

    async def body(ctx: Context, number: int) -> None:
        await ctx.step(echo, number)
        if number % 3 == 0:
            kept[number] = ctx

    async with rig(body) as made:
        made.feed(30)
        await made.until(lambda: made.done == 30)
        assert {number: ctx.record.offset for number, ctx in kept.items()} == {n: n for n in range(0, 30, 3)}


async def test_a_run_that_a_body_keeps_is_no_other_records_run() -> None:
    kept: dict[int, Context] = {}

    async def body(ctx: Context, number: int) -> None:
        if number % 3 == 0:
            kept[number] = ctx

    async with rig(body) as made:
        made.feed(30)
        await made.until(lambda: made.done == 30)
        assert {number: ctx.record.offset for number, ctx in kept.items()} == {n: n for n in range(0, 30, 3)}


async def test_what_a_body_leaves_behind_knows_its_own_run() -> None:
    left: list[Variables] = []

    async def body(ctx: Context, number: int) -> None:
        NOTE.set(number)
        if number % 2:
            left.append(copy_context())

    async with rig(body) as made:
        made.feed(20)
        await made.until(lambda: made.done == 20)
        runs = [cast(RecordRun, variables[RUN]) for variables in left]
        assert [run.origin.offset for run in runs] == [variables[NOTE] for variables in left] == [*range(1, 20, 2)]


async def test_nothing_of_a_body_is_left_to_the_next_one() -> None:
    seen: list[Any] = []

    async def body(ctx: Context, number: int) -> None:
        seen.append(NOTE.get())
        NOTE.set(number)
        if number % 4 == 0:
            asyncio.get_running_loop().call_later(60, print).cancel()
        elif number % 4 == 1:
            assert await ctx.step(echo, number) == number
        elif number % 4 == 2:
            raise ValueError(number)

    async with rig(body) as made:
        made.pool.binding.on_failure = "skip"
        made.feed(40)
        await made.until(lambda: made.done + made.pool.stats.skipped == 40)
        assert made.done == 30
        assert made.partition.tracker.committable() == 40
    assert seen == [None] * 40


async def test_records_that_can_not_be_read_go_to_the_endings_one_by_one() -> None:
    begun: list[int] = []

    async def body(ctx: Context, number: int) -> None:
        begun.append(number)

    async with rig(body) as made:
        made.pool.binding.on_failure = "skip"
        made.feed(10, lambda at: b"bad" if at % 2 else b"%d" % at)
        await made.until(lambda: made.done + made.pool.stats.skipped == 10)
        assert made.partition.tracker.committable() == 10
    assert begun == [0, 2, 4, 6, 8]
