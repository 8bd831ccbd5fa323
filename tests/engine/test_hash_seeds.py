"""Random bodies, recorded here and replayed in processes with other hash seeds: sets have other orders there."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.bodies import Block, any_program
from tests.engine.test_random_bodies import EXAMPLES, Recording, journaled

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 12345)


def recordings(count: int) -> list[Recording]:
    found: list[Recording] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(any_program(), st.integers(0, 1 << 30), st.booleans())
    def record(program: Block, seed: int, tasks: bool) -> None:
        recording = Recording(program, seed, tasks)
        assert recording.outcome.status == "completed", recording.outcome.error
        found.append(recording)

    record()
    return found


def replayed(recorded: list[Recording], seed: int) -> list[list[dict[str, Any]]]:
    lines = [
        json.dumps({"program": one.program, "rows": [(index, data.decode()) for index, data in one.rows]}) + "\n"
        for one in recorded
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.replay_again"],
        input="".join(lines),
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_other_hash_seeds_replay_the_same() -> None:
    recorded = recordings(EXAMPLES // 2)
    assert len(recorded) > EXAMPLES // 4
    for seed in SEEDS:
        for recording, results in zip(recorded, replayed(recorded, seed), strict=True):
            for result in results:
                assert result["status"] == "completed", (seed, recording.program, result["error"])
                assert result["trace"] == json.loads(json.dumps(recording.trace)), (seed, recording.program)
                assert result["value"] == recording.outcome.value
                assert not journaled(recording.rows) & set(result["executed"]), (seed, recording.program)


def test_the_seeds_do_order_sets_differently() -> None:
    """Else the test above shows nothing."""
    names = [f"name {random.Random(number).random()}" for number in range(20)]
    program = f"print([name for name in {{*{names!r}}}])"
    orders = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, check=True
        ).stdout
        for seed in SEEDS
    }
    assert len(orders) == len(SEEDS)
