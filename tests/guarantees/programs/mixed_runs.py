"""Bodies of every kind, and a worker that serves them until it is killed.

Arguments: the store's URL, its namespace, a file for what steps did, and the durability. A step appends one line when
it starts: run, number, process, token, and the tokens of the run's earlier steps as its body saw them. So the file
tells whether a step ran again after the next one had begun, that is after it was journaled.
"""

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path

from pyrula.workflows import Context, Limit, RunCancelled, ValkeyStore, WorkerOptions, WorkflowWorker, step, workflow

LOG = "PYRULA_STEPS"


def _note(line: bytes) -> None:
    # one write: lines of several processes don't mix
    with Path(os.environ[LOG]).open("ab") as file:
        file.write(line)


@step(name="act")
async def act(run: str, number: int, seen: list[str], seconds: float) -> str:
    token = uuid.uuid4().hex
    line = json.dumps([run, number, os.getpid(), token, seen]) + "\n"
    _note(line.encode())
    await asyncio.sleep(seconds)
    return token


async def _steps(ctx: Context, seen: list[str], count: int, seconds: float = 0.01) -> None:
    for _ in range(count):
        seen.append(await ctx.step(act, ctx.run.id, len(seen), list(seen), seconds))


@workflow(name="mixed_steps", concurrency=Limit(key="tenant", max=3))
async def stepping(ctx: Context, tenant: str, pauses: int) -> list[str]:
    seen: list[str] = []
    for _ in range(pauses):
        await _steps(ctx, seen, 2)
        await ctx.sleep(0.4)
    await _steps(ctx, seen, 1)
    return seen


@workflow(name="mixed_talk")
async def talking(ctx: Context, signals: int) -> list[object]:
    """Gives back every signal and update that was applied, in order."""
    heard: list[object] = []
    seen: list[str] = []

    async def add(number: int) -> int:
        heard.append(["update", number])
        return number

    ctx.on_update("add", add)
    for _ in range(signals):
        heard.append(["signal", await ctx.wait_for_signal("more")])
        await _steps(ctx, seen, 1)
    await ctx.wait_for_signal("enough")
    return heard


@workflow(name="mixed_child")
async def child(ctx: Context, number: int) -> int:
    seen: list[str] = []
    await _steps(ctx, seen, 1)
    await ctx.sleep(0.3)
    await _steps(ctx, seen, 1)
    return number * number


@workflow(name="mixed_parent")
async def parent(ctx: Context, numbers: list[int]) -> list[int]:
    seen: list[str] = []
    await _steps(ctx, seen, 1)
    children = [await ctx.start_child("mixed_child", {"number": number}) for number in numbers]
    results = [await each.result() for each in children]
    await _steps(ctx, seen, 1)
    return results


@workflow(name="mixed_waiting")
async def waiting(ctx: Context) -> str:
    """Waits until it is cancelled, and cleans up."""
    seen: list[str] = []
    await _steps(ctx, seen, 1)
    try:
        await ctx.wait_for_signal("never")
    except RunCancelled:
        await _steps(ctx, seen, 1)
        raise
    return "never"


@workflow(name="mixed_chain")
async def chain(ctx: Context, left: int, total: int = 0) -> int:
    total += await ctx.wait_for_signal("tick")
    if left > 1:
        await ctx.continue_as_new({"left": left - 1, "total": total})
    return total


WORKFLOWS = [stepping, talking, child, parent, waiting, chain]


async def main(url: str, namespace: str, durability: str) -> None:
    store = ValkeyStore(
        url,
        namespace=namespace,
        shards=4,
        timeout=1,
        retry_for=30,
        durability=durability,  # type: ignore[arg-type]
    )
    options = WorkerOptions(
        lease_seconds=3, heartbeat_interval=0.5, claim_poll_interval=0.3, park_after=0.1, max_concurrency=20
    )
    print("ready", flush=True)
    await WorkflowWorker(WORKFLOWS, store=store, options=options).run()


if __name__ == "__main__":
    os.environ[LOG] = sys.argv[3]
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[4]))
