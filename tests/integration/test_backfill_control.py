"""Backfills that a client asks for: workers find them, share them, and are paused, resumed and stopped meanwhile."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from pyrula.kafka import Backfill, KafkaOptions, KafkaWorker
from pyrula.workflows import (
    BackfillNotFoundError,
    BackfillRefused,
    BackfillReport,
    ConfigurationError,
    Context,
    Limit,
    Retry,
    WorkflowClient,
    step,
    workflow,
)
from tests.integration.rig import OPTIONS, Rig
from tests.services.topics import Message

runs: list[tuple[str, int, int]] = []
release: asyncio.Event


@pytest.fixture(autouse=True)
def fresh() -> None:
    global release
    release = asyncio.Event()  # it belongs to the test's loop
    runs.clear()
    stuck.clear()


@step
async def wait(offset: int) -> int:
    if offset >= 5:
        await release.wait()
    return offset


@workflow(name="control.note")
async def note(ctx: Context) -> None:
    assert ctx.record is not None
    runs.append((ctx.run.id, ctx.record.partition, ctx.record.offset))


@workflow(name="control.waiting")
async def waiting(ctx: Context) -> None:
    assert ctx.record is not None
    await ctx.step(wait, ctx.record.offset)
    runs.append((ctx.run.id, ctx.record.partition, ctx.record.offset))


@workflow(name="control.limited", concurrency=Limit("key", max=1))
async def limited(ctx: Context, key: str) -> None: ...


def records(count: int, partitions: int = 1) -> list[Message]:
    return [Message(b"k%d" % (n % 13), b"{}", partition=n % partitions) for n in range(count)]


def client_of(rig: Rig) -> WorkflowClient:
    return WorkflowClient(rig.store())  # type: ignore[arg-type]


async def until_status(rig: Rig, client: WorkflowClient, backfill_id: str, *statuses: str) -> BackfillReport:
    async def reached() -> BackfillReport | None:
        report = await client.backfills.status(backfill_id)
        return report if report.status in statuses else None

    found: BackfillReport = await rig.until(reached, f"{backfill_id} to be {' or '.join(statuses)}")
    return found


async def until_let_go(rig: Rig, client: WorkflowClient, backfill_id: str) -> BackfillReport:
    async def let_go() -> BackfillReport | None:
        report = await client.backfills.status(backfill_id)
        return report if all(one.worker is None for one in report.partitions) else None

    found: BackfillReport = await rig.until(let_go, "the worker to let go")
    return found


async def test_a_worker_runs_what_a_client_asks_for(rig: Rig) -> None:
    """Beside its binding, whose group, offsets and run ids stay as they are."""
    await rig.create(partitions=3)
    await rig.produce(records(60, 3))
    async with client_of(rig) as client, rig.running(rig.binding(note)):
        await rig.until_drained()
        live = {run for run, _, _ in runs}
        runs.clear()
        committed = await rig.committed()
        asked = await client.backfills.start(note, rig.topic, backfill_id="again", start=5, end=15)
        assert asked.status in ("requested", "running")
        report = await until_status(rig, client, "again", "completed")
        assert await rig.committed() == committed
    assert sorted((p, o) for _, p, o in runs) == [(p, o) for p in range(3) for o in range(5, 15)]
    assert not live & {run for run, _, _ in runs}
    assert report.completed == 30
    assert report.group is None
    assert report.created_at is not None
    assert report.finished_at is not None
    assert report.to_dict()["partitions"][0]["last_offset"] == 14


async def test_several_workers_share_it(rig: Rig) -> None:
    await rig.create(partitions=12)
    await rig.produce(records(240, 12))
    workers: Counter[str] = Counter()
    async with client_of(rig) as client, rig.running(rig.binding(waiting)), rig.running(rig.binding(waiting)):
        release.set()
        await rig.until_drained()
        release.clear()
        runs.clear()
        await client.backfills.start("control.waiting", rig.topic, backfill_id="shared", max_concurrency=4)

        async def both() -> bool:
            report = await client.backfills.status("shared")
            workers.clear()
            workers.update(one.worker for one in report.partitions if one.worker)
            return len(workers) == 2 and sum(workers.values()) == 8

        await rig.until(both, "both workers to have four partitions")
        release.set()
        report = await until_status(rig, client, "shared", "completed")
    assert report.completed == 240
    assert sorted((p, o) for _, p, o in runs) == [(p, o) for p in range(12) for o in range(20)]


@pytest.mark.parametrize("partitions", [2, 4])
async def test_a_worker_that_joins_gets_half_of_what_another_has(rig: Rig, partitions: int) -> None:
    """Though all of them are held. What runs of it may end first, for drain_timeout; what is cut runs elsewhere."""
    await rig.create(partitions=partitions)
    await rig.produce(records(20 * partitions, partitions))
    async with client_of(rig) as client, rig.running(rig.binding(waiting)):
        release.set()
        await rig.until_drained()
        release.clear()
        runs.clear()
        await client.backfills.start("control.waiting", rig.topic, backfill_id="b", max_concurrency=4)

        async def holders() -> list[str | None]:
            return [one.worker for one in (await client.backfills.status("b")).partitions]

        async def one_has_all() -> bool:
            held = await holders()
            return len(held) == partitions and None not in held and len(set(held)) == 1

        await rig.until(one_has_all, "the first worker to have all partitions")
        async with rig.running(rig.binding(waiting)):

            async def shared() -> bool:
                held = await holders()
                return None not in held and sorted(Counter(held).values()) == [partitions // 2] * 2

            await rig.until(shared, "each to have half of them", timeout=120)
            release.set()
            report = await until_status(rig, client, "b", "completed")
    assert report.completed == 20 * partitions
    assert {(p, o) for _, p, o in runs} == {(p, o) for p in range(partitions) for o in range(20)}


async def test_a_worker_shows_the_backfills_it_takes_part_in(rig: Rig) -> None:
    @workflow(name="control.shown")
    async def shown(ctx: Context, value: int) -> None:
        if value == 3:
            raise ValueError("three")
        await release.wait()

    await rig.create(partitions=2)
    await rig.produce(Message(None, b"%d" % n, partition=n % 2) for n in range(8))
    binding = rig.binding(note)
    other = rig.binding(shown, on_failure="stop", group=f"{rig.group}-2")
    async with rig.running(binding) as running:
        await rig.until_drained()
        worker = running.worker
        assert len(worker.stats()) == len(worker.health().bindings) == 1
        task = asyncio.create_task(worker.backfill(Backfill(other, id="b")))
        await rig.until(lambda: len(worker.health().bindings) == 2, "health to show it")
        await rig.until(lambda: worker.health().bindings[1].reasons, "the record that is held to show")
        await rig.until(lambda: worker.stats()[1].in_flight == 7, "the others to run")
        held, stats = worker.health().bindings[1], worker.stats()[1]
        assert (held.binding, held.state) == (f"backfill:b/{rig.topic}", "degraded")
        assert held.reasons == (f"{rig.topic}[1] offset 1: ValueError: three",)
        assert worker.health().bindings[0].state == "healthy"
        assert (stats.binding, stats.partitions, stats.lag) == (held.binding, 2, 8)
        release.set()
        assert (await task).status == "failed"
        await rig.until(lambda: len(worker.stats()) == len(worker.health().bindings) == 1, "it to be gone")


async def test_pause_resume_and_what_ran_meanwhile(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rig.create(partitions=2)
    await rig.produce(records(60, 2))
    async with client_of(rig) as client, rig.running(rig.binding(waiting), drain_timeout=20.0):
        release.set()
        await rig.until_drained()
        release.clear()
        runs.clear()
        await client.backfills.start(waiting, rig.topic, backfill_id="b", max_concurrency=30)
        await rig.until(lambda: len(runs) == 10, "it to wait at record 5 of both partitions")
        assert (await client.backfills.pause("b")).status == "paused"
        assert (await client.backfills.pause("b")).status == "paused"
        await rig.until(lambda: "2 partitions are let go" in caplog.text, "the worker to have heard of it")
        release.set()
        # what ran is done, and nothing else began
        paused = await until_let_go(rig, client, "b")
        assert 10 < paused.completed <= 10 + 26
        assert len(runs) == paused.completed
        assert (await client.backfills.resume("b")).status == "running"
        report = await until_status(rig, client, "b", "completed")
    assert report.completed == len(runs) == 60


async def test_cancel_is_final(rig: Rig) -> None:
    await rig.create()
    await rig.produce(records(30))
    async with client_of(rig) as client, rig.running(rig.binding(waiting), drain_timeout=0.2):
        release.set()
        await rig.until_drained()
        release.clear()
        runs.clear()
        await client.backfills.start(waiting, rig.topic, backfill_id="b")
        await rig.until(lambda: len(runs) == 5, "it to wait at record 5")
        assert (await client.backfills.cancel("b")).status == "cancelled"
        for refused in (client.backfills.pause, client.backfills.resume):
            with pytest.raises(BackfillRefused, match="is cancelled"):
                await refused("b")
        with pytest.raises(BackfillRefused, match="was cancelled, which is final; use another id"):
            await client.backfills.start(waiting, rig.topic, backfill_id="b")
        report = await until_let_go(rig, client, "b")
        release.set()
        assert (report.completed, len(runs)) == (5, 5)
        assert [one.id for one in await client.backfills.list()] == ["b"]


async def test_asking_for_what_cannot_be(rig: Rig) -> None:
    async with client_of(rig) as client:
        start = client.backfills.start
        with pytest.raises(ConfigurationError, match=r"control.limited has concurrency=.*max_concurrency= and rate="):
            await start(limited, "orders")
        with pytest.raises(ConfigurationError, match="can't be imported by a worker"):
            await start(note, "orders", where=lambda record: True)
        with pytest.raises(ConfigurationError, match=r"the end .* is before the start"):
            await start(note, "orders", start=5, end=4)
        with pytest.raises(ConfigurationError, match="'no good id' can't be the id"):
            await start(note, "orders", backfill_id="no good id")
        with pytest.raises(BackfillNotFoundError, match="no backfill has the id 'x'"):
            await client.backfills.status("x")
        assert await client.backfills.list() == []


async def test_a_request_that_no_worker_can_run_waits_and_one_that_cannot_be_run_fails(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.create()
    await rig.produce(records(5))
    second = f"{rig.group}-2"
    several = rig.binding(waiting, group=second), rig.binding(waiting, group=f"{rig.group}-3")
    async with client_of(rig) as client, rig.running(rig.binding(note), *several):
        await client.backfills.start(waiting, f"{rig.topic}-x", backfill_id="ambiguous")
        failed = await until_status(rig, client, "ambiguous", "failed")
        assert "workflow control.waiting has several bindings; say group= (" in failed.problem
        await client.backfills.start("control.unknown", rig.topic, backfill_id="unknown")
        await client.backfills.start(note, rig.topic, group="another", backfill_id="other-group")
        await client.backfills.start(note, rig.topic, where="no.such:thing", backfill_id="where")
        await client.backfills.start(note, f"{rig.topic}-no", backfill_id="topic")
        failed = await until_status(rig, client, "topic", "failed")
        assert f"topic {rig.topic}-no does not exist" in failed.problem
        statuses = {one.id: one.status for one in await client.backfills.list()}
    assert statuses == {
        "unknown": "requested",
        "other-group": "requested",
        "where": "requested",
        "topic": "failed",
        "ambiguous": "failed",
    }
    assert "backfill where is left to other workers: where='no.such:thing' can't be imported" in caplog.text


async def test_a_worker_that_stops_lets_go_and_another_goes_on(rig: Rig) -> None:
    await rig.create()
    await rig.produce(records(30))
    async with client_of(rig) as client:
        async with rig.running(rig.binding(waiting), drain_timeout=0.3):
            release.set()
            await rig.until_drained()
            release.clear()
            runs.clear()
            await client.backfills.start(waiting, rig.topic, backfill_id="b")
            await rig.until(lambda: len(runs) == 5, "it to wait at record 5")
        report = await client.backfills.status("b")
        assert (report.status, report.completed, report.partitions[0].worker) == ("running", 5, None)
        release.set()
        async with rig.running(rig.binding(waiting)):
            report = await until_status(rig, client, "b", "completed")
    assert report.completed == len(runs) == 30
    assert [offset for _, _, offset in runs[:5]] == list(range(5))


async def test_a_pace_that_is_changed_while_it_runs(rig: Rig) -> None:
    await rig.create()
    await rig.produce(records(40))
    async with client_of(rig) as client, rig.running(rig.binding(note)):
        await rig.until_drained()
        runs.clear()
        await client.backfills.start(note, rig.topic, backfill_id="b", rate=2)
        await rig.until(lambda: len(runs) >= 2, "it to begin")
        assert len(runs) < 20
        report = await client.backfills.start(note, rig.topic, backfill_id="b", rate=10_000)
        assert report.rate == 10_000
        report = await until_status(rig, client, "b", "completed")
    assert report.completed == 40


async def test_a_worker_waits_for_its_own_backfill_until_it_is_stopped(rig: Rig) -> None:
    await rig.create()
    await rig.produce(records(30))
    shown: list[BackfillReport] = []
    kafka = KafkaOptions(bootstrap_servers=rig.kafka, **{**OPTIONS, "drain_timeout": 0.2})
    worker = KafkaWorker([rig.binding(waiting)], store=rig.store(), kafka=kafka)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    backfill = asyncio.create_task(
        worker.backfill(Backfill(rig.binding(waiting), id="b", start=0, end=5), on_progress=shown.append)
    )
    report = await asyncio.wait_for(backfill, 60)
    assert (report.status, report.completed) == ("completed", 5)
    assert shown[-1] == report
    backfill = asyncio.create_task(worker.backfill(Backfill(rig.binding(waiting), id="c")))
    await rig.until(lambda: len(runs) >= 15, "it to wait at record 5")
    worker.stop()
    await asyncio.wait_for(running, 60)
    with pytest.raises(Exception, match="the worker stopped before backfill c was over; the same id goes on"):
        await asyncio.wait_for(backfill, 60)


async def test_a_fault_of_the_body_in_one_backfill_leaves_live_records_alone(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Both read the same topic at once; each has lanes, ids and journals of its own."""
    await rig.create(partitions=2)
    await rig.produce(records(100, 2))
    caplog.set_level(logging.WARNING)
    async with client_of(rig) as client, rig.running(rig.binding(note)):
        await client.backfills.start(note, rig.topic, backfill_id="b")
        await rig.until_drained()
        await until_status(rig, client, "b", "completed")
    counts: Counter[Any] = Counter((p, o) for _, p, o in runs)
    assert set(counts.values()) == {2}
    assert len({run for run, _, _ in runs}) == 200


