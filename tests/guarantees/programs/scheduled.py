"""A worker that fires schedules: ``scheduled.py VALKEY NAMESPACE LOG``. Each body writes its fire time and run id."""

import asyncio
import logging
import os
import sys

from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowWorker, workflow

VALKEY, NAMESPACE, LOG = sys.argv[1:4]


def write(*words: str) -> None:
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(words) + "\n").encode())
    os.close(file)


@workflow(name="scheduled")
async def scheduled(ctx: Context, seconds: float = 0) -> None:
    write("begun", ctx.run.metadata["fire_time"], ctx.run.id)
    await ctx.sleep(seconds)
    write("ended", ctx.run.metadata["fire_time"], ctx.run.id)


worker = WorkflowWorker(
    [scheduled],
    store=ValkeyStore(VALKEY, namespace=NAMESPACE, shards=2),
    options=WorkerOptions(claim_poll_interval=0.02, lease_seconds=1, heartbeat_interval=0.2, drain_timeout=2),
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(relativeCreated)d %(levelname)s %(message)s")
    asyncio.run(worker.run())
