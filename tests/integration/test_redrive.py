"""A dead-lettered record is run once more by an operator: by its run's id, its place, or its dead letter."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyrula.cli import main
from pyrula.kafka import KafkaOptions
from pyrula.kafka.letters import read_letter
from pyrula.workflows import (
    Context,
    DurableInvocationError,
    Retry,
    RunNotFoundError,
    TransitionRefused,
    WorkflowClient,
    step,
    workflow,
)
from tests.integration.rig import Rig
from tests.services.topics import Message

executed: list[str] = []
broken: set[str] = set()
released = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    executed.clear()
    broken.clear()
    released.clear()


@step
async def reserve(order: str) -> str:
    executed.append(f"reserve {order}")
    return order


@step(retry=Retry(max_attempts=1))
async def charge(order: str) -> str:
    executed.append(f"charge {order}")
    if order in broken:
        raise ValueError(f"no {order}")
    return order


@workflow(name="redrive.order")
async def handle_order(ctx: Context, order: str) -> dict[str, Any]:
    await ctx.step(reserve, order)
    await ctx.step(charge, order)
    assert ctx.record is not None
    await ctx.send(f"{ctx.record.topic}.out", order, key=ctx.record.key)
    return {"order": order, "run": ctx.run.metadata}


async def test_a_dead_lettered_record_goes_on_at_the_step_that_failed(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    broken.add("o1")
    await rig.produce([Message(b"a", b"o1", headers=(("h", b"1"),)), Message(b"a", b"o2")])
    binding = rig.binding(handle_order, max_concurrency=2)
    async with rig.running(binding) as running:
        await rig.until_committed(2)
        run = await client.record_run(binding, 0, 0)
        assert await run.status() == "failed"
        broken.clear()
        assert await run.retry() == "queued"
        value = await run.result(timeout=180)
        assert value["order"] == "o1"
        assert (value["run"]["redrive"], value["run"]["topic"]) == (1, rig.topic)
        with pytest.raises(TransitionRefused, match="is completed"):
            await run.retry()
        await rig.until(lambda: running.worker.stats()[0].completed == 2, "both to be counted")
        events = [(event.type, event.data.get("resumed")) for event in await run.events()]
        assert ("redriven", True) in events
        assert (await run.detail()).attempt == 2
        assert await rig.offset() == 2
    assert executed == ["reserve o1", "charge o1", "reserve o2", "charge o2", "charge o1"]
    sent = {
        message.value: dict(message.headers).get("pyrula-output-id") for message in await rig.read(f"{rig.topic}.out")
    }
    assert sent == {b'"o2"': None, b'"o1"': f"{run}:0".encode()}
    (letter,) = await rig.read(rig.letters)
    assert (letter.key, letter.value, dict(letter.headers)["h"]) == (b"a", b"o1", b"1")


async def test_one_that_fails_again_is_dead_lettered_again(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    broken.add("o1")
    await rig.produce([Message(b"a", b"o1")])
    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(1)
        run = await client.record_run(binding, 0, 0)
        await run.retry()
        with pytest.raises(DurableInvocationError, match="no o1"):
            await run.result(timeout=180)
        first, second = await rig.read(rig.letters)
        assert dict(second.headers)["pyrula-dlq-attempts"] == b"2"
        assert dict(first.headers)["pyrula-dlq-run-id"] == dict(second.headers)["pyrula-dlq-run-id"]
        broken.clear()
        await run.retry()
        assert (await run.result(timeout=180))["run"]["redrive"] == 2
    assert executed == ["reserve o1", "charge o1", "charge o1", "charge o1"]


@workflow(name="redrive.busy")
async def keep_busy(ctx: Context, order: str) -> str:
    executed.append(order)
    if order in broken:
        raise ValueError(f"no {order}")
    await asyncio.sleep(0.05)
    return order


@pytest.mark.parametrize("places", [1, 3])
async def test_a_busy_binding_finds_a_place_for_it(rig: Rig, client: WorkflowClient, places: int) -> None:
    await rig.create()
    broken.add("o1")
    await rig.produce([Message(b"a", b"o1")])
    binding = rig.binding(keep_busy, max_concurrency=places)
    async with rig.running(binding) as running:
        await rig.until_committed(1)
        run = await client.record_run(binding, 0, 0)
        broken.clear()
        await rig.produce([b"x"] * 6000)
        await rig.until(lambda: len(executed) > 10, "the binding to be busy")
        await run.retry()
        assert await run.result(timeout=180) == "o1"
        assert running.worker.stats()[0].in_flight <= places
        assert executed.count("x") < 6000


@workflow(name="redrive.long")
async def take_long(ctx: Context, order: str) -> str:
    if order in broken:
        raise ValueError(f"no {order}")
    executed.append(order)
    if order == "x":
        await released.wait()
    return order


async def test_what_a_busy_worker_has_no_place_for_is_left_to_another(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    broken.add("o1")
    await rig.produce([Message(b"a", b"o1")])
    binding = rig.binding(take_long, max_concurrency=1)
    async with rig.running(binding), rig.running(binding):
        await rig.until_committed(1)
        run = await client.record_run(binding, 0, 0)
        broken.clear()
        await rig.produce([b"x", b"y"])
        await rig.until(lambda: "x" in executed, "one worker to be busy")
        await run.retry()
        assert await run.result(timeout=180) == "o1"
        assert "y" not in executed
        released.set()
        await rig.until_committed(3)


def typed(accepts: type) -> Any:
    @workflow(name="redrive.typed")
    async def take(ctx: Context, order: accepts) -> str:  # type: ignore[valid-type]
        return f"took {order}"

    return take


async def test_a_record_that_could_not_be_read_is_redriven_by_code_that_can(rig: Rig, client: WorkflowClient) -> None:
    await rig.create()
    await rig.produce([Message(b"a", b"text")])
    binding = rig.binding(typed(int))
    async with rig.running(binding):
        await rig.until_committed(1)
        run = await client.record_run(binding, 0, 0)
        assert await run.status() == "failed"
    async with rig.running(rig.binding(typed(str))):
        await run.retry()
        assert await run.result(timeout=180) == "took text"


async def test_a_letter_redrives_what_the_store_has_not_kept(rig: Rig, client: WorkflowClient) -> None:
    await rig.create(f"{rig.topic}.out")
    broken.add("o1")
    await rig.produce([Message(b"a", b"o1", headers=(("h", b"1"), ("n", None)))])
    binding = rig.binding(handle_order, keep="none")
    async with rig.running(binding):
        await rig.until_committed(1)
        run = await client.record_run(binding, 0, 0)
        with pytest.raises(RunNotFoundError):
            await run.retry()
        options = KafkaOptions(bootstrap_servers=rig.kafka)
        (stored,) = await rig.read(rig.letters)
        letter = await read_letter(options, rig.letters, stored.partition, stored.offset)
        assert (letter.run_id, letter.topic, letter.offset, letter.attempts) == (str(run), rig.topic, 0, 1)
        assert (letter.workflow, letter.reason) == ("redrive.order", "failed")
        broken.clear()
        again = await client.redrive(letter)
        assert again == run
        with pytest.raises(TransitionRefused):
            await client.redrive(letter)
        assert (await again.result(timeout=180))["run"]["redrive"] == 1
        for offset in (7, -1):
            with pytest.raises(ValueError, match="there is no"):
                await read_letter(options, rig.letters, stored.partition, offset)
        with pytest.raises(ValueError, match="no dead letter"):
            await read_letter(options, rig.topic, 0, 0)
    assert executed == ["reserve o1", "charge o1", "charge o1"]


async def test_the_command_redrives_by_id_by_place_and_by_letter(
    rig: Rig,
    client: WorkflowClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await rig.create(f"{rig.topic}.out")
    broken.update(("o0", "o1", "o2"))
    await rig.produce([Message(b"a", value) for value in (b"o0", b"o1", b"o2")])
    (tmp_path / "redrive_worker.py").write_text(
        "from pyrula.kafka import Binding, KafkaOptions, KafkaWorker\n"
        "from pyrula.workflows import ValkeyStore\n"
        "from tests.integration.test_redrive import handle_order\n"
        f"worker = KafkaWorker(Binding(handle_order, topic={rig.topic!r}, group={rig.group!r}), "
        f"store=ValkeyStore({rig.valkey!r}, namespace={rig.namespace!r}), "
        f"kafka=KafkaOptions(bootstrap_servers={rig.kafka!r}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def command(which: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["redrive", "redrive_worker:worker", which])
        told = capsys.readouterr()
        return status, told.out + told.err

    binding = rig.binding(handle_order)
    async with rig.running(binding):
        await rig.until_committed(3)
        runs = [await client.record_run(binding, 0, offset) for offset in range(3)]
        letters = {dict(letter.headers)["pyrula-dlq-run-id"]: letter for letter in await rig.read(rig.letters)}
        letter = letters[str(runs[2]).encode()]
        broken.clear()
        for run, which in zip(
            runs, [str(runs[0]), f"{rig.topic}:0:1", f"{rig.letters}:{letter.partition}:{letter.offset}"], strict=True
        ):
            assert await command(which) == (0, f"{run} is queued, and goes on at the step that failed\n")
            assert (await run.result(timeout=180))["run"]["redrive"] == 1
            status, told = await command(which)
            assert (status, "is completed" in told) == (2, True)
        assert (await command("orders:x:1"))[0] == 2
        assert "no binding" in (await command("unknown:0:1"))[1]
    assert [text for text in executed if text.startswith("reserve")] == ["reserve o0", "reserve o1", "reserve o2"]
