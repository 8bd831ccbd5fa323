"""A backfill that three workers share while they are killed at random, beside live records of the same workflow.

Each record of the range is completed, none outside it is touched, keys keep their order, journaled steps aren't
repeated, and the live group gets on with its own.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pyrula.kafka.record import stream_digest
from pyrula.workflows import BackfillReport, ValkeyStore, WorkflowClient
from tests.guarantees.members import SOAK, Members
from tests.guarantees.observers import completed, out_of_order, overlapping, repeated_steps
from tests.services.topics import Message
from tests.services.waiting import wait_until

T = TypeVar("T")

WORKERS, KILLS, PARTITIONS, KEYS, CONCURRENCY = 3, 10, 12, 97, 16
RECORDS = 30_000 if SOAK else 3_600
LOW, HIGH = 20, RECORDS // PARTITIONS - 20
# The members' default: so long a dead worker's partitions wait for the others.
OPTIONS = {"session_timeout": 6, "heartbeat_interval": 0.5, "drain_timeout": 1}


def test_three_workers_killed_ten_times(
    new_group: Callable[..., Members], valkey: str, namespace: str, topic_prefix: str
) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    topic = f"{topic_prefix}-archive"

    def asked(question: Callable[[WorkflowClient], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with WorkflowClient(ValkeyStore(valkey, namespace=namespace)) as client:
                return await question(client)

        return asyncio.run(ask())

    def report() -> BackfillReport:
        return asked(lambda client: client.backfills.status("archive"))

    with new_group(partitions=6) as group:
        group.topics.create(topic, partitions=PARTITIONS)
        group.topics.produce(
            topic,
            # one key after the other would have each partition's keys come in one order
            (Message(f"k{rng.randrange(KEYS)}".encode(), b"{}", partition=n % PARTITIONS) for n in range(RECORDS)),
        )
        workers = [group.start("steps", 0.1, options=OPTIONS) for _ in range(WORKERS)]
        group.wait_assigned(*workers)
        asked(
            lambda client: client.backfills.start(
                "member", topic, backfill_id="archive", start=LOW, end=HIGH, max_concurrency=CONCURRENCY
            )
        )
        with group.load(40, keys=30):
            for kill in range(KILLS):
                goal = PARTITIONS * (HIGH - LOW) * (kill + 1) // (KILLS + 2)
                wait_until(lambda goal=goal: report().completed >= goal, description=f"{goal} records", timeout=120)
                time.sleep(rng.random() * 0.3)
                victim = rng.choice(workers)
                victim.kill()
                victim.start()
            wait_until(lambda: report().over, description="the backfill to be over", timeout=120)
        group.wait_drained()
        found = report()
        lines = group.lines
        live = group.records
    print(f"{KILLS} kills, {found.finished_at - found.started_at if found.finished_at and found.started_at else ''}")
    digest = stream_digest("default", "backfill:archive", topic)
    of_backfill = [line for line in lines if f"-k{digest}-" in line.run]
    assert completed(of_backfill) == {(one, offset) for one in range(PARTITIONS) for offset in range(LOW, HIGH)}
    assert {(line.partition, line.offset) for line in of_backfill} == completed(of_backfill)
    assert (found.status, found.problem) == ("completed", "")
    in_range = PARTITIONS * (HIGH - LOW)
    assert (found.read, found.matched, found.completed, found.failed) == (in_range, in_range, in_range, 0)
    assert out_of_order(by_partition(of_backfill)) == []
    assert overlapping(by_partition(of_backfill)) == []
    again = repeated_steps(of_backfill)
    assert sum(again.values()) <= KILLS * CONCURRENCY, again
    of_live = [line for line in lines if f"-k{digest}-" not in line.run]
    assert completed(of_live) == live
    assert out_of_order(of_live) == []


def by_partition(lines: list[T]) -> list[T]:
    """A key is in several partitions here, and has an order in each."""
    return [line._replace(key=f"{line.partition}/{line.key}") for line in lines]  # type: ignore[attr-defined]
