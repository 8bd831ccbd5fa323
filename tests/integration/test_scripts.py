"""Small programs as people write them, each in a process of its own."""

import os
import subprocess
import sys

_TWICE = """
import asyncio, os
from pyrula.workflows import DurableInvocationTimeout, ValkeyStore, WorkflowClient, workflow

@workflow(name="scripts_twice")
async def twice(ctx) -> int:
    return 2

store = ValkeyStore(os.environ["VALKEY"], namespace=os.environ["NAMESPACE"])
client = WorkflowClient(store)

async def many() -> None:
    run = await client.submit(twice)
    for _ in range(3):
        try:
            # several at once, so that they wait for one another
            await asyncio.gather(*(run.result(timeout=0.05) for _ in range(10)))
        except DurableInvocationTimeout:
            print(await run.status())

async def cut_off() -> None:
    run = await client.submit(twice)
    waiting = asyncio.create_task(run.result())
    await asyncio.sleep(0.05)
    raise RuntimeError("in the middle of it")

for program in (many, cut_off, many):
    try:
        asyncio.run(program())
    except RuntimeError as error:
        print(error)
"""


def run(program: str, **env: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_store_is_used_in_one_asyncio_run_after_the_other(valkey: str, namespace: str) -> None:
    said, complained = run(_TWICE, VALKEY=valkey, NAMESPACE=namespace)
    assert said.splitlines() == ["queued"] * 3 + ["in the middle of it"] + ["queued"] * 3
    assert complained == ""
