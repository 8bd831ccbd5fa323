"""Members that are ended, killed and frozen at random, for as long as PYRULA_SOAK says."""

import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.guarantees.members import SOAK, Members
from tests.guarantees.observers import done, out_of_order, repeated_steps, skipped
from tests.services.process import WorkerProcess

CONCURRENCY = 8


def start_again(worker: WorkerProcess) -> None:
    """Until it has joined it has no handler for SIGTERM yet."""
    before = len(worker.lines)
    worker.start().wait_for_line("joining group", after=before, timeout=40)


@pytest.mark.skipif(not SOAK, reason="PYRULA_SOAK=1 runs it")
def test_members_ended_killed_and_frozen_at_random(new_group: Callable[..., Members]) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    with new_group(partitions=8) as group:
        options = {"session_timeout": 6, "drain_timeout": 0.5, "commit_interval": 0.2}
        workers = [
            group.start("mixed", 0.3, options=options, binding={"max_concurrency": CONCURRENCY}) for _ in range(3)
        ]
        group.wait_assigned(*workers)
        history: list[dict[int, int]] = []
        watched = threading.Event()

        def watch() -> None:
            while not watched.wait(0.3):
                history.append(group.committed())

        watcher = threading.Thread(target=watch)
        watcher.start()
        until = time.monotonic() + 150
        interrupted = 0
        try:
            with group.load(60, keys=100):
                while time.monotonic() < until:
                    worker = rng.choice(workers)
                    action = rng.choice(["end", "kill", "freeze"])
                    if action == "end":
                        worker.terminate()
                        assert worker.wait() == 0, worker.tail()
                        start_again(worker)
                    elif action == "kill":
                        interrupted += 1
                        worker.kill()
                        start_again(worker)
                    else:
                        interrupted += 1
                        worker.freeze()
                        time.sleep(rng.uniform(0.5, 9))
                        worker.wake()
                    time.sleep(rng.uniform(0, 3))
            group.wait_drained(timeout=120)
        finally:
            watched.set()
            watcher.join()
        assert all(worker.running for worker in workers)
        lines = group.lines
        assert set(done(lines)) == group.records
        assert out_of_order(lines) == []
        assert skipped(lines) == []
        for before, after in pairwise(history):
            assert all(after.get(partition, 0) >= offset for partition, offset in before.items()), (before, after)
        cut = {(line.run, line.step) for line in lines if line.what == "cut"}
        again = {name: times for name, times in repeated_steps(lines).items() if name not in cut}
        assert sum(again.values()) <= interrupted * CONCURRENCY, again
