"""What submitted runs cost on Valkey, beside a bare pipeline in the same run: ``python -m benchmarks.store``.

The server is one of its own, without an append-only file; the worker is a process of its own. Beside rates stands
processor time, which suffers less from whatever else uses the machine. Parts: ``speed`` (runs per second of one worker,
and of a bare pipeline of as many commands), ``claims`` (the server's time for a claim with few and many queued),
``latency`` (from submit to start on an idle worker), ``memory`` (of a queued and of an ended run), ``growth`` (keys and
memory when 100,000 runs have outlived their retention; takes minutes). Without a name all but ``growth``.
"""

import argparse
import asyncio
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import redis.asyncio

from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowClient, WorkflowWorker, step, workflow
from pyrula.workflows.store.messages import Change, End
from pyrula.workflows.store.runs import Submission
from tests.services.process import WorkerProcess
from tests.services.valkey import ValkeyServer

RUNS, AT_ONCE = 4_000, 200


@step
async def echo(number: int) -> int:
    return number


@workflow(name="bench_empty")
async def empty(ctx: Context, number: int) -> float:
    return time.monotonic()


@workflow(name="bench_three")
async def three(ctx: Context, number: int) -> float:
    for _ in range(3):
        number = await ctx.step(echo, number)
    return time.monotonic()


class Bench:
    """The server, and what it says of itself."""

    def __init__(self, server: ValkeyServer) -> None:
        self.url = server.url
        self.server: Any = redis.asyncio.Redis(port=server.port, protocol=2)

    def store(self, namespace: str, shards: int = 16) -> ValkeyStore:
        return ValkeyStore(self.url, namespace=namespace, shards=shards)

    async def executed(self) -> int:
        """Commands so far, those inside scripts too."""
        stats = await self.server.info("commandstats")
        return sum(int(told["calls"]) for name, told in stats.items() if name != "cmdstat_evalsha")

    async def cpu(self) -> float:
        """Seconds of processor time of the server so far."""
        told = await self.server.info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

    async def used(self) -> int:
        return int((await self.server.info("memory"))["used_memory"])

    async def emptied(self) -> None:
        await self.server.execute_command("FLUSHALL", "SYNC")


async def at_once(call: Callable[[int], Awaitable[object]], count: int) -> None:
    """So many calls, AT_ONCE of them under way."""
    numbers = iter(range(count))

    async def line() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(line() for _ in range(AT_ONCE)))


