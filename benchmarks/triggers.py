"""Triggers on a Valkey of their own: ``python -m benchmarks.triggers [--events N]``.

- *Feeding*: N events over 1,000 keys from 8 clients in one process, until all are taken; the time a script takes.
- *Closing*: 10,000 windows that fall due at the same moment, until one worker has made runs of all.
- *Looking*: what a look of the trigger loop costs with 0, 10,000 and 100,000 open windows of which none is due.
- *Memory*: bytes of a key with one open event, and of an id that is kept.
"""

import argparse
import asyncio
import time
import uuid
from typing import Any

import redis.asyncio

from pyrula.workflows import Collect, Context, SystemClock, ValkeyStore, WorkflowClient, workflow
from pyrula.workflows.worker.served import Served
from pyrula.workflows.worker.triggers import Triggers
from tests.services.valkey import ValkeyServer

CLIENTS, KEYS, IN_FLIGHT = 8, 1_000, 500


@workflow(name="bench_digest", trigger=Collect(key="user", max_events=50, window_seconds=3600))
async def digest(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None: ...


@workflow(name="bench_windows", trigger=Collect(key="user", max_events=50, window_seconds=30))
async def windows(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None: ...


@workflow(name="bench_open", trigger=Collect(key="user", max_events=50, window_seconds=86_400))
async def opened(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None: ...


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.server: Any = redis.asyncio.from_url(url.replace("valkey://", "redis://", 1), protocol=2)

    def store(self, namespace: str) -> ValkeyStore:
        return ValkeyStore(self.url, namespace=namespace)

    async def script_microseconds(self) -> tuple[int, float]:
        """How many scripts ran, and how long they took."""
        told = (await self.server.info("commandstats")).get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return int(told["calls"]), float(told["usec"])

    async def memory(self) -> int:
        return int((await self.server.info("memory"))["used_memory"])

    async def empty(self) -> None:
        await self.server.execute_command("FLUSHALL", "SYNC")

    async def feed(self, clients: list[WorkflowClient], name: Any, events: int, keys: int, **more: Any) -> float:
        async def send(number: int) -> None:
            client = clients[number]
            for first in range(number, events, CLIENTS * IN_FLIGHT):
                await asyncio.gather(
                    *(
                        client.trigger(name, {"user": f"u{n % keys}", "n": n, "kind": "comment"}, **more)
                        for n in range(first, min(events, first + CLIENTS * IN_FLIGHT), CLIENTS)
                    )
                )

        began = time.perf_counter()
        await asyncio.gather(*(send(number) for number in range(len(clients))))
        return time.perf_counter() - began


async def measure(url: str, events: int) -> None:
    bench = Bench(url)
    clients = [WorkflowClient(bench.store(name := uuid.uuid4().hex[:8])) for _ in range(1)]
    clients += [WorkflowClient(bench.store(name)) for _ in range(CLIENTS - 1)]
    await bench.feed(clients, digest, 2_000, KEYS)
    calls, usec = await bench.script_microseconds()
    took = await bench.feed(clients, digest, events, KEYS)
    calls_after, usec_after = await bench.script_microseconds()
    per_script = (usec_after - usec) / (calls_after - calls)
    print(f"feeding: {events:,} events in {took:.1f} s, {events / took:,.0f}/s; {per_script:.0f} us a script")
    await bench.empty()

    for client in clients:
        await client.close()
    store = bench.store(uuid.uuid4().hex[:8])
    clients = [WorkflowClient(store)] * CLIENTS
    triggers = Triggers(store, Served([windows]), SystemClock(), poll_interval=1)
    await bench.feed(clients, windows, 10_000, 10_000)
    due = await store.due_batches(["bench_windows"])
    assert due.next_due is not None
    # windows that end one after the other, as they began, are all due by then
    await asyncio.sleep(max(0.0, due.next_due + 30 - store.now()))
    began, runs = time.perf_counter(), 0
    while made := await triggers.fire_due():
        runs += made
    print(f"closing: {runs:,} windows in {(took := time.perf_counter() - began):.1f} s, {runs / took:,.0f}/s")
    await bench.empty()

    looking = Triggers(store, Served([opened]), SystemClock(), poll_interval=1)
    for count in (0, 10_000, 100_000):
        before = await bench.memory()
        if count:
            await bench.feed(clients, opened, count, count)
        grown = await bench.memory() - before
        best = float("inf")
        for _ in range(20):
            began = time.perf_counter()
            assert await looking.fire_due() == 0
            best = min(best, time.perf_counter() - began)
        size = f"; {grown / count:.0f} bytes a key with one event, its id included" if count else ""
        print(f"looking: {best * 1000:.2f} ms with {count:,} open windows on 16 shards{size}")
        await bench.empty()
    await clients[0].close()
    await bench.server.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    arguments = parser.parse_args()
    with ValkeyServer() as server:
        asyncio.run(measure(server.url, arguments.events))


if __name__ == "__main__":
    main()
