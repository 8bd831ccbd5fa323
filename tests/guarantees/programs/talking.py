"""A worker whose records are talked to: ``talking.py KAFKA VALKEY NAMESPACE TOPIC``, group and topic of one name.

A record's run collects what updates add until a signal says that it is enough. A step before and one after each wait is
journaled, so that a replay has something to meet. With HANDS_OVER=1 runs that wait are handed over although the server
promises no disk. LOG is a file for lines ``<key> <offset> begin|end``.
"""

import asyncio
import logging
import os
import sys

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker, Record
from pyrula.workflows import Context, ValkeyStore, step, workflow

KAFKA, VALKEY, NAMESPACE, TOPIC = sys.argv[1:5]


@step
async def work(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


if os.environ.get("HANDS_OVER") == "1":
    ValkeyStore.hands_over = True  # type: ignore[method-assign, assignment]
log = os.open(os.environ.get("LOG", os.devnull), os.O_CREAT | os.O_APPEND | os.O_WRONLY)


@step
async def tell(record: str, what: str) -> None:
    os.write(log, f"{record} {what}\n".encode())


@workflow(name="talking")
async def talking(ctx: Context, record: Record[str]) -> list[str]:
    items: list[str] = []
    name = f"{(record.key or b'-').decode()} {record.offset}"

    async def add(sku: str) -> int:
        await ctx.step(work, 1)
        items.append(sku)
        number = len(items)
        await ctx.step(work, 2)
        return number

    ctx.on_update("add", add)
    ctx.on_query("items", lambda: items)
    await ctx.step(tell, name, "begin")
    rounds = await ctx.wait_for_signal("rounds")
    for number in range(rounds):
        items.append(await ctx.wait_for_signal("more"))
        await ctx.step(work, number)
    await ctx.step(tell, name, "end")
    return items


worker = KafkaWorker(
    bindings=[Binding(talking, topic=TOPIC, group=TOPIC, max_concurrency=int(os.environ.get("CONCURRENCY", "4")))],
    store=ValkeyStore(url=VALKEY, namespace=NAMESPACE),
    kafka=KafkaOptions(
        bootstrap_servers=KAFKA,
        session_timeout=6,
        heartbeat_interval=0.5,
        drain_timeout=2,
        commit_interval=0.2,
        fetch_max_wait=0.1,
    ),
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(relativeCreated)d %(levelname)s %(message)s")
    asyncio.run(worker.run())
