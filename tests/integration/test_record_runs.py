"""The runs of records, reached by their ids: what is sent to them, what can be told of them, and what they hold up."""

import asyncio
from typing import Any

import pytest

from pyrula.kafka import KafkaOptions, KafkaWorker
from pyrula.workflows import (
    Context,
    DurableInvocationCancelled,
    DurableInvocationError,
    MemoryStore,
    QueryError,
    RunFinishedError,
    RunNotFoundError,
    UpdateRejected,
    ValkeyStore,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    step,
    workflow,
)
from pyrula.workflows.client.handle import RunHandle
from tests.integration.rig import OPTIONS, Rig
from tests.services.topics import Message

executed: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    executed.clear()
    gates.clear()


@step
async def note(text: str) -> str:
    executed.append(text)
    return text


@workflow(name="records.paid")
async def wait_for_payment(ctx: Context, order: str) -> str:
    await ctx.step(note, f"reserve {order}")
    by = await ctx.wait_for_signal("paid")
    await ctx.step(note, f"ship {order} to {by}")
    return f"{order} paid by {by}"


@workflow(name="records.cart")
async def fill_cart(ctx: Context, order: str) -> list[str]:
    items: list[str] = []

    def add(sku: str) -> int:
        items.append(sku)
        executed.append(f"add {sku}")
        return len(items)

    def check(sku: str) -> None:
        if not sku:
            raise ValueError("which?")

    ctx.on_update("add", add, validator=check)
    ctx.on_query("items", lambda: items)
    await ctx.wait_for_signal("checkout")
    return items


@workflow(name="records.approval")
async def ask_somebody(ctx: Context, order: str) -> Any:
    answer = await ctx.interrupt({"approve": order})
    return [answer.action, answer.value]


@workflow(name="records.slow")
async def take_long(ctx: Context, order: str) -> str:
    executed.append(f"began {order}")
    try:
        for number in range(1000):
            await gates[order].wait()
            await ctx.step(note, f"{order} {number}")
            await ctx.sleep(0.02)
    finally:
        await ctx.step(note, f"{order} cleaned up")
    return order


@workflow(name="records.sleep")
async def sleep_long(ctx: Context, order: str) -> str:
    await ctx.sleep(3600)
    return order


@workflow(name="records.nap")
async def nap(ctx: Context, order: str) -> str:
    await ctx.sleep(1.5)
    executed.append(order)
    return order


@workflow(name="records.fails")
async def fail(ctx: Context, order: str) -> str:
    await ctx.step(note, order)
    raise ValueError(f"no {order}")


@workflow(name="records.tells")
async def tell_what_is_done(ctx: Context, order: str) -> str:
    done: list[str] = []
    ctx.on_query("done", lambda: done)
    done.append(await ctx.step(note, f"{order} 1"))
    if order == "waits":
        await ctx.wait_for_signal("never")
    done.append(await ctx.step(note, f"{order} 2"))
    if order == "fails":
        raise ValueError(f"no {order}")
    return order


@workflow(name="records.plain")
async def plain(ctx: Context, order: str) -> str:
    executed.append(order)
    return order


@workflow(name="records.again")
async def continue_again(ctx: Context, order: str) -> None:
    await ctx.continue_as_new({"order": order})


@workflow(name="records.child")
async def child(ctx: Context, name: str) -> str:
    return f"child {name}"


@workflow(name="records.waiting_child")
async def waiting_child(ctx: Context, name: str) -> str:
    await ctx.wait_for_signal("never")
    return name


@workflow(name="records.parent")
async def parent(ctx: Context, order: str) -> str:
    started = await ctx.start_child(waiting_child, {"name": order})
    executed.append(started.run_id)
    return str(await ctx.run_child(child, {"name": order}))


async def reaches(rig: Rig, run: RunHandle[Any], status: str) -> None:
    async def there() -> bool:
        return await run.status() == status

    await rig.until(there, f"{run} to be {status}")


async def types(run: RunHandle[Any]) -> list[str]:
    return [event.type for event in await run.events()]


