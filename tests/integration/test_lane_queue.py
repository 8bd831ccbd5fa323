"""Later records of a key that is away are queued in the store: their offsets complete, and the key's order stays."""

import asyncio
from typing import Any

import pytest

from pyrula.kafka.binding import Binding
from pyrula.workflows import Context, RunNotFoundError, ValkeyStore, WorkflowClient, step, workflow
from pyrula.workflows.client.handle import RunHandle
from pyrula.workflows.store.lanes import LaneState, lane_of
from tests.integration.rig import Rig
from tests.services.topics import Committed, Message

executed: list[str] = []


@pytest.fixture(autouse=True)
def fresh(hands_over: None) -> None:
    executed.clear()


@step
async def note(text: str) -> str:
    executed.append(text)
    return text


@workflow(name="queue.order")
async def handle_order(ctx: Context, order: str) -> str:
    await ctx.step(note, f"{order} begins")
    if order.startswith("w"):
        await ctx.wait_for_signal("paid")
    await ctx.step(note, f"{order} ends")
    return order


async def reachable(client: WorkflowClient, rig: Rig, binding: Binding, offset: int) -> RunHandle[Any]:
    async def found() -> RunHandle[Any] | None:
        try:
            return await client.record_run(binding, 0, offset)
        except RunNotFoundError:
            return None

    run: RunHandle[Any] = await rig.until(found, "the partition to be registered")
    return run


async def lane(store: ValkeyStore, rig: Rig, binding: Binding, key: bytes) -> LaneState | None:
    await store.open()
    lanes: dict[bytes, LaneState] = await store.lanes(*binding.place_of(0, rig.topic))
    return lanes.get(lane_of(key))


def records(key: bytes, *values: str) -> list[Message]:
    return [Message(key, value.encode()) for value in values]


def in_order(*values: str) -> list[str]:
    return [f"{value} {what}" for value in values for what in ("begins", "ends")]


async def test_what_waits_behind_is_queued_and_follows(rig: Rig, client: WorkflowClient, store: ValkeyStore) -> None:
    await rig.create()
    await rig.produce([*records(b"a", "w0", "o1", "o2"), *records(b"b", "o3"), *records(b"a", "o4")])
    binding = rig.binding(handle_order)
    async with rig.running(binding) as running:
        await rig.until_committed(5)
        first = await reachable(client, rig, binding, 0)
        queued = [await client.record_run(binding, 0, offset) for offset in (1, 2, 4)]
        assert await first.status() == "signal_waiting"
        assert [await run.status() for run in queued] == ["queued"] * 3
        assert str(await queued[1].explain()).endswith(f": 2nd behind run {first}, for which its lane waits")
        assert sorted(event.offset for event in running.told("handed_over")) == [0, 1, 2, 4]
        found = await lane(store, rig, binding, b"a")
        assert found is not None
        assert (found.floor, found.head, found.queued) == (4, str(first), 3)
        assert [summary.run_id for summary in await client.list(name="queue.order", status="queued")] == [
            str(run) for run in reversed(queued)
        ]
        await rig.produce(records(b"a", "o5"))
        await rig.until_committed(6)
        await first.signal("paid")
        assert await (await client.record_run(binding, 0, 5)).result(timeout=180) == "o5"
        # it is home again: what comes now runs here
        await rig.produce(records(b"a", "o6"))
        await rig.until_committed(7)
        assert [event.offset for event in running.told("completed") if event.key == b"a"] == [0, 1, 2, 4, 5, 6]
        assert 6 not in [event.offset for event in running.told("handed_over")]
    assert [text for text in executed if "o3" not in text] == in_order("w0", "o1", "o2", "o4", "o5", "o6")


async def test_a_queue_outlives_its_worker(rig: Rig, client: WorkflowClient, store: ValkeyStore) -> None:
    await rig.create()
    await rig.produce(records(b"a", "w0", "w1", "o2"))
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(3)
    await rig.produce(records(b"a", "o3"))
    async with rig.running(binding):
        await rig.until_committed(4)
        await (await client.record_run(binding, 0, 0)).signal("paid")
        second = await client.record_run(binding, 0, 1)

        async def waits() -> bool:
            return await second.status() == "signal_waiting"

        await rig.until(waits, "the second to be the head, and to wait")
    await second.signal("paid")
    async with rig.running(binding):
        assert await (await client.record_run(binding, 0, 3)).result(timeout=180) == "o3"
        await rig.produce(records(b"a", "o4"))
        await rig.until_committed(5)

        async def home() -> bool:
            found = await lane(store, rig, binding, b"a")
            return found is None

        await rig.until(home, "the lane to be forgotten, once the commit has passed its floor")
    assert executed == in_order("w0", "w1", "o2", "o3", "o4")