charges: Counter[int] = Counter()
ships: Counter[int] = Counter()
stuck: set[int] = set()
attempts: list[int] = []


@step
async def charge(number: int) -> str:
    charges[number] += 1
    return f"charge-{number}"


@step(retry=Retry(max_attempts=2, initial=0.01))
async def ship(number: int, of: str) -> str:
    ships[number] += 1
    if number in stuck:
        await release.wait()
    if number % 5 == 0 and not release.is_set():
        raise ValueError("the carrier is closed")
    return f"{of}-shipped"


@workflow(name="control.order")
async def order(ctx: Context, number: int) -> str:
    attempts.append(ctx.run.attempt)
    return await ctx.step(ship, number, await ctx.step(charge, number))


@pytest.mark.parametrize("by", ["client", "worker"])
async def test_what_failed_is_redriven_from_the_step_that_failed(rig: Rig, by: str) -> None:
    """The letters of this backfill alone, each from the journal in it; what fails again is a letter of the redrive."""
    output = f"{rig.topic}-out"
    await rig.create(output)
    await rig.produce(Message(b"k%d" % (n % 3), b"%d" % n) for n in range(20))
    binding = rig.binding(order, output=output)
    for counts in (charges, ships):
        counts.clear()
    attempts.clear()
    kafka = KafkaOptions(bootstrap_servers=rig.kafka, **OPTIONS)
    alone = KafkaWorker([binding], store=rig.store(), kafka=kafka)  # type: ignore[arg-type]
    async with client_of(rig) as client, asyncio.timeout(90):
        for name in ("other", "b"):
            report = await alone.backfill(Backfill(binding, id=name))
            assert (report.status, report.completed, report.failed) == ("completed", 16, 4)
        assert len(await rig.read(rig.letters)) == 8
        charged = charges.copy()
        # the carrier is still closed for some: they fail again
        again = await alone.backfill(Backfill.redrive(report, [binding]))
        assert (again.id, again.read, again.matched, again.completed, again.failed) == ("b.redrive", 8, 4, 0, 4)
        assert charges == charged
        release.set()
        ships.clear()
        attempts.clear()
        if by == "worker":
            done = await alone.backfill(Backfill.redrive(again, [binding], id="second"))
        else:
            with pytest.raises(BackfillNotFoundError):
                await client.backfills.redrive("unknown")
            async with rig.running(binding):
                await client.backfills.redrive("b.redrive", new_id="second")
                done = await until_status(rig, client, "second", "completed")
        assert (done.failed_of, done.matched, done.completed, done.failed) == ("b.redrive", 4, 4, 0)
    results = Counter(
        one.value for one in await rig.read(output) if dict(one.headers).get("pyrula-backfill") == b"second"
    )
    assert results == Counter(b'"charge-%d-shipped"' % n for n in (0, 5, 10, 15))
    if by == "worker":
        assert charges == charged
        assert ships == Counter([0, 5, 10, 15])
        assert attempts == [1] * 4


