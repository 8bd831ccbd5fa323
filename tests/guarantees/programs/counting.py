"""A worker whose steps count themselves in a file outside the store: ``counting.py KAFKA VALKEY NAMESPACE TOPIC LOG``.

A line is written as a step starts and as it ends: run id, key, step, pid, start or end, monotonic time.
"""

import asyncio
import os
import random
import sys
import time

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker, Record
from pyrula.workflows import Context, ValkeyStore, step, workflow

KAFKA, VALKEY, NAMESPACE, TOPIC, LOG = sys.argv[1:6]
CONCURRENCY = int(os.environ.get("CONCURRENCY", "16"))
LONGEST = float(os.environ.get("LONGEST_STEP", "0.01"))

log = os.open(LOG, os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def note(run: str, key: str, number: int, what: str) -> None:
    os.write(log, f"{run} {key} {number} {os.getpid()} {what} {time.monotonic():.6f}\n".encode())


@step
async def count(run: str, key: str, number: int) -> tuple[str, int]:
    note(run, key, number, "start")
    await asyncio.sleep(random.random() * LONGEST)
    note(run, key, number, "end")
    return run, number


@workflow(name="counting")
async def counting(ctx: Context, record: Record[dict]) -> None:
    key = (record.key or b"").decode()
    for number in (1, 2, 3):
        value = await ctx.step(count, ctx.run.id, key, number)
        assert value == (ctx.run.id, number), value
        assert type(value) is tuple


worker = KafkaWorker(
    bindings=[Binding(counting, topic=TOPIC, group=TOPIC, max_concurrency=CONCURRENCY)],
    store=ValkeyStore(url=VALKEY, namespace=NAMESPACE),
    kafka=KafkaOptions(
        bootstrap_servers=KAFKA,
        session_timeout=float(os.environ.get("SESSION_TIMEOUT", "6")),
        heartbeat_interval=1,
        drain_timeout=float(os.environ.get("DRAIN_TIMEOUT", "5")),
        fetch_max_wait=0.1,
    ),
)

if __name__ == "__main__":
    asyncio.run(worker.run())
