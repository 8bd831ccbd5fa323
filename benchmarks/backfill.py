"""Backfills beside live traffic: ``python -m benchmarks.backfill [--records N]``.

Two things are measured, on servers of their own. How fast 200,000 records of 12 partitions go through a backfill that
runs alone, with an empty body and with one journaled step; each end of the range lies between records, by time. And
what a backfill at its default concurrency does to live records of the same binding in the same worker: the time from a
record's being sent to its body's end, in turn without the backfill and with it, in one run. The ratio counts.
"""

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Self

from aiokafka import AIOKafkaProducer

from pyrula.kafka import Backfill, Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import BackfillClient, Context, ValkeyStore, WorkflowClient, step, workflow
from pyrula.workflows.codec import dumps
from tests.services.kafka import KafkaServer
from tests.services.topics import Message, Topics
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until_async

PARTITIONS, KEYS = 12, 1_000
LIVE_A_SECOND, SLICES, SLICE_SECONDS = 200, 5, 4.0
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


class Live:
    """Sends live records at a steady rate, and waits for what became of them."""

    def __init__(self, kafka: str, topic: str) -> None:
        self._topic = topic
        self._producer = AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=0)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def slice(self, seconds: float) -> list[float]:
        """How long each of the records took that were sent for so long."""
        took.clear()
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            for number in range(sent, int(passed * LIVE_A_SECOND)):
                value = dumps({"id": number, "sent": time.time()})
                await self._producer.send(self._topic, value, key=f"k{number % KEYS}".encode())
                sent += 1
            await asyncio.sleep(0.002)
        await wait_until_async(lambda: len(took) >= sent, description="the live records to be done", timeout=60)
        return list(took)


def told(name: str, times: list[float]) -> float:
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(
        f"{name:>14}: p50 {statistics.median(times) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
        f"most {times[-1] * 1000:.1f} ms ({len(times)} records)"
    )
    return p99


@workflow(name="quick")
async def quick(ctx: Context, value: dict[str, Any]) -> None:
    """Nothing but processor time."""
    if "sent" in value:
        took.append(time.time() - value["sent"])


async def beside(kafka: str, valkey: str, topics: Topics, archive: str, body: Any) -> None:
    """Live records of a binding in slices of time, in turn without and with a backfill of the same binding over the
    archive, which is paused in between: what else the machine does meanwhile hits both alike."""
    topic = f"live-{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(topics.create, topic, f"{topic}.live.dlq", partitions=4)
    namespace = uuid.uuid4().hex[:12]
    store, client = (ValkeyStore(valkey, namespace=namespace) for _ in range(2))
    binding = Binding(body, topic=topic, group="live", dead_letter_topic=f"{topic}.live.dlq")
    worker = KafkaWorker([binding], store=store, kafka=KafkaOptions(bootstrap_servers=kafka, fetch_max_wait=0.05))
    running = asyncio.create_task(worker.run())
    without: list[float] = []
    during: list[float] = []
    ran, seconds = 0, 0.0
    try:
        await wait_until_async(lambda: worker.health().state != "starting", description="the worker", timeout=60)
        async with Live(kafka, topic) as live, WorkflowClient(client) as asked:
            await live.slice(3)
            backfills = asked.backfills
            await backfills.start(body, archive, backfill_id="archive", group="live")
            for _ in range(SLICES):
                await backfills.pause("archive")
                await until_held(backfills, held=False)
                without += await live.slice(SLICE_SECONDS)
                before = (await backfills.resume("archive")).completed
                await until_held(backfills, held=True)
                began = time.monotonic()
                during += await live.slice(SLICE_SECONDS)
                ran += (await backfills.status("archive")).completed - before
                seconds += time.monotonic() - began
            report = await backfills.status("archive")
            assert report.status == "running", f"the archive is too small: {report}"
    finally:
        worker.stop()
        await asyncio.wait([running])
    print(f"live records of {body.name!r}, {LIVE_A_SECOND} a second")
    ratio = told("with backfill", during) / told("without", without)
    print(f"     p99 ratio: {ratio:.2f}; the backfill ran {ran / seconds:,.0f} records/s meanwhile")


async def until_held(backfills: BackfillClient, *, held: bool) -> None:
    """Until a worker has partitions of it, or none."""

    async def look() -> bool:
        report = await backfills.status("archive")
        return any(one.worker for one in report.partitions) is held

    await wait_until_async(look, description="the backfill to go on or to let go", timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--only", choices=["alone", "beside"])
    arguments = parser.parse_args()
    count = arguments.records // PARTITIONS * PARTITIONS
    with KafkaServer() as kafka, ValkeyServer(appendonly=True) as valkey:
        topics = Topics(kafka.bootstrap)
        archive = f"archive-{uuid.uuid4().hex[:8]}"
        topics.create(archive, partitions=PARTITIONS)
        topics.produce(archive, (record(number) for number in range(count)))
        parts: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: alone(kafka.bootstrap, valkey.url, archive, count, empty),
            lambda: alone(kafka.bootstrap, valkey.url, archive, count, one),
        ]
        if arguments.only == "beside":
            parts.clear()
        if arguments.only != "alone":
            parts.append(lambda: beside(kafka.bootstrap, valkey.url, topics, archive, order))
            parts.append(lambda: beside(kafka.bootstrap, valkey.url, topics, archive, quick))
        for part in parts:
            asyncio.run(part())


if __name__ == "__main__":
    main()
