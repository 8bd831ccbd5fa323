"""Backfills beside live traffic: ``python -m benchmarks.backfill [--records N]``.

Two things are measured, on servers of their own. How fast 200,000 records of 12 partitions go through a backfill that
runs alone, with an empty body and with one journaled step; each end of the range lies between records, by time. And
what a backfill at its default concurrency does to live records of the same binding in the same worker: the time from a
record's being sent to its body's start and to its end, without the backfill and with it, in one run. The ratio counts.
"""

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaProducer

from pyrula.kafka import Backfill, Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, ValkeyStore, step, workflow
from pyrula.workflows.codec import dumps
from tests.services.kafka import KafkaServer
from tests.services.topics import Message, Topics
from tests.services.valkey import ValkeyServer

PARTITIONS, KEYS = 12, 1_000
LIVE_A_SECOND, LIVE_SECONDS = 200, 12.0
T0 = 1_700_000_000_000

# How long each live record took, in seconds, while somebody looks.
took: list[float] = []


@step
async def echo(number: int) -> int:
    return number


@workflow(name="empty")
async def empty(ctx: Context, value: dict[str, Any]) -> None:
    pass


@workflow(name="one")
async def one(ctx: Context, value: dict[str, Any]) -> None:
    await ctx.step(echo, value["id"])


@workflow(name="order")
async def order(ctx: Context, value: dict[str, Any]) -> None:
    """What is common: read something, decide, write something."""
    await asyncio.sleep(0.002)
    await ctx.step(echo, value["id"])
    await asyncio.sleep(0.002)
    if "sent" in value:
        took.append(time.time() - value["sent"])


def record(number: int) -> Message:
    value = dumps({"id": number, "pad": "x" * 150})
    partition = number % PARTITIONS
    # a second apart in each partition, so that a time can lie between two
    at = T0 + number // PARTITIONS * 1000
    return Message(f"k{number % KEYS}".encode(), value, partition=partition, timestamp_ms=at)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(T0 / 1000 + seconds, UTC)


async def alone(kafka: str, valkey: str, topic: str, count: int, body: Any) -> None:
    """The whole topic but for the first and the last record of each partition, by times between them."""
    store = ValkeyStore(valkey, namespace=uuid.uuid4().hex[:12])
    binding = Binding(body, topic=topic, group="nobody")
    worker = KafkaWorker([binding], store=store, kafka=KafkaOptions(bootstrap_servers=kafka))
    each = count // PARTITIONS
    backfill = Backfill(binding, start=moment(0.5), end=moment(each - 1.5), max_concurrency=64)
    began, processor = time.monotonic(), time.process_time()
    report = await worker.backfill(backfill)
    seconds, own = time.monotonic() - began, time.process_time() - processor
    assert report.completed == report.read == PARTITIONS * (each - 2), report
    print(
        f"{body.name:>8}: {report.completed:,} records in {seconds:.1f} s: {report.completed / seconds:,.0f}/s, "
        f"{report.completed / own:,.0f} per second of processor time"
    )


async def live(kafka: str, topic: str, seconds: float) -> list[float]:
    """Send live records at a steady rate; how long each took."""
    took.clear()
    producer = AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=0)
    await producer.start()
    try:
        began, sent = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            due = int((time.monotonic() - began) * LIVE_A_SECOND)
            for number in range(sent, due):
                value = dumps({"id": number, "sent": time.time()})
                await producer.send(topic, value, key=f"k{number % KEYS}".encode())
            sent = max(sent, due)
            await asyncio.sleep(0.002)
        await producer.flush()
        while len(took) < sent:
            await asyncio.sleep(0.01)
    finally:
        await producer.stop()
    return sorted(took)


def told(name: str, times: list[float]) -> float:
    p99 = times[int(len(times) * 0.99)]
    print(
        f"{name:>14}: p50 {statistics.median(times) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
        f"most {times[-1] * 1000:.1f} ms ({len(times)} records)"
    )
    return p99


async def beside(kafka: str, valkey: str, topics: Topics, archive: str) -> None:
    """Live records of a binding, and a backfill of the same one over the archive meanwhile."""
    topic = f"live-{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(topics.create, topic, partitions=4)
    store = ValkeyStore(valkey, namespace=uuid.uuid4().hex[:12])
    binding = Binding(order, topic=topic, group="live")
    worker = KafkaWorker([binding], store=store, kafka=KafkaOptions(bootstrap_servers=kafka, fetch_max_wait=0.05))
    running = asyncio.create_task(worker.run())
    try:
        while worker.health().state == "starting":
            await asyncio.sleep(0.05)
        await live(kafka, topic, 3)
        before = told("without", await live(kafka, topic, LIVE_SECONDS))
        done: list[int] = []
        backfill = asyncio.create_task(
            worker.backfill(Backfill(binding, archive), on_progress=lambda report: done.append(report.completed))
        )
        while not done or not done[-1]:
            await asyncio.sleep(0.05)
        first, began = done[-1], time.monotonic()
        during = told("with backfill", await live(kafka, topic, LIVE_SECONDS))
        rate = (done[-1] - first) / (time.monotonic() - began)
        print(f"     p99 ratio: {during / before:.2f}; the backfill ran {rate:,.0f} records/s meanwhile")
        assert not backfill.done(), "the archive is too small: the backfill ended before the measurement"
        backfill.cancel()
    finally:
        worker.stop()
        await asyncio.wait([running])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000)
    count = parser.parse_args().records // PARTITIONS * PARTITIONS
    with KafkaServer() as kafka, ValkeyServer(appendonly=True) as valkey:
        topics = Topics(kafka.bootstrap)
        archive = f"archive-{uuid.uuid4().hex[:8]}"
        topics.create(archive, partitions=PARTITIONS)
        topics.produce(archive, (record(number) for number in range(count)))
        parts: list[Callable[[], Awaitable[None]]] = [
            lambda: alone(kafka.bootstrap, valkey.url, archive, count, empty),
            lambda: alone(kafka.bootstrap, valkey.url, archive, count, one),
            lambda: beside(kafka.bootstrap, valkey.url, topics, archive),
        ]
        for part in parts:
            asyncio.run(part())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
