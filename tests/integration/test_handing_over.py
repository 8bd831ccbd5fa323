"""Records that wait are handed over to the store: their offsets complete, their lanes wait, and come home."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from pyrula.cli import main
from pyrula.kafka import Record
from pyrula.workflows import (
    Context,
    DurableInvocationError,
    Retry,
    RunFinishedError,
    RunNotFoundError,
    ValkeyStore,
    WorkflowClient,
    step,
    workflow,
)
from pyrula.workflows.client.handle import RunHandle
from pyrula.workflows.store.lanes import HandingOver, LiningUp
from tests.integration.rig import Rig
from tests.services.topics import Message

executed: list[str] = []


@pytest.fixture(autouse=True)
def fresh(hands_over: None) -> None:
    executed.clear()


@step
async def note(text: str) -> str:
    executed.append(text)
    return text


@workflow(name="handed.order")
async def handle_order(ctx: Context, record: Record[str]) -> str:
    order = record.value
    await ctx.step(note, f"reserve {order}")
    if order.startswith("w"):
        by = await ctx.wait_for_signal("paid")
        assert ctx.record is not None
        assert (ctx.record.key, ctx.record.headers) == (record.key, record.headers)
        await ctx.step(note, f"ship {order} to {by}")
        await ctx.send(f"{record.topic}.out", f"{order} {by}", key=record.key)
    if order.endswith("!"):
        raise ValueError(f"no {order}")
    return order


@workflow(name="handed.cart")
async def fill_cart(ctx: Context, order: str) -> list[str]:
    items: list[str] = []
    ctx.on_update("add", lambda sku: items.append(sku))
    ctx.on_query("items", lambda: items)
    await ctx.wait_for_signal("checkout")
    return items


async def find(client: WorkflowClient, rig: Rig, binding: Any, offset: int) -> RunHandle[Any]:
    async def reachable() -> RunHandle[Any] | None:
        try:
            return await client.record_run(binding, 0, offset)
        except RunNotFoundError:
            return None

    run: RunHandle[Any] = await rig.until(reachable, "the partition to be registered")
    return run


async def handed_over(rig: Rig, run: RunHandle[Any]) -> None:
    async def there() -> bool:
        return "handed_over" in [event.type for event in await run.events()]

    await rig.until(there, f"{run} to be handed over")


async def test_the_offset_of_a_record_that_waits_completes(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w1", headers=(("h", b"1"),)), Message(b"b", b"o2")])
    binding = rig.binding(handle_order)
    async with rig.running(binding) as running:
        await rig.until_committed(2)
        run = await find(client, rig, binding, 0)
        assert await run.status() == "signal_waiting"
        assert [event.offset for event in running.told("handed_over")] == [0]
        await run.signal("paid", "ada")
        assert await run.result(timeout=180) == "w1"
        with pytest.raises(RunFinishedError):
            await run.signal("paid", "bob")
        await rig.until(lambda: running.worker.stats()[0].completed == 2, "both to be counted")
    assert sorted(executed) == ["reserve o2", "reserve w1", "ship w1 to ada"]
    (sent,) = await rig.read(f"{rig.topic}.out")
    assert (sent.key, sent.value) == (b"a", b'"w1 ada"')
    assert dict(sent.headers)["pyrula-output-id"] == f"{run}:0".encode()


async def test_it_outlives_its_worker_and_the_commit(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w1")])
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(1)
    run = await client.record_run(binding, 0, 0)
    await run.signal("paid", "ada")
    assert await run.status() == "queued"
    async with rig.running(binding):
        assert await run.result(timeout=180) == "w1"
    assert executed == ["reserve w1", "ship w1 to ada"]


async def test_the_key_waits_and_comes_home(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", value) for value in (b"o0", b"w1", b"o2", b"w3", b"o4")] + [Message(b"b", b"o5")])
    binding = rig.binding(handle_order, max_concurrency=2)
    async with rig.running(binding) as running:
        first = await find(client, rig, binding, 1)
        await handed_over(rig, first)
        await rig.until(lambda: "reserve o5" in executed, "the other key to go on")
        await rig.until_committed(2)
        assert executed == ["reserve o0", "reserve w1", "reserve o5"] or "reserve o2" not in executed
        await rig.until(lambda: running.worker.stats()[0].in_flight == 0, "the other key to end")
        await first.signal("paid", "1")
        second = await find(client, rig, binding, 3)
        await rig.until(lambda: "reserve w3" in executed, "the next one of the key that waits")
        await second.signal("paid", "3")
        await rig.until_committed(6)
        await rig.until(lambda: "reserve o4" in executed, "the last of the key")
    assert [text for text in executed if "o5" not in text] == [
        "reserve o0", "reserve w1", "ship w1 to 1", "reserve o2", "reserve w3", "ship w3 to 3", "reserve o4",
    ]  # fmt: skip


async def test_a_lane_that_is_away_is_known_to_the_next_worker(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w0"), Message(b"a", b"o1")])
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(1)
    async with rig.running(binding) as running:
        await rig.until(lambda: running.worker.stats()[0].partitions == 1, "it to have the partition")
        run = await find(client, rig, binding, 0)
        await asyncio.sleep(1.5)
        assert executed == ["reserve w0"]
        await run.signal("paid", "ada")
        await rig.until_committed(2)
        await rig.until(lambda: "reserve o1" in executed, "the next one of the key")
    assert executed == ["reserve w0", "ship w0 to ada", "reserve o1"]


async def test_a_lane_may_be_released(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w0"), Message(b"a", b"o1")])
    binding = rig.binding(handle_order, release_lane=True)
    async with rig.running(binding):
        await rig.until_committed(2)
        run = await find(client, rig, binding, 0)
        await run.signal("paid", "ada")
        assert await run.result(timeout=180) == "w0"
    assert executed == ["reserve w0", "reserve o1", "ship w0 to ada"]


async def test_one_that_fails_later_is_dead_lettered(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w1!"), Message(b"a", b"o2")])
    binding = rig.binding(handle_order, retry=Retry(max_attempts=2, initial=0.1))
    async with rig.running(binding) as running:
        run = await find(client, rig, binding, 0)
        await handed_over(rig, run)
        await run.signal("paid", "ada")
        with pytest.raises(DurableInvocationError, match="no w1!"):
            await run.result(timeout=180)
        await rig.until_committed(2)
        await rig.until(lambda: "reserve o2" in executed, "the next one of the key")
        assert [event.attempt for event in running.told("dead_lettered")] == [2]
        stats = running.worker.stats()[0]
        assert (stats.failed, stats.dead_lettered) == (1, 1)
    (letter,) = await rig.read(rig.letters)
    assert (letter.key, letter.value, dict(letter.headers)["pyrula-dlq-attempts"]) == (b"a", b"w1!", b"2")
    assert executed == ["reserve w1!", "ship w1! to ada", "reserve o2"]
    assert await rig.read(f"{rig.topic}.out") == []


async def test_one_that_waits_is_talked_to(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([b"o1"])
    binding = rig.binding(fill_cart)
    async with rig.running(binding):
        run = await find(client, rig, binding, 0)
        await handed_over(rig, run)
        await run.update("add", {"sku": "A"}, update_id="u1")
        await run.update("add", {"sku": "A"}, update_id="u1")
        assert await run.query("items") == ["A"]
        await run.signal("checkout")
        assert await run.result(timeout=180) == ["A"]


async def test_a_signal_at_any_moment_of_the_way_is_heard(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    binding = rig.binding(handle_order, max_concurrency=8)
    async with rig.running(binding):
        await find(client, rig, binding, 0)
        await rig.produce([Message(f"k{n}".encode(), f"w{n}".encode()) for n in range(60)])

        async def talk(offset: int) -> str:
            run = await find(client, rig, binding, offset)
            # about when it comes to rest and is handed over
            await asyncio.sleep(random.random() * 1.5)
            if offset % 3 == 0:
                await run.signal("else")
            await run.signal("paid", "ada")
            return str(await run.result(timeout=180))

        assert await asyncio.gather(*map(talk, range(60))) == [f"w{n}" for n in range(60)]
        await rig.until_committed(60)
    assert sorted(executed) == sorted([f"reserve w{n}" for n in range(60)] + [f"ship w{n} to ada" for n in range(60)])


@workflow(name="handed.busy")
async def keep_busy(ctx: Context, order: str) -> str:
    if order.startswith("w"):
        await ctx.wait_for_signal("paid")
    await asyncio.sleep(0.05)
    executed.append(order)
    return order


async def test_a_busy_binding_has_a_place_for_it(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"w")])
    binding = rig.binding(keep_busy, max_concurrency=2)
    async with rig.running(binding) as running:
        run = await find(client, rig, binding, 0)
        await handed_over(rig, run)
        await rig.produce([b"o"] * 3000)
        await rig.until(lambda: len(executed) > 10, "the binding to be busy")
        await run.signal("paid")
        assert await run.result(timeout=180) == "w"
        assert running.worker.stats()[0].in_flight <= 2
        assert len(executed) < 3000


async def test_one_that_waits_is_cancelled(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w1"), Message(b"a", b"o2")])
    binding = rig.binding(handle_order)
    async with rig.running(binding) as running:
        run = await find(client, rig, binding, 0)
        await handed_over(rig, run)
        assert await run.cancel(timeout=60) == "cancelled"
        await rig.until_committed(2)
        await rig.until(lambda: "reserve o2" in executed, "the next one of the key")
        assert [event.offset for event in running.told("cancelled")] == [0]
    assert executed == ["reserve w1", "reserve o2"]
    assert await rig.read(rig.letters) == []


@workflow(name="handed.late")
async def succeed_late(ctx: Context, order: str) -> str:
    await ctx.step(note, f"reserve {order}")
    executed.append(f"attempt {ctx.run.attempt}")
    if ctx.run.attempt < 3:
        raise ValueError("not yet")
    return order


async def test_a_long_delay_before_the_next_round_outlives_its_worker(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"o1"), Message(b"a", b"o2")])
    binding = rig.binding(succeed_late, retry=Retry(max_attempts=3, initial=3, factor=1.0, jitter=0.0))
    async with rig.running(binding):
        run = await find(client, rig, binding, 0)
        await handed_over(rig, run)
        await rig.until_committed(1)
    async with rig.running(binding) as running:
        assert await run.result(timeout=180) == "o1"
        await rig.until_committed(2)
        await rig.until(lambda: "reserve o2" in executed, "the next one of the key")
        assert running.told("dead_lettered") == []
    assert executed[:4] == ["reserve o1", "attempt 1", "attempt 2", "attempt 3"]
    assert executed[4:5] == ["reserve o2"]


async def test_a_run_that_waits_for_its_next_round_says_so(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"o1")])
    retry = Retry(max_attempts=3, initial=3600, max_delay=3600, factor=1.0, jitter=0.0)
    binding = rig.binding(succeed_late, retry=retry)
    async with rig.running(binding):
        run = await find(client, rig, binding, 0)
        await handed_over(rig, run)
        assert await run.status() == "retrying"


async def test_a_key_that_never_parks_costs_no_call(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    binding = rig.binding(handle_order)
    async with rig.running(binding) as running:
        store: Any = running.worker.store
        asked: list[bytes] = []
        come_home = store.come_home

        async def counting(registration: Any, token: Any, lanes: list[tuple[bytes, int]], bounds: Any) -> Any:
            asked.extend(lane for lane, _ in lanes)
            return await come_home(registration, token, lanes, bounds)

        store.come_home = counting
        line_up = store.line_up

        async def counting_lines(registration: Any, token: Any, served: str, lanes: list[LiningUp], bounds: Any) -> Any:
            asked.extend(one.lane for one in lanes)
            return await line_up(registration, token, served, lanes, bounds)

        store.line_up = counting_lines
        hand_over = store.hand_over

        async def counting_parks(registration: Any, token: Any, run: HandingOver) -> Any:
            asked.append(run.lane or b"")
            return await hand_over(registration, token, run)

        store.hand_over = counting_parks
        await rig.produce([Message(f"k{n % 5}".encode(), f"o{n}".encode()) for n in range(100)])
        await rig.produce([Message(b"w", b"w"), Message(b"w", b"o")])
        await rig.produce([Message(f"k{n % 5}".encode(), f"o{n}".encode()) for n in range(100)])
        run = await find(client, rig, binding, 100)
        await handed_over(rig, run)
        await run.signal("paid", "ada")
        await rig.until_committed(202)
    assert set(asked) == {b"kw"}


async def test_lanes_that_are_away_are_listed(
    rig: Rig,
    client: WorkflowClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await rig.create(f"{rig.topic}.out", partitions=2)
    values = [(b"k\xff", b"w1", 1), (b"b", b"o2", 0), (b"b", b"w3", 0), (b"k\xff", b"o4", 1), (b"k\xff", b"o5", 1)]
    await rig.produce(Message(key, value, partition=partition) for key, value, partition in values)
    binding = rig.binding(handle_order)
    async with rig.running(binding):

        async def reachable() -> RunHandle[Any] | None:
            try:
                return await client.record_run(binding, 1, 0)
            except RunNotFoundError:
                return None

        run: RunHandle[Any] = await rig.until(reachable, "the partition to be registered")
        await rig.until_committed(3, 1)
        await rig.until_committed(2, 0)
    (tmp_path / "handed_worker.py").write_text(
        "from pyrula.kafka import KafkaOptions, KafkaWorker\n"
        "from pyrula.workflows import ValkeyStore\n"
        "from tests.integration.test_handing_over import handle_order\n"
        "from pyrula.kafka import Binding\n"
        f"worker = KafkaWorker(Binding(handle_order, topic={rig.topic!r}, group={rig.group!r}), "
        f"store=ValkeyStore({rig.valkey!r}, namespace={rig.namespace!r}), "
        f"kafka=KafkaOptions(bootstrap_servers={rig.kafka!r}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert await asyncio.to_thread(main, ["lanes", "handed_worker:worker"]) == 0
    said = capsys.readouterr().out.splitlines()
    other = await client.record_run(binding, 0, 1)
    assert said == [
        f"{rig.topic}[0]  key 'b'  waits for {other}",
        f"{rig.topic}[1]  key {'k' + chr(92) + 'xff'!r}  waits for {run}, 2 queued behind it",
        "2 away",
    ]


async def test_a_store_that_promises_no_disk_is_handed_nothing(
    rig: Rig, client: WorkflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ValkeyStore, "hands_over", False)
    await rig.create()
    await rig.produce([Message(b"a", b"w1")])
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        run = await find(client, rig, binding, 0)

        async def waits() -> bool:
            return await run.status() == "signal_waiting"

        await rig.until(waits, "it to wait")
        await asyncio.sleep(0.5)
        assert await rig.offset() == 0
        assert await run.cancel() == "cancelled"


@pytest.mark.parametrize(("keep", "lasting"), [("none", []), ("failed", ["w1!"]), ("all", ["w0", "w1!", "w2"])])
async def test_ends_are_kept_as_the_binding_says(
    rig: Rig, client: WorkflowClient, keep: Any, lasting: list[str]
) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce([Message(b"a", b"w0"), Message(b"b", b"w1!"), Message(b"c", b"w2")])
    binding = rig.binding(handle_order, keep=keep)
    async with rig.running(binding):
        runs = [await find(client, rig, binding, offset) for offset in range(3)]
        for run in runs:
            await handed_over(rig, run)
        for run in runs[:2]:
            await run.signal("paid", "ada")
        await runs[2].cancel(timeout=60)
        assert await runs[0].result(timeout=180) == "w0"
        with pytest.raises(DurableInvocationError):
            await runs[1].result(timeout=180)
    store: Any = client.store
    kept = []
    for run, order in zip(runs, ("w0", "w1!", "w2"), strict=True):
        key = b"{%b:%d}r:%b" % (rig.namespace.encode(), int(run.run_id.partition("-")[0], 16), run.run_id.encode())
        left = await store._runs.funnel.ask(b"TTL", key)
        assert 0 < left <= 7 * 24 * 3600
        if left > 3600:
            kept.append(order)
    assert kept == lasting


async def test_those_that_are_held_are_named_and_counted(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    await rig.produce(
        [Message(key, value) for key, value in [(b"a", b"w0!"), (b"b", b"w1!"), (b"c", b"w2"), (b"d", b"w3")]]
    )
    binding = rig.binding(handle_order, on_failure="stop")
    async with rig.running(binding) as running:
        runs = [await find(client, rig, binding, offset) for offset in range(4)]
        for run in runs:
            await handed_over(rig, run)
        for run in runs[:2]:
            await run.signal("paid", "ada")
        assert await runs[2].pause("a look", timeout=60) == "paused"
        await rig.until(lambda: running.worker.stats()[0].held == 3, "three to be counted", timeout=60)
        assert running.health.state == "degraded"
        for offset, why in enumerate(("no w0!", "no w1!", "a look")):
            assert f"{rig.topic}[0] offset {offset} is held in the store until run {runs[offset]}" in running.reasons
            assert why in running.reasons
    async with rig.running(binding) as running:
        await rig.until(lambda: running.worker.stats()[0].held == 3, "another worker to know of them", timeout=60)
        await runs[2].unpause()
        await runs[2].signal("paid", "ada")
        assert await runs[2].result(timeout=180) == "w2"
        assert await runs[1].retry() == "queued"
        await rig.until(lambda: len(running.told("stopped")) == 1, "it to fail once more", timeout=60)
        for run in runs[:2]:
            assert await run.cancel(timeout=60) == "cancelled"
        await rig.until(lambda: running.worker.stats()[0].held == 0, "none to be held", timeout=60)
        assert running.reasons == ""
