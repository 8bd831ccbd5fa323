"""Backfills that workers share while they are killed at random, frozen, and cut off, beside live records.

Each record of the range is completed, none outside it is touched, keys keep their order, journaled steps aren't
repeated, and the live group gets on with its own.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from pyrula.kafka.record import stream_digest
from pyrula.workflows import BackfillClient, BackfillReport, ValkeyStore, WorkflowClient
from tests.guarantees.members import SOAK, Members
from tests.guarantees.observers import Line, completed, out_of_order, overlapping, repeated_steps
from tests.services.topics import Message
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until

T = TypeVar("T")

WORKERS, KILLS, PARTITIONS, KEYS, CONCURRENCY = 3, 10, 12, 97, 16
RECORDS = 30_000 if SOAK else 3_600
LOW, HIGH = 20, RECORDS // PARTITIONS - 20
# The members' default: so long a dead worker's partitions wait for the others.
OPTIONS = {"session_timeout": 6, "heartbeat_interval": 0.5, "drain_timeout": 1}


class Client:
    """What a client asks, each time by a loop and a store of its own."""

    def __init__(self, valkey: str, namespace: str) -> None:
        self._store = valkey, namespace

    def ask(self, question: Callable[[BackfillClient], Awaitable[T]]) -> T:
        async def ask() -> T:
            url, namespace = self._store
            async with WorkflowClient(ValkeyStore(url, namespace=namespace)) as client:
                return await question(client.backfills)

        return asyncio.run(ask())

    def start(self, topic: str, **options: Any) -> None:
        self.ask(lambda backfills: backfills.start("member", topic, backfill_id="archive", **options))

    def report(self) -> BackfillReport:
        return self.ask(lambda backfills: backfills.status("archive"))

    def wait(self, reached: Callable[[BackfillReport], bool], description: str) -> BackfillReport:
        def look() -> BackfillReport | None:
            report = self.report()
            return report if reached(report) else None

        found = wait_until(look, description=description, timeout=240, interval=0.1)
        assert found is not None
        return found


def holding(report: BackfillReport) -> Counter[str]:
    """How many partitions each worker has."""
    return Counter(one.worker for one in report.partitions if one.worker is not None)


def lines_of(group: Members, topic: str) -> list[Line]:
    """Those of the backfill, by partition: a key is in several here, and has an order in each."""
    digest = f"-k{stream_digest('default', 'backfill:archive', topic)}-"
    return [line._replace(key=f"{line.partition}/{line.key}") for line in group.lines if digest in line.run]


def test_three_workers_killed_ten_times(
    new_group: Callable[..., Members], valkey: str, namespace: str, topic_prefix: str
) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    topic = f"{topic_prefix}-archive"
    client = Client(valkey, namespace)
    with new_group(partitions=6) as group:
        group.topics.create(topic, partitions=PARTITIONS)
        group.topics.produce(
            topic,
            # one key after the other would have each partition's keys come in one order
            (Message(f"k{rng.randrange(KEYS)}".encode(), b"{}", partition=n % PARTITIONS) for n in range(RECORDS)),
        )
        workers = [group.start("steps", 0.1, options=OPTIONS) for _ in range(WORKERS)]
        group.wait_assigned(*workers)
        client.start(topic, start=LOW, end=HIGH, max_concurrency=CONCURRENCY)
        with group.load(40, keys=30):
            for kill in range(KILLS):
                goal = PARTITIONS * (HIGH - LOW) * (kill + 1) // (KILLS + 2)
                client.wait(lambda report, goal=goal: report.completed >= goal, f"{goal} records")
                time.sleep(rng.random() * 0.3)
                victim = rng.choice(workers)
                victim.kill()
                victim.start()
            found = client.wait(lambda report: report.over, "the backfill to be over")
        group.wait_drained()
        of_backfill, live = lines_of(group, topic), group.records
        runs = {line.run for line in of_backfill}
        of_live = [line for line in group.lines if line.run not in runs]
    assert completed(of_backfill) == {(one, offset) for one in range(PARTITIONS) for offset in range(LOW, HIGH)}
    assert {(line.partition, line.offset) for line in of_backfill} == completed(of_backfill)
    assert (found.status, found.problem) == ("completed", "")
    in_range = PARTITIONS * (HIGH - LOW)
    assert (found.read, found.matched, found.completed, found.failed) == (in_range, in_range, in_range, 0)
    assert out_of_order(of_backfill) == []
    assert overlapping(of_backfill) == []
    again = repeated_steps(of_backfill)
    assert sum(again.values()) <= KILLS * CONCURRENCY, again
    assert completed(of_live) == live
    assert out_of_order(of_live) == []


def test_a_frozen_worker_and_a_silent_store(kafka: str, topic_prefix: str, namespace: str, tmp_path: Path) -> None:
    """A worker that slept through its lease finds its partitions taken, and starts nothing more of them. While the
    store doesn't answer nothing new starts for long, and all goes on when it is back."""
    topic, records = f"{topic_prefix}-archive", 1_200
    with (
        ValkeyServer(appendonly=True) as store,
        Members(kafka, store.url, f"{topic_prefix}-in", namespace, tmp_path / "steps.txt", partitions=2) as group,
    ):
        client = Client(store.url, namespace)
        group.topics.create(topic, partitions=6)
        group.topics.produce(topic, (Message(f"k{n % KEYS}".encode(), b"{}", partition=n % 6) for n in range(records)))
        workers = [group.start("steps", 0.15, options=OPTIONS) for _ in range(2)]
        group.wait_assigned(*workers)
        client.start(topic, max_concurrency=8)
        at_work = client.wait(
            lambda report: report.completed >= records // 10 and len(holding(report)) == 2, "both to be at work"
        )
        # a worker has four partitions at most, so the one that has fewer has room for another
        most = max(holding(at_work).items(), key=lambda held: held[1])[0]
        frozen, other = sorted(workers, key=lambda worker: f"-{worker.pid}-" not in most)
        frozen.freeze()
        other.wait_for_line("is dead; partition", timeout=240)
        frozen.wake()
        frozen.wait_for_line("was taken over by another worker", timeout=240)
        before = client.wait(lambda report: report.completed >= records // 3, "it to go on")
        assert not before.over
        os.kill(store.pid, signal.SIGSTOP)
        time.sleep(OPTIONS["session_timeout"] + 3)
        os.kill(store.pid, signal.SIGCONT)
        found = client.wait(lambda report: report.over, "the backfill to be over")
        assert frozen.running, frozen.tail()
        assert other.running, other.tail()
        lines = lines_of(group, topic)
        told = "\n".join([*frozen.lines, *other.lines])
    assert "Traceback" not in told
    assert (found.status, found.read, found.completed, found.failed) == ("completed", records, records, 0)
    assert completed(lines) == {(one, offset) for one in range(6) for offset in range(records // 6)}
    assert out_of_order(lines) == []
    # what was in progress when the worker froze ran again elsewhere; what was when the store fell silent, at most once
    again = repeated_steps(lines)
    assert sum(again.values()) <= 8 + 2 * 8, again
