"""Records per second, beside aiokafka's bare loops in the same run: ``python -m benchmarks.throughput``.

The worker has one core to itself, Kafka and Valkey the other. What counts is the ratio: machines differ, and one
machine differs from minute to minute, so the contenders take turns and every round has bare loops of its own.
The topic is filled beforehand; a rate is measured over some seconds after a warm-up. Beside each rate stands that per
second of the contender's own processor time, which doesn't suffer from whatever else uses the core.

Three bare loops, all decoding JSON and committing once a second. "getmany" takes 2,000 records at a time and does
nothing else: the ceiling. "counted" does what a loop has to that knows how far it is: the same, and per record it
counts and reads the clock. "async for" takes one record at a time, as most programs do.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, MemoryStore, ValkeyStore, step, workflow
from pyrula.workflows.codec import dumps, loads
from tests.services.kafka import KafkaServer
from tests.services.topics import Message, Topics
from tests.services.valkey import ValkeyServer

PARTITIONS, KEYS, SIZE = 4, 1_000, 200
WARM_UP, SPAN = 1.0, 3.0
PEERS = ("getmany", "counted", "async for")
CONTENDERS = ("empty", "1 step", "3 steps", "await 10 ms")


@step
async def echo(number: int) -> int:
    return number


@workflow(name="empty")
async def empty(ctx: Context, value: dict[str, Any]) -> None:
    pass


@workflow(name="one")
async def one(ctx: Context, value: dict[str, Any]) -> None:
    await ctx.step(echo, value["id"])


@workflow(name="three")
async def three(ctx: Context, value: dict[str, Any]) -> None:
    number = await ctx.step(echo, value["id"])
    number = await ctx.step(echo, number)
    await ctx.step(echo, number)


@workflow(name="waiting")
async def waiting(ctx: Context, value: dict[str, Any]) -> None:
    await asyncio.sleep(0.01)


BODIES = {"empty": empty, "1 step": one, "3 steps": three, "await 10 ms": waiting}


def record(number: int) -> bytes:
    """200 bytes of JSON."""
    text = dumps({"id": number, "key": f"k{number % KEYS:04d}", "at": 1.5, "pad": ""})
    return text[:-2] + b"x" * (SIZE - len(text)) + b'"}'


class Span:
    """Rate from its making to `end`, per second and per second of processor time."""

    def __init__(self, count: int) -> None:
        self._count, self._clock, self.begun = count, time.process_time(), time.monotonic()

    def end(self, count: int) -> tuple[float, float]:
        done = count - self._count
        return done / (time.monotonic() - self.begun), done / (time.process_time() - self._clock)


class Meter:
    """Of a bare loop: its rate from the end of the warm-up on."""

    def __init__(self) -> None:
        self.seen = 0
        self._begun = 0.0
        self._span: Span | None = None
        self.rates: tuple[float, float] | None = None

    def add(self, records: int) -> None:
        self.seen += records
        now = time.monotonic()
        if self._span is None:
            if not self._begun:
                self._begun = now
            elif now - self._begun > WARM_UP:
                self._span = Span(self.seen)
        elif self.rates is None and now - self._span.begun > SPAN:
            self.rates = self._span.end(self.seen)


async def bare(bootstrap: str, topic: str, peer: str) -> tuple[float, float]:
    """What can be done with the client alone."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=uuid.uuid4().hex, auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    await consumer.start()
    meter = Meter()
    looping = asyncio.create_task(one_by_one(consumer, meter) if peer == "async for" else many(consumer, meter, peer))
    try:
        while meter.rates is None:
            done, _ = await asyncio.wait([looping], timeout=1)
            if done:
                looping.result()
                break
        assert meter.rates is not None
        return meter.rates
    finally:
        looping.cancel()
        await asyncio.wait([looping])
        await consumer.stop()


async def many(consumer: AIOKafkaConsumer, meter: Meter, peer: str) -> None:
    committed = time.monotonic()
    while meter.rates is None:
        batch = await consumer.getmany(timeout_ms=200, max_records=2_000)
        if not batch and meter.seen:
            raise SystemExit(f"the topic's {meter.seen:,} records were too few: --records")
        for messages in batch.values():
            if peer == "counted":
                for message in messages:
                    loads(message.value)["id"]
                    meter.add(1)
            else:
                for message in messages:
                    loads(message.value)["id"]
                meter.add(len(messages))
        if time.monotonic() - committed > 1:
            committed = time.monotonic()
            await consumer.commit()


