"""`pyrula history` as a process, on a real store: what it writes is replayed in this one."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pyrula.kafka import Record
from pyrula.kafka.testing import replay_record_run
from pyrula.workflows import (
    Context,
    NonDeterminismError,
    ValkeyStore,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    workflow,
)
from pyrula.workflows.testing import History, replay
from tests.integration.rig import Rig
from tests.services.topics import Message
from tests.services.waiting import wait_until_async


async def double(number: int) -> int:
    return number * 2


@workflow(name="history_links")
async def links(ctx: Context, number: int) -> int:
    doubled = await ctx.step(double, number)
    if number < 4:
        await ctx.continue_as_new({"number": doubled})
    await ctx.wait_for_signal("go", timeout=600)
    return doubled


@workflow(name="history_record")
async def of_a_record(ctx: Context, order: Record[dict[str, int]]) -> None:
    doubled = await ctx.step(double, order.value["number"])
    assert order.key == b"k"
    if doubled > 10:
        await ctx.wait_for_signal("go")
    await ctx.step(double, doubled)


async def pyrula(folder: Path, *arguments: str) -> tuple[int, str, str]:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pyrula", "history", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    done = await asyncio.to_thread(run)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


async def test_a_runs_history_is_saved_and_replayed(valkey: str, namespace: str, tmp_path: Path) -> None:
    options = WorkerOptions(park_after=0, claim_poll_interval=0.1)
    worker = WorkflowWorker([links], store=ValkeyStore(valkey, namespace=namespace, shards=2), options=options)
    working = asyncio.create_task(worker.run())
    store = ["--store", valkey, "--namespace", namespace, "--shards", "2"]
    try:
        run = await worker.client.submit(links, {"number": 1})

        async def waits() -> bool:
            return await run.status() == "signal_waiting"

        await wait_until_async(waits, description="the third link to wait")

        status, said, _ = await pyrula(tmp_path, "history_links", run.run_id, *store)
        assert status == 0
        live = History.from_json(said)
        assert (live.run_id, live.status, live.params) == (f"{run}~3", "signal_waiting", b'{"number":4}')
        await replay(links, live)

        status, said, told = await pyrula(
            tmp_path, "history_links", run.run_id, "--link", "1", "--out", "first.json", *store
        )
        assert (status, said) == (0, "")
        assert told == f"first.json: 1 rows of run {run} (continued_as_new)\n"
        first = History.load(tmp_path / "first.json")
        assert first == await run.history(link=1)
        await replay(links, first)

        @workflow(name="history_links")
        async def changed(ctx: Context, number: int) -> int:
            await ctx.sleep(5)
            return await ctx.step(double, number)

        for history in (live, first):
            with pytest.raises(NonDeterminismError, match="attempted: sleep"):
                await replay(changed, history)

        for arguments, problem in {
            (run.run_id, "--link", "7"): f"run {run} has no link 7 any more: it has links 1 to 3",
            ("00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC",): "no run has the id '00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC'",
            ("order-7",): "no run has the id 'order-7'",
            (run.run_id, "--out", "nowhere/x.json"): "--out nowhere/x.json: No such file or directory",
        }.items():
            status, said, told = await pyrula(tmp_path, "history_links", *arguments, *store)
            assert (status, said) == (2, ""), told
            assert told.startswith(f"pyrula: {problem}")
        status, _, told = await pyrula(tmp_path, "orders", run.run_id, *store)
        assert status == 2
        assert told == f"pyrula: no run has the id '{run}': it is of workflow 'history_links', not of 'orders'\n"
    finally:
        await run.cancel()
        worker.stop()
        await working


async def test_the_history_of_a_records_run_is_saved_and_replayed(rig: Rig, tmp_path: Path) -> None:
    await rig.create()
    await rig.produce([Message(b"k", b'{"number":4}'), Message(b"k", b'{"number":6}')])
    binding = rig.binding(of_a_record, keep="all")
    store = ["--store", rig.valkey, "--namespace", rig.namespace]
    async with rig.running(binding), WorkflowClient(ValkeyStore(rig.valkey, namespace=rig.namespace)) as client:
        await rig.until_committed(1)
        ended, waiting = [await client.record_run(binding, 0, offset) for offset in (0, 1)]

        async def waits() -> bool:
            return await waiting.status() == "signal_waiting"

        await rig.until(waits, "the second record's run to wait")
        with pytest.raises(ValueError, match=r"\(signal_waiting\) lacks its record"):
            await replay_record_run(binding, await waiting.history())
        assert await waiting.cancel() == "cancelled"
        await rig.until_committed(2)
        for run in (ended, waiting):
            status, said, told = await pyrula(tmp_path, "history_record", run.run_id, "--out", "saved.json", *store)
            assert (status, said) == (0, ""), told
            saved = History.load(tmp_path / "saved.json")
            assert saved.run_id == run.run_id
            assert saved.rows
            await replay_record_run(binding, saved)

            @workflow(name="history_record")
            async def changed(ctx: Context, order: Record[dict[str, int]]) -> None:
                await ctx.sleep(order.value["number"])

            with pytest.raises(NonDeterminismError, match=r"(?s)double.*attempted: sleep"):
                await replay_record_run(rig.binding(changed), saved)


async def test_a_store_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from pyrula.workflows import ValkeyStore\nstore = ValkeyStore('valkey://127.0.0.1:1', retry_for=0)\n"
    )
    status, _, told = await pyrula(tmp_path, "x", "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC", "--store", "shop:store")
    assert status == 2
    assert told.startswith("pyrula: ")
    assert "127.0.0.1:1" in told
