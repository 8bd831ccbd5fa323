"""Each event is in one batch, in order, and each batch is one run, whoever is killed meanwhile."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.guarantees.members import SOAK
from tests.services.process import WorkerProcess
from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until

PROGRAM = Path(__file__).parent / "programs" / "gathering.py"
SENDERS, KEYS, MAX_EVENTS = 8, 1_000, 7
EVENTS = (100_000 if SOAK else 20_000) // SENDERS
# what a machine that is busy with other things may take longer than the promise of one second
NOISE = 5.0 if SOAK else 30.0

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def batches(log: Path) -> list[dict[str, Any]]:
    """Every batch once, in the order in which those of a key were opened. A run whose worker was killed as it ended
    writes the same again."""
    found: dict[str, dict[str, Any]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        batch = json.loads(line)
        assert found.setdefault(batch["run"], batch) == batch
    return sorted(found.values(), key=lambda batch: datetime.fromisoformat(batch["opened_at"]))


def started(run_id: str) -> float:
    """When its run was made, by the store's clock."""
    number = 0
    for letter in run_id.partition("-")[2][:10]:
        number = number * 32 + _ALPHABET.index(letter)
    return number / 1000


def late(batch: dict[str, Any], window: float) -> float:
    return started(batch["run"]) - datetime.fromisoformat(batch["opened_at"]).timestamp() - window


def check_each_once_and_in_order(
    found: list[dict[str, Any]], events: int, *, keys: int, senders: int = SENDERS
) -> None:
    counted = Counter((sender, number) for batch in found for sender, number in batch["events"])
    assert counted == dict.fromkeys(((sender, number) for sender in range(senders) for number in range(events)), 1)
    last: dict[tuple[str, int], int] = {}
    for batch in found:
        assert batch["count"] == len(batch["events"])
        for sender, number in batch["events"]:
            assert batch["key"] == f"k{number % keys}"
            assert last.get((batch["key"], sender), -1) < number
            last[batch["key"], sender] = number


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Crowd:
    """Workers and senders as processes."""

    def __init__(self, stack: ExitStack, valkey: str, namespace: str, log: Path, **env: object) -> None:
        self._stack = stack
        self._arguments = (valkey, namespace, str(log))
        self._env = {name: str(value) for name, value in env.items()}
        self.log = log

    def worker(self) -> WorkerProcess:
        return self._stack.enter_context(WorkerProcess(PROGRAM, *self._arguments, env=self._env))

    def bound(self, kafka: str, topic: str) -> WorkerProcess:
        env = {"ROLE": "bound", "KAFKA": kafka, "TOPIC": topic, **self._env}
        return self._stack.enter_context(WorkerProcess(PROGRAM, *self._arguments, env=env))

    def senders(self, events: int, keys: int, **env: object) -> list[WorkerProcess]:
        told = {"ROLE": "sender", "EVENTS": events, "KEYS": keys, **self._env, **env}
        return [
            self._stack.enter_context(
                WorkerProcess(
                    PROGRAM,
                    *self._arguments,
                    env={name: str(value) for name, value in {**told, "SENDER": number}.items()},
                )
            )
            for number in range(SENDERS)
        ]

    def wait(self, events: int, timeout: float) -> list[dict[str, Any]]:
        def all_are_there() -> bool:
            return sum(batch["count"] for batch in batches(self.log)) >= events

        wait_until(all_are_there, description=f"{events} events in batches", timeout=timeout, interval=0.2)
        # what was fed twice would come now
        time.sleep(1.5)
        return batches(self.log)