async def one_by_one(consumer: AIOKafkaConsumer, meter: Meter) -> None:
    committed = time.monotonic()
    async for message in consumer:
        loads(message.value)["id"]
        meter.add(1)
        if time.monotonic() - committed > 1:
            committed = time.monotonic()
            await consumer.commit()
        if meter.rates is not None:
            return


async def worker(bootstrap: str, topic: str, valkey: str, body: str, concurrency: int) -> tuple[float, float]:
    """The same through a KafkaWorker in key order."""
    store = MemoryStore() if body in ("empty", "await 10 ms") else ValkeyStore(valkey, namespace=uuid.uuid4().hex[:8])
    running = KafkaWorker(
        Binding(BODIES[body], topic=topic, group=uuid.uuid4().hex, max_concurrency=concurrency),
        store=store,
        kafka=KafkaOptions(bootstrap_servers=bootstrap, drain_timeout=1),
    )
    task = asyncio.create_task(running.run())

    async def completed() -> int:
        await asyncio.sleep(0.05)
        if task.done():
            task.result()
        return sum(stats.completed for stats in running.stats())

    while not await completed():
        pass
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP:
        await completed()
    span = Span(await completed())
    while time.monotonic() - span.begun < SPAN:
        await completed()
    rates = span.end(await completed())
    running.stop()
    await task
    return rates


def child(contender: str, bootstrap: str, topic: str, valkey: str, concurrency: int) -> None:
    os.sched_setaffinity(0, {0})
    if contender in PEERS:
        rates = asyncio.run(bare(bootstrap, topic, contender))
    else:
        rates = asyncio.run(worker(bootstrap, topic, valkey, contender, concurrency))
    print(*rates)


def measure(contender: str, *arguments: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.throughput", "--child", contender, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{contender}: {done.stderr[-2000:]}")
    rate, per_cpu_second = done.stdout.split()[-2:]
    return float(rate), float(per_cpu_second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=3_000_000, help="records in the topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compression", choices=("none", "lz4"), default="lz4", help="of the topic's batches")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    options = parser.parse_args()
    if options.child:
        contender, bootstrap, topic, valkey, concurrency = options.child
        child(contender, bootstrap, topic, valkey, int(concurrency))
        return
    with KafkaServer(heap_mb=768) as kafka, ValkeyServer(appendonly=True) as valkey:
        topic = "records"
        topics = Topics(kafka.bootstrap)
        topics.create(topic, f"{topic}.dlq", partitions=PARTITIONS)
        print(
            f"filling {topic!r} with {options.records:,} records of {SIZE} bytes, {KEYS:,} keys, "
            f"{PARTITIONS} partitions"
        )
        messages = (Message(f"k{i % KEYS:04d}".encode(), record(i)) for i in range(options.records))
        topics.produce(topic, messages, **{"compression.type": options.compression, "linger.ms": 20})
        for pid in (kafka.pid, valkey.pid):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {1})
        rates: dict[str, list[tuple[float, float]]] = {contender: [] for contender in (*PEERS, *options.only)}
        for _ in range(options.rounds):
            for contender in rates:
                rates[contender].append(
                    measure(contender, kafka.bootstrap, topic, valkey.url, str(options.concurrency))
                )
    load = os.getloadavg()[0]
    print(f"\nload average {load:.1f} on {os.cpu_count()} cores; the ratios are to the bare loops of the same round")
    heads = "".join(f"{'of ' + peer:>14}" for peer in PEERS)
    print(f"{'':12}{'records/s (min to max)':>33}{heads}{'per CPU s':>12}{heads}")
    for contender, found in rates.items():
        walls, cpus = zip(*found, strict=True)
        peers = [tuple(zip(*rates[peer], strict=True)) for peer in PEERS]
        spread = f"{statistics.median(walls):,.0f} ({min(walls):,.0f} to {max(walls):,.0f})"
        print(
            f"{contender:12}{spread:>33}",
            *(f"{ratio(walls, base_walls):>14.3f}" for base_walls, _ in peers),
            f"{statistics.median(cpus):>12,.0f}",
            *(f"{ratio(cpus, base_cpus):>14.3f}" for _, base_cpus in peers),
            sep="",
        )


def ratio(mine: Sequence[float], base: Sequence[float]) -> float:
    """The median of the rounds' ratios: a round's contenders ran one after the other."""
    return statistics.median(one / other for one, other in zip(mine, base, strict=True))


if __name__ == "__main__":
    main()
