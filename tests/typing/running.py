"""Checked by mypy and pyright, never run: what they see through a worker, the inline runner and the environment."""

from functools import partial
from typing import Any, assert_type

from pyrula.workflows import (
    Context,
    History,
    InlineWorkflowRunner,
    MemoryStore,
    RunHandle,
    ValkeyStore,
    WorkerOptions,
    WorkflowClient,
    WorkflowWorker,
    step,
    workflow,
)
from pyrula.workflows.testing import WorkflowTestEnv, replay


class Receipt:
    id: str


def add(one: int, two: int) -> int:
    return one + two


class Till:
    @step(timeout=5)
    async def open(self, cents: int) -> Receipt:
        return Receipt()

    def close(self) -> list[int]:
        return []


@workflow
async def charge(ctx: Context, cents: int) -> Receipt:
    till = Till()
    assert_type(await ctx.step(till.open, cents), Receipt)
    assert_type(await ctx.step(till.close), list[int])
    assert_type(await ctx.step(partial(add, 5), 2), int)
    assert_type(await ctx.step(lambda: 5), int)
    await ctx.step(till.open, "5")  # type: ignore[call-overload]
    await Till().open("5")  # type: ignore[arg-type]
    assert_type(await ctx.wait_for_signal("paid"), Any)
    return Receipt()


worker = WorkflowWorker([charge], store=ValkeyStore(), options=WorkerOptions(max_concurrency=5))
WorkflowWorker(workflows=[charge], store=MemoryStore())
WorkflowWorker([charge])  # type: ignore[call-arg]
WorkflowWorker([charge.fn], store=MemoryStore())  # type: ignore[list-item]


async def started() -> None:
    assert_type(worker.client, WorkflowClient)
    runner, env = InlineWorkflowRunner(), WorkflowTestEnv()
    run = await runner.start(charge, {"cents": 5})
    assert_type(run, RunHandle[Receipt])
    assert_type(await run.result(), Receipt)
    other = await env.start(charge, {"cents": 5}, owner="ada")
    assert_type(await other.result(), Receipt)
    history = await other.history()
    assert_type(history, History)
    await replay(charge, History.load("charge.json"))
    await replay("charge", history)  # type: ignore[arg-type]
    await runner.start("charge")  # type: ignore[arg-type]
