"""A worker of submitted runs: ``holding.py VALKEY NAMESPACE LOG``. As it starts each step writes what it builds on."""

import asyncio
import logging
import os
import sys

from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowWorker, step, workflow

VALKEY, NAMESPACE, LOG = sys.argv[1:4]


@step
async def add(run_id: str, number: int, before: str) -> str:
    """Its value is this very execution's, so that a later step shows which one it builds on."""
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{run_id} {number} {before}\n".encode())
    os.close(file)
    await asyncio.sleep(0.03)
    return f"{before}.{os.getpid()}-{os.urandom(3).hex()}"


@workflow(name="holding")
async def holding(ctx: Context, steps: int) -> str:
    chain = "begin"
    for number in range(steps):
        chain = await ctx.step(add, ctx.run.id, number, chain)
        if number % 4 == 3:
            await ctx.sleep(0.05)
    return chain


worker = WorkflowWorker(
    [holding],
    store=ValkeyStore(VALKEY, namespace=NAMESPACE, shards=2),
    options=WorkerOptions(claim_poll_interval=0.05, lease_seconds=1, heartbeat_interval=0.2, park_after=0.02),
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(relativeCreated)d %(levelname)s %(message)s")
    asyncio.run(worker.run())