async def test_a_signal_that_comes_before_its_record_is_kept(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    binding = rig.binding(wait_for_payment)
    async with rig.running(binding):

        async def reachable() -> RunHandle[Any] | None:
            try:
                return await client.record_run(binding, 0, 0)
            except RunNotFoundError:
                return None

        run = await rig.until(reachable, "the partition to be registered")
        await run.signal("paid", "ada")
        assert await run.status() == "queued"
        await rig.produce([b"o1"])
        assert await run.result(timeout=180) == "o1 paid by ada"
        await rig.until_committed(1)
    assert executed == ["reserve o1", "ship o1 to ada"]
    assert await run.status() == "completed"


async def first_run(rig: Rig, client: WorkflowClient, binding: Any, offset: int = 0) -> RunHandle[Any]:
    async def reachable() -> RunHandle[Any] | None:
        try:
            return await client.record_run(binding, 0, offset)
        except RunNotFoundError:
            return None

    run: RunHandle[Any] = await rig.until(reachable, "the partition to be registered")
    return run


async def test_a_signal_reaches_one_that_waits(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(wait_for_payment)
    async with rig.running(binding) as running:
        run = await first_run(rig, client, binding)
        await reaches(rig, run, "signal_waiting")
        detail = await run.detail()
        assert [wait.name for wait in detail.waits] == ["paid"]
        assert detail.metadata == {"cluster": "default", "group": rig.group, "topic": rig.topic, "partition": 0}
        assert await rig.offset() == 0
        await run.signal("paid", "bob", signal_id="s1")
        await run.signal("paid", "bob", signal_id="s1")
        assert await run.result(timeout=180) == "o1 paid by bob"
        assert [event.kind for event in running.events] == ["completed"]
    assert executed == ["reserve o1", "ship o1 to bob"]
    assert "waiting" in await types(run)
    assert (await types(run))[-1] == "completed"
    with pytest.raises(RunFinishedError):
        await run.signal("paid", "late")


async def test_updates_and_queries_of_a_record(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(fill_cart)
    async with rig.running(binding):
        run = await first_run(rig, client, binding)
        assert await run.update("add", {"sku": "A"}, update_id="u1") == 1
        assert await run.update("add", {"sku": "A"}, update_id="u1") == 1
        with pytest.raises(UpdateRejected):
            await run.update("add", {"sku": ""})
        assert await run.update("add", {"sku": "B"}) == 2
        assert await run.query("items") == ["A", "B"]
        with pytest.raises(QueryError, match="nothing"):
            await run.query("nothing")
        await run.signal("checkout")
        assert await run.result(timeout=180) == ["A", "B"]
        assert await run.update("add", {"sku": "A"}, update_id="u1") == 1
    assert executed == ["add A", "add B"]


async def test_updates_hold_across_workers(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(fill_cart)
    async with rig.running(binding):
        run = await first_run(rig, client, binding)
        assert await run.update("add", {"sku": "A"}, update_id="u1") == 1
    assert await run.status() == "signal_waiting"
    await run.signal("checkout")
    async with rig.running(binding):
        assert await run.result(timeout=180) == ["A"]
        assert await run.update("add", {"sku": "A"}, update_id="u1") == 1
        await rig.until_committed(1)


async def test_an_interrupt_is_answered(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(ask_somebody)
    async with rig.running(binding):
        run = await first_run(rig, client, binding)
        await reaches(rig, run, "interrupt_waiting")
    assert [each.payload for each in (await run.detail()).interrupts] == [{"approve": "o1"}]
    async with rig.running(binding):
        await run.resume("yes", 7)
        assert await run.result(timeout=180) == ["yes", 7]


async def test_waiting_records_take_no_slots(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([f"o{number}".encode() for number in range(8)])
    binding = rig.binding(wait_for_payment, max_concurrency=2)
    async with rig.running(binding) as running:
        runs = [await first_run(rig, client, binding, offset) for offset in range(8)]
        for run in runs:
            await reaches(rig, run, "signal_waiting")
        assert running.worker.stats()[0].in_flight == 0
        for number, run in enumerate(reversed(runs)):
            await run.signal("paid", str(number))
        await rig.until_committed(8)
        assert len(running.told("completed")) == 8
        assert running.worker.stats()[0].in_flight == 0


async def test_a_lane_waits_for_a_record_that_waits(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"o1"), Message(b"a", b"o2"), Message(b"b", b"o3")])
    binding = rig.binding(wait_for_payment)
    async with rig.running(binding):
        first, second, other = [await first_run(rig, client, binding, offset) for offset in range(3)]
        await reaches(rig, first, "signal_waiting")
        await reaches(rig, other, "signal_waiting")
        assert await second.status() == "queued"
        assert await second.events() == []
        await second.signal("paid", "second")
        await first.signal("paid", "first")
        assert await second.result(timeout=180) == "o2 paid by second"
        await other.signal("paid", "other")
        await rig.until_committed(3)
    assert [text for text in executed if "o3" not in text] == [
        "reserve o1", "ship o1 to first", "reserve o2", "ship o2 to second",
    ]  # fmt: skip


async def test_a_queued_record_is_cancelled_at_once(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"o1"), Message(b"a", b"o2")])
    binding = rig.binding(wait_for_payment)
    async with rig.running(binding) as running:
        first, second = [await first_run(rig, client, binding, offset) for offset in range(2)]
        await reaches(rig, first, "signal_waiting")
        assert await second.cancel() == "cancelled"
        with pytest.raises(DurableInvocationCancelled):
            await second.result(timeout=180)
        await first.signal("paid", "ada")
        await rig.until_committed(2)
    assert executed == ["reserve o1", "ship o1 to ada"]
    assert await types(second) == ["cancel_requested", "cancelled"]
    assert await rig.read(rig.letters) == []
    assert running.told("dead_lettered") == []
    assert [event.offset for event in running.told("cancelled")] == [1]


async def test_a_waiting_record_is_cancelled(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(wait_for_payment)
    async with rig.running(binding) as running:
        run = await first_run(rig, client, binding)
        await reaches(rig, run, "signal_waiting")
        assert await run.cancel() == "cancelled"
        assert await run.cancel() == "cancelled"
        await rig.until_committed(1)
        assert len(running.told("cancelled")) == 1
        assert running.worker.stats()[0].cancelled == 1
    assert await rig.read(rig.letters) == []


async def test_a_running_record_is_cancelled_and_cleans_up(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    gates["o1"] = asyncio.Event()
    gates["o1"].set()
    binding = rig.binding(take_long)
    async with rig.running(binding) as running:
        run = await first_run(rig, client, binding)
        await rig.until(lambda: len(executed) > 3, "the body to be at work")
        assert await run.status() == "running"
        assert await types(run) == ["started"]
        assert await run.cancel() == "cancelled"
        await rig.until_committed(1)
        assert len(running.told("cancelled")) == 1
    assert executed[-1] == "o1 cleaned up"
    assert executed.count("began o1") == 1


async def test_a_record_is_paused_and_goes_on(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    gates["o1"] = asyncio.Event()
    gates["o1"].set()
    binding = rig.binding(take_long)
    async with rig.running(binding) as running:
        run = await first_run(rig, client, binding)
        await rig.until(lambda: len(executed) > 3, "the body to be at work")
        assert await run.pause("lunch") == "paused"
        assert (await run.detail()).error.message == "lunch"  # type: ignore[union-attr]
        at = len(executed)
        await asyncio.sleep(0.2)
        assert len(executed) == at
        assert running.worker.stats()[0].in_flight == 0
        await run.unpause()
        await rig.until(lambda: len(executed) > at + 3, "the body to go on")
        assert await run.cancel() == "cancelled"
        await rig.until_committed(1)
    assert len(set(executed)) == len(executed) - executed.count("began o1") + 1
    assert executed.count("began o1") == 2


async def test_a_paused_record_that_is_cancelled_cleans_up(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    gates["o1"] = asyncio.Event()
    gates["o1"].set()
    binding = rig.binding(take_long)
    async with rig.running(binding):
        run = await first_run(rig, client, binding)
        await rig.until(lambda: len(executed) > 3, "the body to be at work")
        assert await run.pause() == "paused"
        at = len(executed)
        assert await run.cancel() == "cancelled"
        await rig.until_committed(1)
    # what it stood at when it was paused may have been executed
    assert [text for text in executed[at:] if not text.startswith("o1 ") or "cleaned" in text] == [
        "began o1", "o1 cleaned up",
    ]  # fmt: skip


async def test_a_worker_without_a_server_is_talked_to(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    store, binding = MemoryStore(), rig.binding(fill_cart)
    worker = KafkaWorker(binding, store=store, kafka=KafkaOptions(bootstrap_servers=rig.kafka, **OPTIONS))
    working = asyncio.create_task(worker.run())
    client = WorkflowClient(store, poll_interval=0.1)
    try:
        run = await first_run(rig, client, binding)
        assert await run.update("add", {"sku": "A"}) == 1
        assert await run.query("items") == ["A"]
        await run.signal("checkout")
        assert await run.result(timeout=180) == ["A"]
    finally:
        worker.stop()
        await working


async def test_a_pause_outlives_its_worker(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    gates["o1"] = asyncio.Event()
    gates["o1"].set()
    binding = rig.binding(take_long)
    async with rig.running(binding):
        run = await first_run(rig, client, binding)
        await rig.until(lambda: len(executed) > 3, "the body to be at work")
        assert await run.pause("lunch") == "paused"
    at = len(executed)
    async with rig.running(binding) as running:
        await rig.until(lambda: executed.count("began o1") == 2 and running.told("paused"), "it to be replayed")
        assert await run.status() == "paused"
        # what it stood at when it was paused may have been executed
        assert len(executed) <= at + 2
        assert await run.cancel() == "cancelled"
        await rig.until_committed(1)


async def test_a_long_sleep_holds_no_slot(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1", b"o2"])
    binding = rig.binding(sleep_long, max_concurrency=1)
    async with rig.running(binding):
        for offset in range(2):
            run = await first_run(rig, client, binding, offset)
            await reaches(rig, run, "sleeping")
            assert (await run.detail()).waits[0].deadline is not None
            assert await run.cancel() == "cancelled"
        await rig.until_committed(2)


async def test_a_sleep_ends_by_itself_and_leaves_nothing(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1", b"o2", b"o3"])
    binding = rig.binding(nap, max_concurrency=1)
    async with rig.running(binding):
        await rig.until_committed(3)
        with pytest.raises(RunNotFoundError):
            await (await first_run(rig, client, binding)).status()
    assert sorted(executed) == ["o1", "o2", "o3"]


@pytest.mark.parametrize("keep", ["none", "failed", "all"])
async def test_what_is_kept(rig: Rig, client: WorkflowClient, keep: str) -> None:
    other = f"{rig.topic}-2"
    await rig.create(other)
    await rig.produce([b"o1"])
    await asyncio.to_thread(rig.topics.produce, other, [Message(None, b"o2")])
    failing = rig.binding(fail, keep=keep)
    passing = rig.binding(plain, topic=other, keep=keep, dead_letter_topic=rig.letters)
    async with rig.running(failing, passing):
        await rig.until_committed(1)
        failed = await first_run(rig, client, failing)
        completed = await first_run(rig, client, passing)
        await rig.until(lambda: "o2" in executed, "the other record")
        if keep == "none":
            with pytest.raises(RunNotFoundError):
                await failed.status()
        else:
            with pytest.raises(DurableInvocationError, match="no o1"):
                await failed.result(timeout=180)
            assert (await failed.detail()).error.type == "ValueError"  # type: ignore[union-attr]
        if keep == "all":
            assert await completed.result(timeout=180) == "o2"
        else:

            async def gone() -> bool:
                try:
                    await completed.status()
                except RunNotFoundError:
                    return True
                return False

            await rig.until(gone, "the completed run to be forgotten")
    assert len(await rig.read(rig.letters)) == 1


@pytest.mark.parametrize("keep", ["failed", "all"])
async def test_an_ended_run_is_asked_where_its_journal_is_kept(rig: Rig, client: WorkflowClient, keep: str) -> None:
    await rig.create()
    await rig.produce([b"fails", b"passes", b"waits"])
    binding = rig.binding(tell_what_is_done, keep=keep)
    async with rig.running(binding):
        failed = await first_run(rig, client, binding)
        passed, waits = [await client.record_run(binding, 0, offset) for offset in (1, 2)]
        await reaches(rig, waits, "signal_waiting")
        assert await waits.query("done") == ["waits 1"]
        assert await waits.cancel() == "cancelled"
        await rig.until_committed(3)
        assert await failed.query("done") == ["fails 1", "fails 2"]
    steps = ["fails 1", "fails 2", "passes 1", "passes 2", "waits 1"]
    async with rig.running(binding):
        # another process, which has read none of them
        assert await failed.query("done") == ["fails 1", "fails 2"]
        with pytest.raises(QueryError, match="nothing"):
            await failed.query("nothing")
        if keep == "all":
            assert await passed.query("done") == ["passes 1", "passes 2"]
            assert await waits.query("done") == ["waits 1"]
            assert (await passed.history()).rows
        else:
            with pytest.raises(RunNotFoundError):
                await passed.query("done")
            with pytest.raises(QueryError, match=r"its journal is not kept: Binding\(keep=\"all\"\)"):
                await waits.query("done")
    assert sorted(executed) == steps


async def test_a_stopped_record_is_retried_by_hand(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(fail, on_failure="stop")
    async with rig.running(binding) as running:
        run = await first_run(rig, client, binding)
        await reaches(rig, run, "paused")
        assert "no o1" in (await run.detail()).error.message  # type: ignore[union-attr]
        assert "no o1" in running.reasons
        await run.retry()
        await rig.until(lambda: len(running.told("stopped")) == 2, "it to fail again")
        await reaches(rig, run, "paused")
        assert await run.cancel() == "cancelled"
        await rig.until_committed(1)
        assert running.reasons == ""
    assert executed == ["o1"]


async def test_continuing_as_new_is_refused_with_the_way_out(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(continue_again)
    async with rig.running(binding):
        await rig.until_committed(1)
        run = await first_run(rig, client, binding)
        with pytest.raises(DurableInvocationError, match="start_child"):
            await run.result(timeout=180)
    assert len(await rig.read(rig.letters)) == 1


async def test_a_record_has_children(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(parent)
    worker = WorkflowWorker(
        workflows=[child, waiting_child],
        store=ValkeyStore(rig.valkey, namespace=rig.namespace),
        options=WorkerOptions(claim_poll_interval=0.1),
    )
    working = asyncio.create_task(worker.run())
    try:
        async with rig.running(binding):
            run = await first_run(rig, client, binding)
            assert await run.result(timeout=180) == "child o1"
            await rig.until_committed(1)
            await reaches(rig, client.handle(waiting_child, executed[0]), "cancelled")
    finally:
        worker.stop()
        await working


async def test_a_record_nobody_talks_to_costs_no_call(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    binding = rig.binding(plain)
    async with rig.running(binding) as running:
        store = running.worker.store
        counted: list[int] = []
        append = store.append_rows

        async def counting(batches: Any) -> Any:
            counted.append(len(batches))
            return await append(batches)

        store.append_rows = counting  # type: ignore[method-assign]
        await rig.produce([b"x"] * 200)
        await rig.until_committed(200)
    assert counted == []


async def test_an_id_that_was_never_a_record_is_not_found(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(plain)
    async with rig.running(binding):
        await rig.until_committed(1)
        for offset in (0, 1, 5_000_000):
            run = await first_run(rig, client, binding, offset)
            with pytest.raises(RunNotFoundError):
                await run.status()
