"""A worker or a sender of events: ``gathering.py VALKEY NAMESPACE LOG``. Each body writes what its batch holds.

ROLE=sender sends EVENTS events to KEYS keys as SENDER, each under an id, so that it may be killed and begin again.
ROLE=bound feeds each record of TOPIC at the broker KAFKA.
"""

import asyncio
import json
import logging
import os
import sys
from typing import Any

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Collect, Context, Debounce, ValkeyStore, WorkerOptions, WorkflowClient, WorkflowWorker
from pyrula.workflows import workflow as declared

VALKEY, NAMESPACE, LOG = sys.argv[1:4]
MAX_EVENTS, WINDOW = int(os.environ.get("MAX_EVENTS", "20")), float(os.environ.get("WINDOW", "2"))
IN_FLIGHT = int(os.environ.get("IN_FLIGHT", "500"))


def write(**fields: Any) -> None:
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(fields).encode() + b"\n")
    os.close(file)


def tell(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
    batch = ctx.run.metadata["batch"]
    write(run=ctx.run.id, key=key, count=count, events=[[event["sender"], event["n"]] for event in events], **batch)


@declared(name="gathered", trigger=Collect(key="key", max_events=MAX_EVENTS, window_seconds=WINDOW))
async def gathered(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
    tell(ctx, key, events, count)


@declared(name="quietened", trigger=Debounce(key="key", window_seconds=WINDOW, max_wait_seconds=5 * WINDOW))
async def quietened(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
    tell(ctx, key, events, count)


@declared(name="feeding")
async def feeding(ctx: Context, event: dict[str, Any]) -> None:
    await ctx.trigger(gathered, event)


async def feed() -> None:
    topic = os.environ["TOPIC"]
    options = KafkaOptions(
        bootstrap_servers=os.environ["KAFKA"], session_timeout=6, heartbeat_interval=0.5, drain_timeout=1
    )
    await KafkaWorker(
        [Binding(feeding, topic=topic, group=topic, max_concurrency=16)],
        store=ValkeyStore(VALKEY, namespace=NAMESPACE),
        kafka=options,
    ).run()


async def send() -> None:
    sender, events, keys = int(os.environ["SENDER"]), int(os.environ["EVENTS"]), int(os.environ["KEYS"])
    name, pause = os.environ.get("NAME", "gathered"), float(os.environ.get("PAUSE", "0"))
    async with WorkflowClient(ValkeyStore(VALKEY, namespace=NAMESPACE)) as client:
        for first in range(0, events, IN_FLIGHT):
            await asyncio.gather(
                *(
                    client.trigger(
                        name,
                        {"key": f"k{number % keys}", "sender": sender, "n": number},
                        event_id=f"{sender}.{number}",
                    )
                    for number in range(first, min(events, first + IN_FLIGHT))
                )
            )
            await asyncio.sleep(pause)
    print(f"sent {events}")


async def main() -> None:
    if os.environ.get("ROLE") == "sender":
        await send()
    elif os.environ.get("ROLE") == "bound":
        await feed()
    else:
        print("working")
        options = WorkerOptions(lease_seconds=2, drain_timeout=2)
        await WorkflowWorker(
            [gathered, quietened], store=ValkeyStore(VALKEY, namespace=NAMESPACE), options=options
        ).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(relativeCreated)d %(levelname)s %(message)s")
    asyncio.run(main())