async def test_a_redrive_is_refused_while_the_backfill_runs(rig: Rig) -> None:
    await rig.create()
    async with client_of(rig) as client:
        await client.backfills.start(order, rig.topic, backfill_id="b")
        with pytest.raises(BackfillRefused, match="backfill b is requested; when it is over, what failed"):
            await client.backfills.redrive("b")


async def test_a_redrive_that_is_interrupted_goes_on_from_its_own_journals(rig: Rig) -> None:
    await rig.create()
    await rig.produce(b"%d" % n for n in range(20))
    binding = rig.binding(order, max_concurrency=1)
    charges.clear()
    kafka = KafkaOptions(bootstrap_servers=rig.kafka, **{**OPTIONS, "drain_timeout": 0.1})
    alone = KafkaWorker([binding], store=rig.store(), kafka=kafka)  # type: ignore[arg-type]
    async with asyncio.timeout(90):
        report = await alone.backfill(Backfill(binding, id="b"))
        charged = charges.copy()
        ships.clear()
        stuck.add(10)
        for round_ in (1, 2):
            task = asyncio.create_task(alone.backfill(Backfill.redrive(report, [binding])))
            await rig.until(lambda round_=round_: ships[10] == round_, "a letter to be at its second step")
            task.cancel()
            await asyncio.wait([task])
        release.set()
        done = await alone.backfill(Backfill.redrive(report, [binding]))
    assert (done.status, done.matched, done.completed + done.failed) == ("completed", 4, 4)
    assert charges == charged


@workflow(name="control.sleeping")
async def sleeping(ctx: Context) -> None:
    assert ctx.record is not None
    if ctx.record.offset % 2:
        await ctx.sleep(3.0)
    runs.append((ctx.run.id, ctx.record.partition, ctx.record.offset))


async def test_runs_that_wait_are_waited_for(rig: Rig) -> None:
    """They hold no slot, and aren't left to the store: nobody would go on with them when the backfill is over."""
    await rig.create()
    await rig.produce(records(20))
    async with rig.running(rig.binding(note)):
        await rig.until_drained()
        runs.clear()
        kafka = KafkaOptions(bootstrap_servers=rig.kafka, **OPTIONS)
        worker = KafkaWorker([rig.binding(sleeping)], store=rig.store(), kafka=kafka)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            report = await worker.backfill(Backfill(rig.binding(sleeping), max_concurrency=2))
    assert report.completed == 20
    assert sorted(offset for _, _, offset in runs) == list(range(20))