async def test_two_workers_share_the_partitions(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(partitions=2)
    keys = [(b"a", 0), (b"b", 1), (b"c", 0), (b"d", 1)]
    await rig.produce(
        Message(key, f"{what}{number}-{key.decode()}".encode(), partition=partition)
        for number, what in enumerate("wowo")
        for key, partition in keys
    )
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        for partition in (0, 1):
            await rig.until_committed(8, partition)
        async with rig.running(binding) as other:
            await rig.until(lambda: other.worker.stats()[0].partitions == 1, "both to have a partition", 60)
            heads = [await client.record_run(binding, partition, offset) for partition in (0, 1) for offset in (0, 1)]
            for run in heads:
                await run.signal("paid")
            following = [
                await client.record_run(binding, partition, offset) for partition in (0, 1) for offset in (4, 5)
            ]
            for run in following:
                await run.signal("paid")
            last = [await client.record_run(binding, partition, offset) for partition in (0, 1) for offset in (6, 7)]
            for run in last:
                assert str(await run.result(timeout=180)).startswith("o3")
    for key, _ in keys:
        values = [f"{what}{number}-{key.decode()}" for number, what in enumerate("wowo")]
        assert [text for text in executed if f"-{key.decode()} " in text] == in_order(*values)


async def test_what_has_no_room_waits_in_the_worker(rig: Rig, client: WorkflowClient, store: ValkeyStore) -> None:
    await rig.create()
    await rig.produce([*records(b"a", "w0", "o1", "o2", "o3"), *records(b"b", "w4", "o5", "o6")])
    binding = rig.binding(handle_order)
    async with rig.running(binding, lane_queue_records=2) as running:
        await rig.until_committed(3)
        await rig.until(lambda: len(running.told("handed_over")) == 6, "both lanes to be full")
        await rig.produce(records(b"c", "o7"))
        await rig.until(lambda: "o7 ends" in executed, "other keys to go on")
        assert await rig.offset() == 3
        queued = await client.record_run(binding, 0, 1)
        assert await queued.cancel() == "cancelled"
        await rig.until_committed(8)  # there is room for it now
        await (await client.record_run(binding, 0, 0)).signal("paid")
        await (await client.record_run(binding, 0, 4)).signal("paid")
        assert await (await client.record_run(binding, 0, 3)).result(timeout=180) == "o3"
        assert await (await client.record_run(binding, 0, 6)).result(timeout=180) == "o6"
    assert [text for text in executed if text[1] in "0123"] == in_order("w0", "o2", "o3")


async def test_no_queue_if_none_is_wanted(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce(records(b"a", "w0", "o1"))
    binding = rig.binding(handle_order)
    async with rig.running(binding, lane_queue_records=0):
        await rig.until_committed(1)
        await asyncio.sleep(1.5)
        assert await rig.offset() == 1
        await (await client.record_run(binding, 0, 0)).signal("paid")
        await rig.until_committed(2)
    assert executed == in_order("w0", "o1")


async def test_what_waits_in_the_worker_is_cancelled_at_once(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce(records(b"a", "w0", "o1", "o2", "o3"))
    binding = rig.binding(handle_order)
    async with rig.running(binding, lane_queue_records=0) as running:
        await rig.until(lambda: running.told("handed_over"), "the first to be handed over")
        for offset in (1, 2):
            assert await (await client.record_run(binding, 0, offset)).cancel(timeout=30) == "cancelled"
        await (await client.record_run(binding, 0, 0)).signal("paid")
        await rig.until_committed(4)
    assert executed == in_order("w0", "o3")


async def test_nothing_is_queued_where_nothing_is_handed_over_any_more(
    rig: Rig, client: WorkflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create()
    await rig.produce(records(b"a", "w0"))
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(1)
    await rig.produce(records(b"a", "o1"))
    monkeypatch.setattr(ValkeyStore, "hands_over", False)
    async with rig.running(binding):
        await asyncio.sleep(1.5)
        assert await rig.offset() == 1
        await (await client.record_run(binding, 0, 0)).signal("paid")
        await rig.until_committed(2)
    assert executed == in_order("w0", "o1")


async def test_the_one_lane_of_a_partition_has_no_queue(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([*records(b"a", "w0"), *records(b"b", "o1")])
    binding = rig.binding(handle_order, ordering="partition")
    async with rig.running(binding):
        await rig.until_committed(1)
        await asyncio.sleep(1.5)
        assert await rig.offset() == 1
        await (await client.record_run(binding, 0, 0)).signal("paid")
        await rig.until_committed(2)
    assert executed == in_order("w0", "o1")


async def test_a_queued_one_is_cancelled_and_never_begins(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce(records(b"a", "w0", "o1", "o2"))
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(3)
        assert await (await client.record_run(binding, 0, 1)).cancel() == "cancelled"
        await (await client.record_run(binding, 0, 0)).signal("paid")
        assert await (await client.record_run(binding, 0, 2)).result(timeout=180) == "o2"
        assert await (await client.record_run(binding, 0, 1)).status() == "cancelled"
    assert executed == in_order("w0", "o2")


async def test_one_that_had_begun_before_is_not_queued(rig: Rig, client: WorkflowClient) -> None:
    """Its steps are in the partition's journal, so it waits for the lane in the worker and goes on from them."""
    started = asyncio.Event()
    parks = False

    @workflow(name="queue.moody")
    async def moody(ctx: Context, order: str) -> str:
        await ctx.step(note, f"{order} begins")
        if parks and order == "o0":
            await ctx.wait_for_signal("paid")
        if not parks and order == "o1":
            started.set()
            await asyncio.sleep(3600)
        await ctx.step(note, f"{order} ends")
        return order

    await rig.create()
    binding = rig.binding(moody)
    async with rig.running(binding):
        await rig.produce(records(b"a", "o0", "o1", "o2"))
        await asyncio.wait_for(started.wait(), 30)
        await rig.until_committed(1)
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(0, "")})
    parks = True
    async with rig.running(binding):
        run = await client.record_run(binding, 0, 0)

        async def waits() -> bool:
            return await run.status() == "signal_waiting"

        await rig.until(waits, "the first to wait, this time")
        await rig.until_committed(1)
        await asyncio.sleep(1.5)
        assert await rig.offset() == 1
        await run.signal("paid")
        await rig.until_committed(3)
    assert executed.count("o1 begins") == 1
    assert [text for text in executed if text.endswith("ends")][-3:] == ["o0 ends", "o1 ends", "o2 ends"]
