"""A worker of runs with flow control: ``limited.py VALKEY NAMESPACE LOG``.

A body's step writes when it begins and when it ends, so that an outside counter sees who executes at once.
"""

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

from pyrula.workflows import Context, Limit, Retry, ValkeyStore, WorkerOptions, WorkflowWorker, step, workflow

VALKEY, NAMESPACE, LOG = sys.argv[1:4]
MAX = int(os.environ.get("MAX", "2"))


def write(**fields: Any) -> None:
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps({**fields, "pid": os.getpid(), "at": time.monotonic()}).encode() + b"\n")
    os.close(file)


@step
async def hold(key: str, run: str, seconds: float) -> None:
    write(what="in", key=key, run=run)
    try:
        await asyncio.sleep(seconds)
    finally:
        write(what="out", key=key, run=run)


@workflow(name="limited", concurrency=Limit("key", max=MAX), retry=Retry(max_attempts=2, initial=0.1))
async def limited(ctx: Context, key: str, kind: str, left: int = 1) -> None:
    await ctx.step(hold, key, ctx.run.id, 0.05)
    if kind == "fails" and ctx.run.attempt == 1:
        raise ConnectionError("once")
    if kind == "parks":
        await ctx.sleep(0.5)
    elif kind == "waits":
        await ctx.wait_for_signal("go")
    elif kind == "continues" and left:
        await ctx.continue_as_new({"key": key, "kind": kind, "left": left - 1})
    await ctx.step(hold, key, ctx.run.id, 0.1)


async def main() -> None:
    print("working")
    options = WorkerOptions(lease_seconds=6, drain_timeout=2, park_after=0.2)
    await WorkflowWorker([limited], store=ValkeyStore(VALKEY, namespace=NAMESPACE), options=options).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(relativeCreated)d %(levelname)s %(message)s")
    asyncio.run(main())