def test_events_of_eight_senders_are_in_one_batch_each_and_in_order(
    stack: ExitStack, valkey: str, namespace: str, tmp_path: Path
) -> None:
    dice = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    crowd = Crowd(stack, valkey, namespace, tmp_path / "batches.txt", WINDOW=6, MAX_EVENTS=MAX_EVENTS)
    workers = [crowd.worker() for _ in range(2)]
    began = time.monotonic()
    senders = crowd.senders(EVENTS, KEYS)
    for victim in (dice.choice(workers), dice.choice(senders), dice.choice(workers), dice.choice(senders)):
        time.sleep(dice.uniform(0.3, 1.0))
        if victim.running:
            victim.kill()
            victim.start()
    for sender in senders:
        sender.wait_for_line("^sent ", timeout=240)
    sent = time.monotonic() - began
    found = crowd.wait(SENDERS * EVENTS, timeout=240)
    assert max(batch["count"] for batch in found) <= MAX_EVENTS
    check_each_once_and_in_order(found, EVENTS, keys=KEYS)
    reasons = Counter(batch["reason"] for batch in found)
    print(f"{SENDERS * EVENTS} events in {sent:.1f} s, {len(found)} batches: {dict(reasons)}")
    assert reasons.keys() == {"max_events", "window"}


@pytest.mark.parametrize("name", ["gathered", "quietened"])
def test_windows_close_once_while_workers_are_killed(
    stack: ExitStack, valkey: str, namespace: str, tmp_path: Path, name: str
) -> None:
    dice = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    window, keys, rounds = 0.5, 40, 100 if SOAK else 12
    events = keys * rounds
    crowd = Crowd(stack, valkey, namespace, tmp_path / "batches.txt", WINDOW=window, MAX_EVENTS=10_000)
    workers = [crowd.worker() for _ in range(3)]
    for worker in workers:
        worker.wait_for_line("^working", timeout=240)
    # one round of keys after the other, so that windows close all the time
    senders = crowd.senders(events, keys, NAME=name, IN_FLIGHT=keys, PAUSE=0.6)
    kills = 0
    while kills < 3 or any(sender.running for sender in senders):
        victim = dice.choice(workers)
        lines = len(victim.lines)
        victim.kill()
        victim.start()
        kills += 1
        # two of three are there at all times
        victim.wait_for_line("^working", timeout=240, after=lines)
        time.sleep(dice.uniform(0.05, 0.4))
    for sender in senders:
        sender.wait_for_line("^sent ")
    found = crowd.wait(SENDERS * events, timeout=240)
    check_each_once_and_in_order(found, events, keys=keys)
    worst = max(late(batch, window) for batch in found) if name == "gathered" else 0.0
    print(f"{kills} workers killed, {len(found)} batches, the latest {worst:.3f} s after its window")
    assert worst < 1 + NOISE


def test_records_are_in_one_batch_each_while_the_workers_of_their_topic_are_killed(
    stack: ExitStack, kafka: str, valkey: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    dice = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    records, keys, kills = 2_000, 50, 5
    topics, topic = Topics(kafka), f"{topic_prefix}-fed"
    topics.create(topic, f"{topic}.{topic}.dlq", partitions=4)
    topics.produce(
        topic,
        (
            Message(f"k{n % keys}".encode(), json.dumps({"key": f"k{n % keys}", "sender": 0, "n": n}).encode())
            for n in range(records)
        ),
    )
    crowd = Crowd(stack, valkey, namespace, tmp_path / "batches.txt", WINDOW=1, MAX_EVENTS=7)
    crowd.worker()
    bound = [crowd.bound(kafka, topic) for _ in range(2)]

    def fed() -> int:
        return sum(batch["count"] for batch in batches(crowd.log))

    for kill in range(kills):
        goal = records * (kill + 1) // (kills + 2) - dice.randrange(records // 20)
        wait_until(lambda goal=goal: fed() >= goal, description=f"{goal} records before kill {kill + 1}", timeout=240)
        victim = dice.choice(bound)
        victim.kill()
        victim.start()
    topics.wait_committed(topic, topic, timeout=240)
    found = crowd.wait(records, timeout=240)
    check_each_once_and_in_order(found, records, keys=keys, senders=1)
    assert topics.read(f"{topic}.{topic}.dlq") == []
