"""What the replay core costs: microseconds a run and an operation, without store and broker.

    python -m benchmarks.engine [--rounds 7]

CPU time of the thread, so that other load shows less; best and median of interleaved rounds. "straight" is the path
of a body of one task, "tasks" the full machinery.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pyrula.workflows import Context, SystemClock, step, workflow
from pyrula.workflows.execution import Execution, install
from pyrula.workflows.replay.journal import Fields, Journal, encode_row

Case = Callable[[int], Awaitable[float]]


class Host:
    """Acknowledges everything at once; encodes rows if asked to, as a store would need them."""

    def __init__(self, encode: bool = False) -> None:
        self.encode = encode

    def append(self, run: Execution, index: int, entry: Fields | None) -> None:
        if self.encode and entry is not None:
            encode_row(entry, "1735689600000.5f3c8a2b.9d1e07c4")

    def durable(self, run: Execution) -> None:
        return None

    def record(self, run: Execution) -> None:
        return None


@step
async def charge(cents: int) -> str:
    return "ch_5"


@step
def in_thread(cents: int) -> str:
    return "ch_5"


@workflow(name="bench_empty")
async def empty(ctx: Context, value: int) -> None: ...


@workflow(name="bench_suspends")
async def suspends(ctx: Context, value: int) -> None:
    await asyncio.sleep(0)


@workflow(name="bench_one")
async def one(ctx: Context, value: int) -> None:
    await ctx.step(charge, value)


@workflow(name="bench_three")
async def three(ctx: Context, value: int) -> None:
    await ctx.step(charge, value)
    await ctx.step(charge, value)
    await ctx.step(charge, value)


@workflow(name="bench_instants")
async def instants(ctx: Context, value: int) -> None:
    await ctx.now()
    await ctx.random()
    await ctx.uuid()


@workflow(name="bench_send")
async def sends(ctx: Context, value: int) -> None:
    await ctx.send("topic", {"cents": value}, key="key")


@workflow(name="bench_thread")
async def threaded(ctx: Context, value: int) -> None:
    await ctx.step(in_thread, value)


@workflow(name="bench_gather")
async def gathers(ctx: Context, value: int) -> None:
    await asyncio.gather(*(ctx.step(charge, value) for _ in range(10)))


@workflow(name="bench_many")
async def many(ctx: Context, value: int) -> None:
    for _ in range(100):
        await ctx.step(charge, value)


@workflow(name="bench_many_tasks")
async def many_with_tasks(ctx: Context, value: int) -> None:
    await asyncio.create_task(asyncio.sleep(0))
    for _ in range(100):
        await ctx.step(charge, value)


CLOCK = SystemClock()


async def timed(definition: Any, count: int, host: Host, rows: list[tuple[int, bytes]] | None = None) -> float:
    """CPU seconds for `count` runs after another."""
    began = time.thread_time()
    for number in range(count):
        journal = None if rows is None else Journal.load(rows)
        await Execution(definition, "00-bench", host, (number,), None, journal=journal, clock=CLOCK).run()
    return time.thread_time() - began


async def side_by_side(definition: Any, count: int, host: Host, lanes: int) -> float:
    """CPU seconds for `count` runs, `lanes` at a time."""

    async def lane() -> None:
        for number in range(count // lanes):
            await Execution(definition, "00-bench", host, (number,), None, clock=CLOCK).run()

    began = time.thread_time()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    return time.thread_time() - began


def cases() -> list[tuple[str, int, float, Case]]:
    """Name, runs a round, operations a run, and what to time."""
    plain, encoding = Host(), Host(encode=True)
    return [
        ("empty body, a run", 20_000, 1, lambda n: timed(empty, n, plain)),
        ("body that suspends once, a run", 10_000, 1, lambda n: timed(suspends, n, plain)),
        ("one step, a run", 10_000, 1, lambda n: timed(one, n, plain)),
        ("one step with its row encoded, a run", 10_000, 1, lambda n: timed(one, n, encoding)),
        ("three steps, a step", 5_000, 3, lambda n: timed(three, n, plain)),
        ("a hundred steps straight, a step", 200, 100, lambda n: timed(many, n, plain)),
        ("now, random and uuid, each", 5_000, 3, lambda n: timed(instants, n, plain)),
        ("one message, a run", 10_000, 1, lambda n: timed(sends, n, plain)),
        ("one step in a thread, a run", 2_000, 1, lambda n: timed(threaded, n, plain)),
        ("a hundred steps with tasks, a step", 50, 100, lambda n: timed(many_with_tasks, n, plain)),
        ("gather of ten steps, a step", 300, 10, lambda n: timed(gathers, n, plain)),
        ("gather of ten, 100 runs at once, a step", 500, 10, lambda n: side_by_side(gathers, n, plain, 100)),
        ("a hundred with tasks, 100 runs, a step", 100, 100, lambda n: side_by_side(many_with_tasks, n, plain, 100)),
    ]


async def recorded(definition: Any) -> list[tuple[int, bytes]]:
    run = Execution(definition, "00-bench", Host(), (1,), None, clock=CLOCK)
    await run.run()
    assert run.journal is not None
    return run.journal.rows()


async def measure(rounds: int) -> None:
    install(asyncio.get_running_loop())
    todo = cases()
    for label, definition, count, each in (
        ("replay of three steps, a step", three, 2_000, 3),
        ("replay of a hundred steps straight, a step", many, 100, 100),
        ("replay of a hundred with tasks, a step", many_with_tasks, 50, 100),
        ("replay of a gather of ten, a step", gathers, 300, 10),
    ):
        rows = await recorded(definition)
        todo.append((label, count, each, lambda n, d=definition, r=rows: timed(d, n, Host(), r)))  # type: ignore[misc]
    figures: dict[str, list[float]] = {name: [] for name, *_ in todo}
    for _ in range(rounds):
        for name, runs, operations, case in todo:
            figures[name].append(await case(runs) / runs / operations * 1e6)
    print(f"{'microseconds':<46}{'best':>8}{'median':>8}")
    for name, values in figures.items():
        print(f"{name:<46}{min(values):>8.2f}{statistics.median(values):>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
