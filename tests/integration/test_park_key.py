"""on_failure="park_key": a record that failed is dead-lettered, and its key waits until somebody has decided."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyrula.cli import main
from pyrula.kafka.binding import Binding
from pyrula.kafka.partition import Partition
from pyrula.kafka.settling import Settling
from pyrula.workflows import (
    Context,
    Retry,
    RunNotFoundError,
    TransitionRefused,
    ValkeyStore,
    WorkflowClient,
    step,
    workflow,
)
from pyrula.workflows.client.handle import RunHandle
from tests.integration.rig import Rig
from tests.services.topics import Message

executed: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def fresh(hands_over: None) -> None:
    executed.clear()
    broken.clear()


@step
async def reserve(order: str) -> str:
    executed.append(f"reserve {order}")
    return order


@step(retry=Retry(max_attempts=1))
async def ship(order: str) -> str:
    if order in broken:
        raise ValueError(f"no way to ship {order}")
    executed.append(f"ship {order}")
    return order


@workflow(name="park.order")
async def handle_order(ctx: Context, order: str) -> str:
    await ctx.step(reserve, order)
    if order.startswith("w"):
        await ctx.wait_for_signal("paid")
    return await ctx.step(ship, order)


def records(key: bytes | None, *values: str) -> list[Message]:
    return [Message(key, value.encode()) for value in values]


def both(*orders: str) -> list[str]:
    return [f"{what} {order}" for order in orders for what in ("reserve", "ship")]


def parking(rig: Rig, **options: Any) -> Binding:
    return rig.binding(handle_order, on_failure="park_key", **options)


async def blocked(rig: Rig, client: WorkflowClient, binding: Binding, offset: int) -> RunHandle[Any]:
    """The run of the record, once it has failed."""

    async def found() -> RunHandle[Any] | None:
        try:
            run = await client.record_run(binding, 0, offset)
        except RunNotFoundError:
            return None
        return run if await run.status() == "paused" else None

    run: RunHandle[Any] = await rig.until(found, f"the record at {offset} to have failed")
    return run


async def test_the_key_waits_and_follows_a_redrive(
    rig: Rig, client: WorkflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.add("o0")
    entrusted: list[int] = []

    def entrust(settling: Settling, partition: Partition, offsets: list[int]) -> None:
        entrusted.extend(offsets)
        partition.settled(offsets)

    monkeypatch.setattr(Settling, "entrust", entrust)
    await rig.create()
    await rig.produce([*records(b"a", "o0", "o1", "o2"), *records(b"b", "o3")])
    binding = parking(rig)
    async with rig.running(binding) as running:
        await rig.until_committed(4)
        run = await blocked(rig, client, binding, 0)
        assert (await run.detail()).error.message.endswith("no way to ship o0")
        assert [event.offset for event in running.told("blocked")] == [0]
        assert sorted(entrusted) == [0, 1, 2], "what counts once the store's disk has it"
        assert running.worker.stats()[0].dead_lettered == 1
        await rig.until(lambda: "ship o3" in executed, "the other key to go on")
        assert executed.count("reserve o1") == 0
        assert await (await client.record_run(binding, 0, 2)).status() == "queued"
        broken.clear()
        assert await run.retry() == "queued"
        assert await (await client.record_run(binding, 0, 2)).result(timeout=180) == "o2"
        assert await run.result(timeout=180) == "o0"
        with pytest.raises(TransitionRefused):
            await run.retry()
    assert [text for text in executed if "o3" not in text] == both("o0", "o1", "o2")
    (letter,) = await rig.read(rig.letters)
    assert (letter.key, letter.value) == (b"a", b"o0")


async def test_it_waits_for_the_next_worker_too(rig: Rig, client: WorkflowClient) -> None:
    broken.add("o0")
    await rig.create()
    await rig.produce(records(b"a", "o0", "o1"))
    binding = parking(rig)
    async with rig.running(binding):
        await rig.until_committed(2)
    await rig.produce(records(b"a", "o2"))
    async with rig.running(binding):
        await rig.until_committed(3)
        run = await blocked(rig, client, binding, 0)
        await run.retry()  # it fails again
        await rig.until(lambda: letters_of(rig), "a second letter")
        run = await blocked(rig, client, binding, 0)
        broken.clear()
        await run.retry()
        assert await (await client.record_run(binding, 0, 2)).result(timeout=180) == "o2"
    assert executed == both("o0", "o1", "o2")
    attempts = [dict(letter.headers)["pyrula-dlq-attempts"] for letter in await rig.read(rig.letters)]
    assert attempts == [b"1", b"2"]


async def letters_of(rig: Rig) -> bool:
    return len(await rig.read(rig.letters)) == 2


async def test_one_that_failed_is_discarded(rig: Rig, client: WorkflowClient) -> None:
    broken.add("o0")
    await rig.create()
    await rig.produce(records(b"a", "o0", "o1"))
    binding = parking(rig)
    async with rig.running(binding):
        run = await blocked(rig, client, binding, 0)
        assert await run.cancel() == "cancelled"
        await rig.until(lambda: "ship o1" in executed, "the next one of the key")
        await rig.until_committed(2)
    assert executed == ["reserve o0", *both("o1")]


async def test_one_that_fails_in_the_store_blocks_its_queue(rig: Rig, client: WorkflowClient) -> None:
    broken.add("w0")
    await rig.create()
    await rig.produce(records(b"a", "w0", "o1"))
    binding = parking(rig)
    async with rig.running(binding):
        await rig.until_committed(2)
        await (await client.record_run(binding, 0, 0)).signal("paid")
        run = await blocked(rig, client, binding, 0)
        assert await (await client.record_run(binding, 0, 1)).status() == "queued"
        broken.clear()
        await run.retry()
        assert await (await client.record_run(binding, 0, 1)).result(timeout=180) == "o1"
    assert executed == both("w0", "o1")
    assert len(await rig.read(rig.letters)) == 1


async def test_a_value_that_cant_be_read_blocks_its_key(rig: Rig, client: WorkflowClient) -> None:
    @workflow(name="park.number")
    async def handle_number(ctx: Context, number: int) -> int:
        executed.append(str(number))
        return number

    await rig.create()
    await rig.produce(records(b"a", "nonsense", "1"))
    binding = rig.binding(handle_number, on_failure="park_key")
    async with rig.running(binding):
        run = await blocked(rig, client, binding, 0)
        await rig.until_committed(2)
        assert executed == []
        assert await run.cancel() == "cancelled"
        await rig.until(lambda: executed == ["1"], "the next one of the key")


async def test_a_record_without_a_key_is_only_dead_lettered(rig: Rig, client: WorkflowClient) -> None:
    broken.add("o0")
    await rig.create()
    await rig.produce(records(None, "o0", "o1"))
    binding = parking(rig)
    async with rig.running(binding) as running:
        await rig.until_committed(2)
        assert [event.offset for event in running.told("dead_lettered")] == [0]
        assert await (await client.record_run(binding, 0, 0)).status() == "failed"
    assert sorted(executed) == sorted(["reserve o0", *both("o1")])


async def test_where_nothing_is_handed_over_it_is_held_in_the_worker(
    rig: Rig, client: WorkflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ValkeyStore, "hands_over", False)
    broken.add("o0")
    await rig.create()
    await rig.produce(records(b"a", "o0", "o1"))
    binding = parking(rig)
    async with rig.running(binding) as running:
        run = await blocked(rig, client, binding, 0)
        assert [event.offset for event in running.told("stopped")] == [0]
        assert await rig.offset() == 0
        broken.clear()
        await run.retry()
        await rig.until_committed(2)
    assert executed == both("o0", "o1")
    assert len(await rig.read(rig.letters)) == 1


async def test_the_command_line_lists_redrives_and_discards(
    rig: Rig,
    client: WorkflowClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken.update({"o0", "o2"})
    await rig.create()
    await rig.produce([*records(b"a", "o0", "o1"), *records(b"b", "o2", "o3")])
    (tmp_path / "parking_worker.py").write_text(
        "from pyrula.kafka import Binding, KafkaOptions, KafkaWorker\n"
        "from pyrula.workflows import ValkeyStore\n"
        "from tests.integration.test_park_key import handle_order\n"
        f"worker = KafkaWorker(Binding(handle_order, topic={rig.topic!r}, group={rig.group!r}, on_failure='park_key'), "
        f"store=ValkeyStore({rig.valkey!r}, namespace={rig.namespace!r}), "
        f"kafka=KafkaOptions(bootstrap_servers={rig.kafka!r}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def command(*words: str) -> list[str]:
        assert await asyncio.to_thread(main, [words[0], "parking_worker:worker", *words[1:]]) == 0
        return capsys.readouterr().out.splitlines()

    binding = parking(rig)
    async with rig.running(binding):
        first, second = [await blocked(rig, client, binding, offset) for offset in (0, 2)]
        await rig.until_committed(4)
        listed = await command("lanes")
        assert listed[0].startswith(f"{rig.topic}[0]  key 'a'  waits for {first}, 1 queued behind it; blocked: ")
        assert listed[0].endswith("no way to ship o0")
        assert listed[-1] == "2 away"
        assert await command("lanes", "--discard", str(first)) == [f"{first} is cancelled"]
        broken.clear()
        assert await command("redrive", str(second)) == [f"{second} is queued, and goes on at the step that failed"]
        for offset in (1, 3):
            assert await (await client.record_run(binding, 0, offset)).result(timeout=180) == f"o{offset}"
    assert [text for text in executed if text[-1] in "01"] == ["reserve o0", *both("o1")]
    assert [text for text in executed if text[-1] in "23"] == both("o2", "o3")
