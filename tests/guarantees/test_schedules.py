"""A fire time starts one run, also when the workers that fire it are killed at just that time."""

import asyncio
import random
import time
from collections import defaultdict
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from pyrula.workflows import Every, ValkeyStore, WorkflowClient
from tests.guarantees.members import SOAK
from tests.services.process import WorkerProcess
from tests.services.waiting import wait_until

PROGRAM = Path(__file__).parent / "programs" / "scheduled.py"
SECONDS = 60 if SOAK else 9


def told(log: Path, kind: str) -> dict[str, set[str]]:
    """Run ids by fire time."""
    runs: dict[str, set[str]] = defaultdict(set)
    for line in log.read_text().splitlines() if log.exists() else ():
        what, fire_time, run_id = line.split()
        if what == kind:
            runs[fire_time].add(run_id)
    return runs


async def unfinished(valkey: str, namespace: str) -> int:
    async with WorkflowClient(ValkeyStore(valkey, namespace=namespace, shards=2)) as client:
        return (await client.counts()).unfinished


async def change(valkey: str, namespace: str, verb: str, **options: object) -> None:
    async with WorkflowClient(ValkeyStore(valkey, namespace=namespace, shards=2)) as client:
        if verb == "create":
            await client.schedules.create("s", "scheduled", trigger=Every(1), **options)  # type: ignore[arg-type]
        else:
            await client.schedules.pause("s")


def killed_at_fire_times(workers: list[WorkerProcess], dice: random.Random) -> None:
    """Around each full second one or two of them die, and are started again."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        # a little before, at, or a little after it
        left = 1.0 - time.time() % 1.0 + dice.uniform(-0.01, 0.06)
        time.sleep(max(0.0, left))
        victims = dice.sample(workers, dice.choice((1, 2)))
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start()


def run_schedule(valkey: str, namespace: str, log: Path, least: int, **options: object) -> dict[str, set[str]]:
    """Workers live and die with a schedule of each second. All that were begun, so many at least, once they have
    ended."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(PROGRAM, valkey, namespace, str(log))) for _ in range(3)]
        asyncio.run(change(valkey, namespace, "create", **options))
        wait_until(lambda: told(log, "begun"), description="the first fire")
        killed_at_fire_times(workers, random.Random(seed))
        goal = max(least, len(told(log, "begun")) + 1)
        wait_until(lambda: len(told(log, "begun")) >= goal, description="a fire after the last death")
        asyncio.run(change(valkey, namespace, "pause"))
        # one that was claimed by a worker that died may begin after later ones
        wait_until(lambda: not asyncio.run(unfinished(valkey, namespace)), description="all runs to end", interval=0.2)
        assert told(log, "ended") == told(log, "begun")
        return told(log, "begun")


def test_a_fire_time_starts_one_run_while_workers_are_killed(valkey: str, namespace: str, tmp_path: Path) -> None:
    begun = run_schedule(valkey, namespace, tmp_path / "log", SECONDS, catch_up="all", overlap="allow")
    assert [len(runs) for runs in begun.values()] == [1] * len(begun)
    # and none is left out
    times = sorted(datetime.fromisoformat(text).timestamp() for text in begun)
    assert {later - earlier for earlier, later in pairwise(times)} == {1.0}


def test_runs_that_must_not_overlap_do_not_while_workers_are_killed(
    valkey: str, namespace: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    begun = run_schedule(valkey, namespace, log, 1, params={"seconds": 1.3})
    assert [len(runs) for runs in begun.values()] == [1] * len(begun)
    running: set[str] = set()
    for line in log.read_text().splitlines():
        what, fire_time, _ = line.split()
        (running.add if what == "begun" else running.discard)(fire_time)
        assert len(running) <= 1, log.read_text()
