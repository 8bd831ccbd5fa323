"""The worker against a store that fails, delays and takes away."""

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyrula.workflows import (
    Collect,
    ConfigurationError,
    Context,
    DurableInvocationError,
    LeaseLost,
    ManualClock,
    MemoryStore,
    StoreUnavailable,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    step,
    workflow,
)
from pyrula.workflows.store.messages import Change, Message
from pyrula.workflows.store.runs import Claims, End, Finished, Lease
from pyrula.workflows.worker.held import HeldRun
from pyrula.workflows.worker.served import Served
from tests.services.waiting import wait_until_async

calls: dict[str, int] = {}
going: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    going.clear()


@step
async def work(name: str) -> str:
    calls[name] = calls.get(name, 0) + 1
    if name in going:
        await going[name].wait()
    return name


@workflow(name="wk_two")
async def two(ctx: Context, name: str) -> list[str]:
    return [await ctx.step(work, name), await ctx.step(work, f"{name}2")]


@workflow(name="wk_wait")
async def wait(ctx: Context) -> Any:
    return await ctx.wait_for_signal("go")


@workflow(name="wk_chain")
async def chain(ctx: Context, left: int) -> int:
    await ctx.step(work, f"link {left}")
    if left:
        await ctx.continue_as_new({"left": left - 1})
    return left


@asynccontextmanager
async def working(store: MemoryStore, *workflows: Any, **options: Any) -> AsyncIterator[WorkflowWorker]:
    settings = {"claim_poll_interval": 0.02, "drain_timeout": 0.2} | options
    worker = WorkflowWorker(workflows, store=store, options=WorkerOptions(**settings))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


