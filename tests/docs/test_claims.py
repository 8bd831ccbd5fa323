"""What the texts claim of calls, held against the calls."""

import inspect
import re
from pathlib import Path

from pyrula.workflows import Context, RunHandle, step, workflow
from pyrula.workflows.testing import WorkflowTestEnv

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_a_bodys_calls_says_await_where_it_is_needed() -> None:
    table = (DOCS / "runs.md").read_text().split("## What a body may ask for")[1].split("\n\n")[1]
    calls = re.findall(r"`(await )?ctx\.(\w+)\(", table)
    assert {name for _, name in calls} >= {"step", "sleep", "on_update", "on_query", "now"}
    assert len(calls) == len(re.findall(r"\w\(.*?\)`", "".join(row.split("|")[1] for row in table.splitlines()[2:])))
    for awaited, name in calls:
        assert bool(awaited) == inspect.iscoroutinefunction(getattr(Context, name)), name


def test_the_time_that_cancel_and_pause_wait_is_the_one_that_is_told() -> None:
    (told,) = re.findall(
        r"`cancel` and `pause` wait for what they ask, (\d+) seconds", (DOCS / "talking.md").read_text()
    )
    for call in (RunHandle.cancel, RunHandle.pause):
        assert inspect.signature(call).parameters["timeout"].default == float(told)


async def test_what_a_step_without_annotation_gives_is_the_same_live_and_in_replay() -> None:
    seen: list[object] = []

    @step
    async def loose():  # type: ignore[no-untyped-def]
        return {1: 2, "pair": (1, 2)}

    @workflow(name="claims_loose")
    async def body(ctx: Context) -> None:
        seen.append(await ctx.step(loose))
        await ctx.sleep(60)

    await (await WorkflowTestEnv().start(body)).result()
    assert len(seen) == 2
    assert seen[0] == seen[1] == {"1": 2, "pair": [1, 2]}
    row = next(
        line for line in (DOCS / "runs.md").read_text().splitlines() if line.startswith("| `SerializationError`")
    )
    assert "`{1: 2}` comes back as `{'1': 2}`, `(1, 2)` as `[1, 2]`, the same live and in replay" in row
