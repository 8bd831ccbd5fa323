"""`pyrula explain` as a process, on a real store."""

import asyncio
import json
import subprocess
import sys

import pytest

from pyrula.workflows import Context, Limit, ValkeyStore, WorkflowClient, workflow


@workflow(name="explain_sync", concurrency=Limit("tenant_id", max=1))
async def sync(ctx: Context, tenant_id: str) -> None: ...


async def pyrula(*arguments: str) -> tuple[int, str, str]:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pyrula", "explain", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = await asyncio.to_thread(run)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("as_json", [False, True])
async def test_what_a_run_waits_for(valkey: str, namespace: str, as_json: bool) -> None:
    async with WorkflowClient(ValkeyStore(valkey, namespace=namespace)) as client:
        run = await client.submit(sync, {"tenant_id": "acme"})
        told = ["explain_sync", run.run_id, "--store", valkey, "--namespace", namespace]
        status, out, _ = await pyrula(*told, *(["--json"] if as_json else []))
        assert status == 0
        text = json.loads(out)["text"] if as_json else out.strip()
        assert text.startswith("queued ")
        assert text.endswith(": no live worker serves explain_sync version 1")
        if as_json:
            found = json.loads(out)
            assert (found["served"], found["limit"]) == (False, ["tenant_id", "acme", 1])
        await run.cancel()


async def test_what_cannot_be_explained(valkey: str, namespace: str) -> None:
    async with WorkflowClient(ValkeyStore(valkey, namespace=namespace)) as client:
        run = await client.submit(sync, {"tenant_id": "acme"})
        store = ["--store", valkey, "--namespace", namespace]
        status, _, err = await pyrula("other", run.run_id, *store)
        assert (status, "it is of workflow 'explain_sync', not of 'other'" in err) == (2, True)
        status, _, err = await pyrula("explain_sync", "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC", *store)
        assert (status, "pyrula: " in err) == (2, True)
        await run.cancel()
