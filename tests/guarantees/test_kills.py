"""Workers killed at random: nothing is lost, keys keep their order, what was journaled doesn't run again."""

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.guarantees.observers import completed, out_of_order, overlapping, read_lines, repeated_steps
from tests.services.process import WorkerProcess
from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until

PROGRAM = Path(__file__).parent / "programs" / "counting.py"
RECORDS, PARTITIONS, KEYS, KILLS, CONCURRENCY = 2_000, 6, 97, 5, 16


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_killed_five_times(
    kafka: str, valkey: str, topic_prefix: str, namespace: str, tmp_path: Path, workers: int
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topics = Topics(kafka)
    topic = f"{topic_prefix}-kills"
    topics.create(topic, f"{topic}.{topic}.dlq", partitions=PARTITIONS)
    topics.produce(topic, (Message(f"k{i % KEYS}".encode(), b'{"n": %d}' % i) for i in range(RECORDS)))
    log = tmp_path / "steps.txt"
    env = {"CONCURRENCY": str(CONCURRENCY), "LONGEST_STEP": "0.03"}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(WorkerProcess(PROGRAM, kafka, valkey, namespace, topic, str(log), env=env))
            for _ in range(workers)
        ]
        for kill in range(KILLS):
            # Somewhere in the middle of the work, not while it starts or after it ended.
            goal = RECORDS * (kill + 1) // (KILLS + 2) - rng.randrange(RECORDS // 20)
            wait_until(
                lambda goal=goal: len(completed(read_lines(log))) >= goal,
                description=f"{goal} records before kill {kill + 1}",
                timeout=240,
            )
            time.sleep(rng.random() * 0.1)
            victim = rng.choice(processes)
            victim.kill()
            victim.start()
        topics.wait_committed(topic, topic, timeout=240)
    lines = read_lines(log)
    ends = topics.ends(topic)
    assert completed(lines) == {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    assert out_of_order(lines) == []
    assert overlapping(lines) == []
    again = repeated_steps(lines)
    assert sum(again.values()) <= KILLS * CONCURRENCY, again
    assert topics.read(f"{topic}.{topic}.dlq") == []
