"""One run, one holder: workers that were taken for dead and come back get nothing on record, and start nothing on it.

Each step's value names the execution that made it, and each step writes the value that it builds on when it starts. So
a worker that lost its run and went on would be seen: its next step builds on a value that is in no journal.
"""

import asyncio
import random
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from pyrula.workflows import RunHandle, ValkeyStore, WorkflowClient
from tests.guarantees.members import SOAK
from tests.services.process import WorkerProcess
from tests.services.waiting import wait_until

PROGRAM = Path(__file__).parent / "programs" / "holding.py"
RUNS, STEPS, WORKERS = (40, 400, 4) if SOAK else (8, 120, 3)


def frozen_and_killed(workers: list[WorkerProcess], dice: random.Random, going: Iterable[bool]) -> None:
    """For as long as there are runs: one is stopped for longer than its lease, or killed; the others go on."""
    for _ in going:
        victim = dice.choice(workers)
        if dice.random() < 0.6:
            victim.freeze()
            time.sleep(dice.uniform(1.0, 2.5))
            victim.wake()
        else:
            victim.kill()
            victim.start()
        time.sleep(dice.uniform(0.1, 0.5))


def test_a_worker_that_lost_a_run_builds_nothing_on_it(valkey: str, namespace: str, tmp_path: Path) -> None:
    log, seed = tmp_path / "log", random.randrange(2**32)
    print(f"seed {seed}")
    store = ValkeyStore(valkey, namespace=namespace, shards=2)

    async def submit() -> list[str]:
        async with WorkflowClient(store) as client:
            return [(await client.submit("holding", {"steps": STEPS})).run_id for _ in range(RUNS)]

    async def unfinished() -> int:
        async with WorkflowClient(store) as client:
            counts = await client.counts()
            return sum(number for status, number in counts.by_status.items() if status != "completed")

    async def results() -> dict[str, str]:
        async with WorkflowClient(store) as client:
            handles: list[RunHandle[str]] = [client.handle("holding", run_id) for run_id in runs]
            return {str(handle): await handle.result(timeout=240) for handle in handles}

    def taken_over() -> list[str]:
        return [line for worker in workers for line in worker.lines if " is dead: " in line]

    def going() -> Iterable[bool]:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if not asyncio.run(unfinished()):
                if taken_over():
                    return
                runs.extend(asyncio.run(submit()))  # nobody who was stopped held a run just then
            yield True

    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(PROGRAM, valkey, namespace, str(log))) for _ in range(WORKERS)]
        runs = asyncio.run(submit())
        wait_until(log.exists, description="the first step")
        frozen_and_killed(workers, random.Random(seed), going())
        ended = asyncio.run(results())
        assert taken_over()
    starts = [line.split() for line in log.read_text().splitlines()]
    assert len(starts) >= len(runs) * STEPS
    for run_id, number, before in starts:
        kept = ended[run_id].split(".")
        assert before == ".".join(kept[: int(number) + 1]), f"seed {seed}: step {number} of {run_id}"
    for chain in ended.values():
        assert len(chain.split(".")) == STEPS + 1
