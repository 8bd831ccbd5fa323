"""What flow control costs on a Valkey of its own, and in memory: ``python -m benchmarks.flow_control [--runs N]``.

- *Blocked*: server time of a claim with no other run there, with N runs blocked on one key, with N keys over their
  limit (all but ten of them), and of a claim that finds nothing in each case. A ratio of about 1 means that what is
  blocked costs nothing.
- *Fairness*: an owner with N queued runs beside 50 owners with one each: with which claim each of the 50 has started.
- *Memory*: bytes of a blocked run.

Server time is that of EVALSHA by INFO commandstats, in memory it is this process's CPU time; medians of rounds, so that
other load on the machine shows less.
"""

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio

from pyrula.workflows import MemoryStore, ValkeyStore
from pyrula.workflows.stamps import LimitStamp, Stamp
from pyrula.workflows.store.messages import Change, End
from pyrula.workflows.store.runs import ClaimedRun, RunStore, Submission
from tests.services.valkey import ValkeyServer

SERVED = [("bench", "1")]
ROUNDS, CLAIMS, SMALL = 15, 40, 50

Clock = Callable[[], Awaitable[float]]


def stamp(key: str, most: int = 1) -> Stamp:
    return Stamp(limit=LimitStamp("tenant", key, most), place=(key,))


async def submit(store: RunStore, amount: int, key: Callable[[int], str | None], owner: str = "") -> None:
    async def one(number: int) -> None:
        chosen = key(number)
        gate = None if chosen is None else stamp(chosen)
        run_id = store.new_run_id(name="bench", stamp=gate)
        await store.submit(Submission(run_id, "bench", version="1", owner=owner, stamp=gate))

    for first in range(0, amount, 1_000):
        await asyncio.gather(*(one(number) for number in range(first, min(amount, first + 1_000))))


async def claim(store: RunStore, n: int) -> tuple[ClaimedRun, ...]:
    return (await store.claim("w", SERVED, n)).runs


async def finish(store: RunStore, runs: tuple[ClaimedRun, ...]) -> None:
    for run in runs:
        await store.finish(run.lease, Change(1), End("completed"))


async def claims_cost(stores: Sequence[RunStore], clock: Clock) -> list[tuple[float, float]]:
    """Of each store, microseconds of a claim of one fresh run without gates, and of one that finds nothing. They take
    turns, so that what else the machine does is the same for all."""
    found: list[list[float]] = [[] for _ in stores]
    empty: list[list[float]] = [[] for _ in stores]
    for _ in range(ROUNDS):
        for place, store in enumerate(stores):
            await submit(store, CLAIMS, lambda _: None, owner="fresh")
            runs: tuple[ClaimedRun, ...] = ()
            before = await clock()
            for _ in range(CLAIMS):
                runs += await claim(store, 1)
            found[place].append((await clock() - before) / CLAIMS)
            assert len(runs) == CLAIMS
            await finish(store, runs)
            before = await clock()
            for _ in range(CLAIMS):
                assert not await claim(store, 1)
            empty[place].append((await clock() - before) / CLAIMS)
    return [(statistics.median(full), statistics.median(none)) for full, none in zip(found, empty, strict=True)]


async def fill(store: RunStore, amount: int) -> None:
    """All behind one full gate."""
    await submit(store, 1, lambda _: "k")
    assert len(await claim(store, 1)) == 1
    await submit(store, amount, lambda _: "k")


async def fill_each(store: RunStore, amount: int) -> None:
    """As many full gates, and one waiting at each, but for ten."""
    await submit(store, amount, lambda number: f"k{number}")
    taken = 0
    while taken < amount:
        taken += len(await claim(store, 1_000))
    await submit(store, amount - 10, lambda number: f"k{number}")


async def blocked(name: str, make: Callable[[], RunStore], clock: Clock, amount: int, size: Clock | None) -> None:
    stores = [make() for _ in range(3)]
    for store in stores:
        await store.open()
    sizes = []
    for store, filled in zip(stores[1:], (fill, fill_each), strict=True):
        before = 0.0 if size is None else await size()
        await filled(store, amount)
        sizes.append("" if size is None else f", {(await size() - before) / amount:.0f} bytes a run")
    alone, *costs = await claims_cost(stores, clock)
    print(f"{name}: none blocked: {alone[0]:.0f} µs a claim of one, {alone[1]:.0f} µs one that finds nothing")
    for what, cost, told in zip(("blocked on one key", "keys over their limit"), costs, sizes, strict=True):
        print(
            f"{name}: {amount:,} {what}: {cost[0]:.0f} µs ({cost[0] / alone[0]:.2f} x), "
            f"{cost[1]:.0f} µs ({cost[1] / alone[1]:.2f} x){told}"
        )
    for store in stores:
        await store.close()


async def fairness(name: str, store: RunStore, amount: int) -> None:
    await store.open()
    await submit(store, amount, lambda _: None, owner="big")
    for number in range(SMALL):
        await submit(store, 1, lambda _: None, owner=f"small{number}")
    started, claims = 0, 0
    while started < SMALL:
        claims += 1
        started += sum(run.owner != "big" for run in await claim(store, 1))
    print(f"{name}: {SMALL} owners of one run each beside one of {amount:,}: all have started with claim {claims}")
    await store.close()


async def measure(url: str, amount: int) -> None:
    server = redis.asyncio.from_url(url.replace("valkey://", "redis://", 1), protocol=2)

    async def server_time() -> float:
        told: dict[str, Any] = (await server.info("commandstats")).get("cmdstat_evalsha", {"usec": 0})
        return float(told["usec"])

    async def memory() -> float:
        return float((await server.info("memory"))["used_memory"])

    async def here() -> float:
        return time.process_time() * 1e6

    def on_server() -> RunStore:
        return ValkeyStore(url, namespace=uuid.uuid4().hex[:8], shards=1)

    await blocked("Valkey", on_server, server_time, amount, memory)
    await server.flushall(asynchronous=False)
    await fairness("Valkey, 16 shards", ValkeyStore(url, namespace=uuid.uuid4().hex[:8]), amount)
    await server.aclose()
    await blocked("memory", MemoryStore, here, amount, None)
    await fairness("memory", MemoryStore(), amount)


def main() -> None:
    parser = argparse.ArgumentParser(description="What flow control costs.")
    parser.add_argument("--runs", type=int, default=100_000)
    arguments = parser.parse_args()
    with ValkeyServer() as server:
        asyncio.run(measure(server.url, arguments.runs))


if __name__ == "__main__":
    main()
