"""`ctx.send` where there is no broker: an error at the call in a submitted run, a list in the test environment."""

import asyncio

import pytest

from pyrula.workflows import (
    Context,
    DurableInvocationError,
    InlineWorkflowRunner,
    MemoryStore,
    NoBrokerError,
    Retry,
    WorkflowWorker,
    workflow,
)
from pyrula.workflows.testing import WorkflowTestEnv, replay

steps: list[str] = []


async def note(text: str) -> str:
    steps.append(text)
    return text


@workflow(name="sending_receipt", retry=Retry(max_attempts=3))
async def receipt(ctx: Context, cents: int) -> str:
    ctx.on_query("cents", lambda: cents)
    await ctx.step(note, "before")
    await ctx.send("receipts", {"cents": cents}, key="k")
    return await ctx.step(note, "after")


@workflow(name="sending_careful")
async def careful(ctx: Context) -> str:
    try:
        await ctx.send("receipts", 5)
    except NoBrokerError:
        return await ctx.step(note, "nothing to send by")
    return await ctx.step(note, "sent")


async def test_a_submitted_run_fails_at_the_call_and_is_not_tried_again() -> None:
    steps.clear()
    worker = WorkflowWorker([receipt], store=MemoryStore())
    working = asyncio.create_task(worker.run())
    run = await worker.client.submit(receipt, {"cents": 5})
    with pytest.raises(DurableInvocationError) as failed:
        await run.result(timeout=180)
    assert failed.value.error_type == "pyrula.workflows.errors.NoBrokerError"
    assert failed.value.message.startswith(
        f"run {run} (sending_receipt): ctx.send to 'receipts': a run that was submit"
    )
    assert "Bind the workflow to a topic" in failed.value.message
    assert steps == ["before"]
    # and its journal is read as it was written
    assert await run.query("cents") == 5
    worker.stop()
    await working


async def test_a_body_may_go_another_way_and_so_does_its_replay() -> None:
    steps.clear()
    runner = InlineWorkflowRunner()
    run = await runner.start(careful)
    assert await run.result() == "nothing to send by"
    assert await runner.client.events(careful, run)


async def test_the_test_environment_shows_what_was_sent() -> None:
    env = WorkflowTestEnv()
    run = await env.start(receipt, {"cents": 7})
    assert await run.result() == "after"
    assert [(sent.topic, sent.key, sent.value) for sent in env.sent] == [("receipts", b"k", b'{"cents":7}')]
    await replay(receipt, await run.history())
    assert len(env.sent) == 1
