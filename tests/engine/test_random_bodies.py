"""Random bodies, recorded live, cut after every row of their journal, replayed in a fresh loop, and gone on with.

PYRULA_REPLAY_EXAMPLES sets how many bodies each property tries.
"""

import asyncio
import json
import os
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrula.workflows.replay.journal import DELIVERIES, decode_row
from tests.engine.bodies import Block, Interpreter, Steps, any_program, one_task, plain_awaits, settled_values
from tests.engine.rig import MemoryHost, Rows, execution, in_new_loop, play, watched, with_tasks

EXAMPLES = int(os.environ.get("PYRULA_REPLAY_EXAMPLES", "40"))

many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class Recording:
    """A program's live run: its rows, its trace, and how long the trace was at each delivery."""

    def __init__(self, program: Block, seed: int, tasks: bool, settled: bool = False) -> None:
        self.program = program
        self.settled = settled
        self.rng = random.Random(seed)
        self.marks: list[int] = []
        steps = Steps(seed)
        interpreter = Interpreter(program, steps, settled)
        host = MemoryHost()
        host.on_delivery = lambda entry: self.marks.append(len(interpreter.world.trace))
        self.outcome, _ = play(interpreter.body, tasks=tasks, host=host, noise=self.noise())
        self.trace = interpreter.world.trace
        self.rows: Rows = sorted(host.rows.items())
        self.executed = steps.executed

    def noise(self) -> random.Random | None:
        return random.Random(self.rng.random()) if self.rng.random() < 1 / 3 else None

    def check_prefix(self, length: int, tasks: bool, exact: bool = True) -> None:
        """Replays the first rows and goes on live from there. Unless `exact`, the interleaving may differ."""
        rows = self.rows[:length]
        entries = [decode_row(data)[0] for _, data in rows]
        deliveries = sum(entry.kind in DELIVERIES for entry in entries)
        steps = Steps(self.rng.randrange(1 << 30))
        interpreter = Interpreter(self.program, steps, self.settled)
        outcome, host = play(interpreter.body, rows=rows, tasks=tasks, noise=self.noise())
        assert outcome.status == "completed", outcome.error
        assert not journaled(rows) & set(steps.executed)
        certain = self.marks[deliveries] if deliveries < len(self.marks) else len(self.trace)
        if exact:
            assert interpreter.world.trace[:certain] == self.trace[:certain]
        if exact and length == len(self.rows):
            assert interpreter.world.trace == self.trace
            assert outcome.value == self.outcome.value
            assert not [entry for entry in host.entries if entry.kind in DELIVERIES]
        if self.settled:
            assert outcome.value[:2] == self.outcome.value[:2]


def journaled(rows: Rows) -> set[Any]:
    """The uids of the steps that have a value among these rows."""
    entries = [decode_row(data)[0] for _, data in rows]
    return {_uid(entry.value) for entry in entries if entry.opkind == "step" and entry.kind == "value"}


def _uid(value: bytes | None) -> Any:
    return json.loads(value or b"{}").get("uid")


def check(program: Block, seed: int, tasks: bool, settled: bool = False, exact: bool = True) -> None:
    recording = Recording(program, seed, tasks, settled)
    assert recording.outcome.status == "completed", recording.outcome.error
    for length in range(len(recording.rows) + 1):
        recording.check_prefix(length, recording.rng.random() < 0.5, exact)


seeds = st.integers(0, 1 << 30)


@many
@given(any_program(), seeds, st.booleans())
def test_every_prefix_replays(program: Block, seed: int, tasks: bool) -> None:
    check(program, seed, tasks)


@many
@given(one_task(), seeds, st.booleans())
def test_straight_path_and_full_machinery_share_journals(program: Block, seed: int, tasks: bool) -> None:
    check(program, seed, tasks)


@many
@given(settled_values(), seeds, st.booleans())
def test_every_prefix_ends_with_the_same_result(program: Block, seed: int, tasks: bool) -> None:
    check(program, seed, tasks, settled=True)


@many
@given(plain_awaits(), seeds, st.booleans())
def test_plain_awaits_keep_every_operations_value(program: Block, seed: int, tasks: bool) -> None:
    check(program, seed, tasks, settled=True, exact=False)


@many
@given(any_program(), seeds)
def test_cut_again_and_again_until_it_completes(program: Block, seed: int) -> None:
    """As a worker that is restarted: each life goes on from the rows of the ones before."""
    rng = random.Random(seed)
    rows: Rows = []
    for life in range(12):
        steps = Steps(rng.randrange(1 << 30))
        host = MemoryHost(rows)

        async def live(life: int = life, steps: Steps = steps, host: MemoryHost = host) -> str:
            run = with_tasks(
                execution(Interpreter(program, steps).body, host, rows=sorted(host.rows.items())), life % 2 > 0
            )
            if life < 11:
                asyncio.get_running_loop().call_later(rng.random() ** 2 / 100, run.cut)
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            outcome = await watched(run)
            assert outcome.status in ("cut", "completed"), outcome.error
            return outcome.status

        status = in_new_loop(live)
        assert not journaled(rows) & set(steps.executed)
        rows = sorted(host.rows.items())
        if status == "completed":
            return
    raise AssertionError("the last life wasn't cut")