class Outage:
    """Makes calls of a store fail while it is on."""

    def __init__(self, store: MemoryStore, *verbs: str) -> None:
        self.on = False
        self.refused = 0
        for verb in verbs:
            setattr(store, verb, self._broken(getattr(store, verb)))

    def _broken(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def broken(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                self.refused += 1
                raise StoreUnavailable("the wire is cut")
            return await call(*args, **kwargs)

        return broken


EVERYTHING = ("claim", "append", "park", "finish", "heartbeat", "beats", "questions", "unread", "release", "leave")


async def test_an_outage_is_ridden_out() -> None:
    store = MemoryStore()
    client = WorkflowClient(store.twin(), poll_interval=0.02)
    outage = Outage(store, *EVERYTHING)
    going["a"] = asyncio.Event()
    async with working(store, two):
        run = await client.submit(two, {"name": "a"})
        await wait_until_async(lambda: calls.get("a"), description="the first step")
        outage.on = True
        going["a"].set()
        await wait_until_async(lambda: outage.refused > 5, description="refusals")
        assert "a2" not in calls
        other = await client.submit(two, {"name": "b"})
        outage.on = False
        assert await run.result(timeout=180) == ["a", "a2"]
        assert await other.result(timeout=180) == ["b", "b2"]
    assert calls == {"a": 1, "a2": 1, "b": 1, "b2": 1}


async def test_bodies_are_cut_uncharged_when_the_store_is_out_of_reach_for_too_long() -> None:
    store = MemoryStore()
    client = WorkflowClient(store.twin(), poll_interval=0.02)
    outage = Outage(store, *EVERYTHING)
    going["a"] = asyncio.Event()
    async with working(store, two, lease_seconds=1, heartbeat_interval=0.05) as worker:
        run = await client.submit(two, {"name": "a"})
        await wait_until_async(lambda: calls.get("a"), description="the first step")
        outage.on = True
        cut = worker._lives.held[run.run_id].execution
        assert cut is not None
        await wait_until_async(lambda: cut.stopped == "cut", description="the body to be cut")
        going["a"].set()
        outage.on = False
        assert await run.result(timeout=180) == ["a", "a2"]
        assert (await run.detail()).deaths == 0
    assert calls == {"a": 2, "a2": 1}


async def test_a_worker_that_was_frozen_while_it_claimed_starts_nothing_that_others_have() -> None:
    """Its lease was over before it read the answer, so it asks first."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    claim, unread = store.claim, store.unread
    asked: list[str] = []
    others = store.twin()

    async def slow(worker: str, pairs: Any, room: int) -> Claims:
        claims = await claim(worker, pairs, room)
        if claims.runs and not asked:
            clock.advance(100)
            (beat,) = [beat for beat in await others.beats() if beat.worker == worker]
            assert await others.reap(beat) == 2
            taken = await others.claim("another", pairs, 1)
            assert len(taken.runs) == 1
            asked.append(taken.runs[0].lease.run_id)
        return claims

    async def noted(lease: Lease, seen: int) -> Any:
        asked.append(lease.run_id)
        return await unread(lease, seen)

    store.claim, store.unread = slow, noted  # type: ignore[method-assign]
    client = WorkflowClient(store.twin(), poll_interval=0.02)
    runs = [await client.submit(two, {"name": name}) for name in ("f1", "f2")]
    options = WorkerOptions(claim_poll_interval=0.02, heartbeat_interval=0.1)
    worker = WorkflowWorker(two, store=store, options=options, clock=clock)
    running = asyncio.create_task(worker.run())
    try:
        await wait_until_async(lambda: len(asked) == 3, description="it to have asked")
        others_run = next(run for run in runs if run.run_id == asked[0])
        await wait_until_async(lambda: len(calls) == 2, description="the run that nobody has to be executed")
        assert await others_run.status() == "running"
    finally:
        worker.stop()
        await running
    assert not {name for name in calls if name.startswith(("f1", "f2")[runs.index(others_run)])}


@pytest.mark.parametrize("draining", [False, True])
async def test_a_worker_that_was_frozen_while_a_run_continued_starts_no_link_that_others_have(
    caplog: pytest.LogCaptureFixture, draining: bool
) -> None:
    """What ends a link claims the next one, for this worker: its lease may be over before the answer is read."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    claim, finish, unread = store.claim, store.finish, store.unread
    others = store.twin()
    begun = clock.monotonic()
    taken: list[str] = []
    refused: list[str] = []

    async def free(worker: str, pairs: Any, room: int) -> Claims:
        # a frozen process doesn't claim either
        return await claim(worker, pairs, 0 if clock.monotonic() > begun else room)

    async def slow(lease: Lease, change: Change, end: End) -> Finished:
        finished = await finish(lease, change, end)
        if finished.next is not None:
            clock.advance(100)
            (beat,) = [beat for beat in await others.beats() if beat.worker == lease.worker]
            assert await others.reap(beat) == 1
            claims = await others.claim("another", [("wk_chain", "1")], 1)
            taken.extend(run.lease.run_id for run in claims.runs)
            if draining:
                worker.stop()
                await wait_until_async(lambda: worker._lives.draining, description="the worker to drain")
        return finished

    async def asked(lease: Lease, seen: int) -> Any:
        try:
            return await unread(lease, seen)
        except LeaseLost:
            refused.append(lease.run_id)
            raise

    store.claim, store.finish, store.unread = free, slow, asked  # type: ignore[method-assign]
    client = WorkflowClient(store.twin(), poll_interval=0.02)
    run = await client.submit(chain, {"left": 1})
    worker = WorkflowWorker(chain, store=store, options=WorkerOptions(claim_poll_interval=0.02), clock=clock)
    running = asyncio.create_task(worker.run())
    try:
        await wait_until_async(
            lambda: taken and (running.done() if draining else worker.stats().lost),
            description="the next link to be dropped",
        )
        assert await run.status() == "running"
    finally:
        worker.stop()
        await running
    assert taken == [f"{run.run_id}~2"]
    assert draining or refused == taken
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert calls == {"link 1": 1}


async def test_a_store_that_is_away_at_the_start_is_waited_for() -> None:
    store = MemoryStore()
    outage = Outage(store, "open")
    outage.on = True
    client = WorkflowClient(store.twin())
    run = await client.submit(two, {"name": "a"})
    async with working(store, two):
        await wait_until_async(lambda: outage.refused, description="a refusal")
        outage.on = False
        assert await run.result(timeout=180) == ["a", "a2"]


async def test_stop_ends_a_worker_that_has_never_reached_its_store() -> None:
    store = MemoryStore()
    Outage(store, "open").on = True
    async with working(store, two):
        await asyncio.sleep(0)


async def test_stop_before_run() -> None:
    worker = WorkflowWorker([two], store=MemoryStore())
    worker.stop()
    await worker.run()
    with pytest.raises(RuntimeError, match="once"):
        await worker.run()


async def test_an_error_of_configuration_ends_the_worker() -> None:
    store = MemoryStore()

    async def claim(*args: Any) -> Any:
        raise ConfigurationError("WRONGPASS")

    store.claim = claim  # type: ignore[assignment, method-assign]
    worker = WorkflowWorker([two], store=store)
    with pytest.raises(ConfigurationError, match="WRONGPASS"):
        await worker.run()


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_message_that_comes_while_the_run_is_parked_is_not_lost(moment: str) -> None:
    store = MemoryStore()
    sender = store.twin()
    park = store.park
    parks = 0

    async def slow(lease: Any, change: Any, waits: Any) -> Any:
        nonlocal parks
        parks += 1
        if parks == 1 and moment == "before":
            await sender.deliver(lease.run_id, Message("signal", "s1", "go", b'"early"'))
            for _ in range(20):  # so that a wake-up is seen to while the park is under way
                await asyncio.sleep(0)
        reply = await park(lease, change, waits)
        if parks == 1 and moment == "during":
            await sender.deliver(lease.run_id, Message("signal", "s1", "go", b'"early"'))
            for _ in range(20):
                await asyncio.sleep(0)
        return reply

    store.park = slow  # type: ignore[method-assign]
    client = WorkflowClient(sender, poll_interval=0.02)
    async with working(store, wait):
        run = await client.submit(wait)
        assert await run.result(timeout=180) == "early"
    assert parks == 1


async def test_a_message_that_comes_just_before_the_run_is_parked_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    sender = store.twin()
    quiet = HeldRun._quiet
    parks = 0

    async def with_news(held: HeldRun) -> None:
        nonlocal parks
        parks += 1
        await quiet(held)
        if parks == 1:
            await sender.deliver(held.lease.run_id, Message("signal", "s1", "go", b'"early"'))
            held.receive(await store.unread(held.lease, 0))

    monkeypatch.setattr(HeldRun, "_quiet", with_news)
    client = WorkflowClient(sender, poll_interval=0.02)
    async with working(store, wait):
        run = await client.submit(wait)
        assert await run.result(timeout=180) == "early"


async def test_a_lost_park_reply_is_asked_for_again() -> None:
    store = MemoryStore()
    park = store.park
    lost = 0

    async def forgetful(lease: Any, change: Any, waits: Any) -> Any:
        nonlocal lost
        reply = await park(lease, change, waits)
        if lost < 2:
            lost += 1
            raise StoreUnavailable("the answer was lost")
        return reply

    store.park = forgetful  # type: ignore[method-assign]
    client = WorkflowClient(store.twin(), poll_interval=0.02)
    async with working(store, wait) as worker:
        run = await client.submit(wait)
        await wait_until_async(lambda: lost == 2 and not worker.held, description="the run to be parked")
        await run.signal("go", 1)
        assert await run.result(timeout=180) == 1


async def test_a_run_whose_workers_died_runs_alone_and_then_fails() -> None:
    store = MemoryStore()
    client = WorkflowClient(store, poll_interval=0.02)
    run = await client.submit(two, {"name": "a"})
    for number in range(3):
        await _die_with(store, f"dead{number}")
    other = await client.submit(two, {"name": "b"})
    going["a"], going["b"] = asyncio.Event(), asyncio.Event()
    async with working(store.twin(), two):
        await wait_until_async(lambda: calls.get("a") or calls.get("b"), description="one of them")
        await asyncio.sleep(0.1)
        assert len(calls) == 1
        going["b"].set()
        going["a"].set()
        assert await other.result(timeout=180) == ["b", "b2"]
        assert await run.result(timeout=180) == ["a", "a2"]


async def test_a_run_that_killed_its_worker_alone_is_failed() -> None:
    store = MemoryStore()
    client = WorkflowClient(store, poll_interval=0.02)
    run = await client.submit(two, {"name": "a"})
    for number in range(3):
        await _die_with(store, f"dead{number}")
    await _die_with(store, "dead3", alone=True)
    async with working(store.twin(), two):
        with pytest.raises(DurableInvocationError, match="worker died"):
            await run.result(timeout=180)
    assert not calls


async def _die_with(store: MemoryStore, worker: str, *, alone: bool = False) -> None:
    (claimed,) = (await store.claim(worker, [("wk_two", "1")], 1)).runs
    if alone:
        await store.append(claimed.lease, Change(1, alone=True))
    (beat,) = [beat for beat in await store.beats() if beat.worker == worker]
    assert await store.reap(beat) == 1


async def test_a_body_that_does_not_fit_its_journal_is_paused_and_goes_on_after_a_deploy() -> None:
    store = MemoryStore()
    client = WorkflowClient(store.twin(), poll_interval=0.02)

    @workflow(name="wk_change")
    async def before(ctx: Context) -> Any:
        await ctx.step(work, "one")
        return await ctx.wait_for_signal("go")

    async with working(store, before):
        run = await client.submit(before)
        await wait_until_async(lambda: _is(run, "signal_waiting"), description="the run to wait")

    @workflow(name="wk_change")
    async def after(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    async with working(store, after):
        await run.signal("go", 1)
        await wait_until_async(lambda: _is(run, "paused"), description="the run to be paused")
    error = (await run.detail()).error
    assert error is not None
    assert error.type.endswith("NonDeterminismError")
    async with working(store, before):
        await run.unpause()
        assert await run.result(timeout=180) == 1
    assert calls == {"one": 1}


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


def test_options() -> None:
    assert WorkerOptions().heartbeat_interval == 5.0
    assert WorkerOptions(lease_seconds=3).heartbeat_interval == 0.5
    assert (WorkerOptions().patience, WorkerOptions(lease_seconds=3).patience) == (25.0, 2.0)
    with pytest.raises(ConfigurationError, match="no such option"):
        WorkerOptions(poll=1)
    with pytest.raises(ConfigurationError, match="third"):
        WorkerOptions(lease_seconds=10, heartbeat_interval=9)
    with pytest.raises(ConfigurationError, match="max_concurrency"):
        WorkerOptions(max_concurrency=0)


async def test_one_workflow_needs_no_list() -> None:
    worker = WorkflowWorker(two, store=MemoryStore())
    running = asyncio.create_task(worker.run())
    run = await worker.client.submit(two, {"name": "alone"})
    assert len(await run.result(timeout=180)) == 2
    worker.stop()
    await running


def test_a_workers_identity_is_new_each_time() -> None:
    ids = {WorkflowWorker([two], store=MemoryStore()).id for _ in range(10)}
    assert len(ids) == 10
    with pytest.raises(ConfigurationError, match="at least one"):
        WorkflowWorker([], store=MemoryStore())
    with pytest.raises(ConfigurationError, match="declared by @workflow"):
        Served([print])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match=r"declared by @workflow: workflows=\[charge\], not <built-in"):
        WorkflowWorker(print, store=MemoryStore())  # type: ignore[arg-type]


def test_of_several_versions_the_last_takes_unstamped_runs() -> None:
    def made(version: str) -> Any:
        @workflow(name="wk_versions", version=version)
        async def body(ctx: Context) -> None:
            return None

        return body

    one, later = made("1"), made("2")
    served = Served([later, one])
    assert served.find("wk_versions", None) == one
    assert served.find("wk_versions", "2") == later
    assert served.find("wk_versions", "3") is None
    again: Any = made("1")
    with pytest.raises(ConfigurationError, match="served twice"):
        Served([one, again])


_PROGRAM = """
import asyncio
import logging
from pyrula.workflows import MemoryStore, WorkerOptions, WorkflowWorker, step, workflow

@step
async def work():
    print("working", flush=True)
    await asyncio.sleep(0.3)
    print("done", flush=True)

@workflow(name="wk_drained")
async def drained(ctx):
    await ctx.step(work)

async def main():
    worker = WorkflowWorker([drained], store=MemoryStore(), options=WorkerOptions(claim_poll_interval=0.05))
    await worker.client.submit(drained)
    await worker.run()
    print("ended", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        rest = process.stdout.read()
        assert (process.wait(timeout=60), rest) == (0, "done\nended\n")


def test_a_trigger_that_gives_the_body_less_than_it_needs_is_told_when_the_worker_is_made() -> None:
    @workflow(name="wk_batch", trigger=Collect("user", 3, 1))
    async def batch(ctx: Context, events: list[Any], user: str, note: str = "") -> None:
        return None

    @workflow(name="wk_batch_of_less", trigger=Collect("user", 3, 1))
    async def of_less(ctx: Context, count: int, note: str = "") -> None:
        return None

    with pytest.raises(ConfigurationError, match=r"'wk_batch': its trigger= .* so nobody gives user: "):
        WorkflowWorker([batch], store=MemoryStore())
    WorkflowWorker([of_less], store=MemoryStore())