async def bare(bench: Bench, commands: int) -> tuple[float, float, float]:
    """So many small HSETs as pipelines of AT_ONCE on one connection: seconds, processor time here and of the server."""
    connection = bench.server.connection_pool.make_connection()
    await connection.connect()
    field = b"*4\r\n$4\r\nHSET\r\n$4\r\nbare\r\n$1\r\n%d\r\n$60\r\n%b\r\n"
    packed = [field % (number % 10, b"x" * 60) for number in range(AT_ONCE)]
    begun, ours, theirs = time.perf_counter(), time.process_time(), await bench.cpu()
    for _ in range(-(-commands // AT_ONCE)):
        await connection.send_packed_command(packed, check_health=False)
        for _ in packed:
            await connection.read_response()
    found = time.perf_counter() - begun, time.process_time() - ours, await bench.cpu() - theirs
    await connection.disconnect()
    return found


async def speed(bench: Bench) -> None:
    print(f"speed: {RUNS} runs, {AT_ONCE} submitted at once; microseconds are of processor time, for a run")
    for body in (empty, three):
        namespace = uuid.uuid4().hex[:8]
        async with WorkflowClient(bench.store(namespace)) as client:
            executed, cpu, ours = await bench.executed(), await bench.cpu(), time.process_time()
            begun = time.perf_counter()
            await at_once(lambda number: client.submit(body, {"number": number}), RUNS)  # noqa: B023
            submitted, ours = time.perf_counter() - begun, time.process_time() - ours
            with WorkerProcess(Path(__file__), "worker", bench.url, namespace) as worker:
                worker.wait_for_line("ready")
                process = psutil.Process(worker.pid)
                before, begun = sum(process.cpu_times()[:2]), time.perf_counter()
                while (await client.counts()).unfinished:  # noqa: ASYNC110 - there is no event for all of them
                    await asyncio.sleep(0.1)
                worked, theirs = time.perf_counter() - begun, sum(process.cpu_times()[:2]) - before
            commands, cpu = await bench.executed() - executed, await bench.cpu() - cpu
        seconds, bare_ours, bare_cpu = await bare(bench, commands)
        whole, bare_whole = ours + theirs + cpu, bare_ours + bare_cpu
        print(
            f"  {body.name:<12} submit {RUNS / submitted:6.0f}/s  claim to end {RUNS / worked:6.0f}/s  both "
            f"{RUNS / (submitted + worked):6.0f}/s;  client {ours / RUNS * 1e6:.0f} us, "
            f"worker {theirs / RUNS * 1e6:.0f} us, server {cpu / RUNS * 1e6:.0f} us\n"
            f"    as many bare HSETs ({commands / RUNS:.0f} a run): {RUNS / seconds:6.0f} runs' worth a second; "
            f"{bare_ours / RUNS * 1e6:.0f} us here, server {bare_cpu / RUNS * 1e6:.0f} us; "
            f"ratio of processor time {bare_whole / whole:.2f}, of the server's {bare_cpu / cpu:.2f}"
        )
        await bench.emptied()


async def claims(bench: Bench) -> None:
    print("claims: the server's processor time for a claimed run, one shard, 50 owners, best of 5 rounds, microseconds")
    found: dict[int, list[float]] = {1: [], 10: [], 100: []}
    for queued in (100, 10_000, 100_000):
        store = bench.store(uuid.uuid4().hex[:8], shards=1)
        await store.open()

        async def submit(number: int, store: ValkeyStore = store) -> None:
            owner = f"o{number % 50}"
            await store.submit(Submission(store.new_run_id(name="q"), "q", version="1", owner=owner))

        await at_once(submit, queued)
        for n, costs in found.items():
            costs.append(min([await _claim_cost(bench, store, n) for _ in range(5)]))
        await store.close()
        await bench.emptied()
    for n, costs in found.items():
        told = " / ".join(f"{one:.0f}" for one in costs)
        print(f"  {n:>3} at once: {told} with 100 / 10,000 / 100,000 queued; {costs[2] / costs[1]:.2f} of 10,000's")


async def _claim_cost(bench: Bench, store: ValkeyStore, n: int) -> float:
    """Of one of 100 runs, claimed in `100 // n` claims and then given back."""
    leases = []
    before = await bench.cpu()
    for _ in range(100 // n):
        leases += [run.lease for run in (await store.claim("w", [("q", "1")], n)).runs]
    cost = (await bench.cpu() - before) / len(leases) * 1e6
    await asyncio.gather(*(store.release(lease) for lease in leases))
    return cost


async def latency(bench: Bench) -> None:
    namespace = uuid.uuid4().hex[:8]
    found = []
    async with WorkflowClient(bench.store(namespace)) as client:
        with WorkerProcess(Path(__file__), "worker", bench.url, namespace) as worker:
            worker.wait_for_line("ready")
            await (await client.submit(empty, {"number": 0})).result(timeout=20)
            for number in range(400):
                # the worker has gone to sleep
                await asyncio.sleep(0.01)
                begun = time.monotonic()
                run = await client.submit(empty, {"number": number})
                found.append(await run.result(timeout=20) - begun)
    found.sort()
    print(
        f"latency: submit to start on an idle worker: p50 {found[200] * 1e3:.1f} ms, p99 {found[395] * 1e3:.1f} ms, "
        f"most {found[-1] * 1e3:.1f} ms (it polls each second)"
    )
    await bench.emptied()


async def memory(bench: Bench, count: int = 20_000) -> None:
    store = bench.store(uuid.uuid4().hex[:8])
    await store.open()
    before = await bench.used()

    async def submit(number: int) -> None:
        await store.submit(Submission(store.new_run_id(name="q"), "q", version="1", owner=f"o{number % 50}"))

    await at_once(submit, count)
    queued = await bench.used()
    await _end_all(store)
    ended = await bench.used()
    print(
        f"memory: {(queued - before) / count:.0f} bytes a queued run, {(ended - before) / count:.0f} an ended one "
        "(2 bytes of params, an owner, a result of 4 bytes, no steps)"
    )
    await store.close()
    await bench.emptied()


async def _end_all(store: ValkeyStore) -> None:
    while runs := (await store.claim("w", [("q", "1")], 500)).runs:
        await asyncio.gather(*(store.finish(run.lease, Change(1), End("completed", b"true")) for run in runs))
    await store.leave("w")


async def growth(bench: Bench, count: int = 100_000) -> None:
    store = bench.store(uuid.uuid4().hex[:8])
    await store.open()
    # nobody waits a week
    store._runs.retention = 20.0  # noqa: SLF001
    before_keys, before = await bench.server.dbsize(), await bench.used()

    async def submit(number: int) -> None:
        key = f"k{number}"
        run_id = store.new_run_id(name="q", idempotency_key=key)
        await store.submit(Submission(run_id, "q", version="1", owner=f"o{number % 50}", idempotency_key=key))

    most = 0
    for _ in range(10):
        await at_once(submit, count // 10)
        most = max(most, await bench.server.dbsize())
        await _end_all(store)
    keys = await bench.server.dbsize()
    begun = time.monotonic()
    while time.monotonic() - begun < 60 and await bench.server.dbsize() > before_keys + 16:
        await asyncio.sleep(0.5)
        await store.claim("w", [("nothing", "1")], 1)
    await store.leave("w")
    left = [key.decode() async for key in bench.server.scan_iter(count=1000)]
    print(
        f"growth: {count} runs; keys before {before_keys}, most {most}, after the last end {keys}, after their "
        f"retention {len(left)}: {sorted({name.rpartition('}')[2] for name in left})}; "
        f"{(await bench.used() - before) / 1e6:.1f} MB more than before"
    )
    await store.close()


async def work(url: str, namespace: str) -> None:
    worker = WorkflowWorker([empty, three], store=ValkeyStore(url, namespace=namespace), options=WorkerOptions())
    print("ready", flush=True)
    await worker.run()


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "speed": speed,
    "claims": claims,
    "latency": latency,
    "memory": memory,
    "growth": growth,
}


async def measure(names: Sequence[str]) -> None:
    with ValkeyServer() as server:
        bench = Bench(server)
        for name in names:
            await PARTS[name](bench)
        await bench.server.aclose()


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2], sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description="What submitted runs cost on Valkey.")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="all but growth")
    names = parser.parse_args().part or [name for name in PARTS if name != "growth"]
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    asyncio.run(measure(names))


if __name__ == "__main__":
    main()
