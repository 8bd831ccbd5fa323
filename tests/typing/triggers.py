"""Checked by mypy --strict, never run: what a type checker sees of triggers, and the wrong code it must refuse."""

from typing import Any, assert_type

from pydantic import BaseModel

from pyrula.workflows import Collect, Context, Debounce, MemoryStore, OpenBatch, RunHandle, WorkflowClient, workflow
from pyrula.workflows.testing import WorkflowTestEnv


class Comment(BaseModel):
    user_id: str


@workflow(name="digest", trigger=Collect(key="user_id", max_events=50, window_seconds=60))
async def digest(ctx: Context, key: str, events: list[Comment], count: int) -> int:
    return count


Debounce(key=lambda event: event["user_id"], window_seconds=5, max_wait_seconds=60)
Debounce("user_id", 5, max_wait=60)  # type: ignore[call-arg]

client = WorkflowClient(MemoryStore())


async def _typed(ctx: Context, env: WorkflowTestEnv) -> None:
    assert_type(await client.trigger(digest, {"user_id": "u"}), RunHandle[int] | None)
    assert_type(await client.trigger("digest", Comment(user_id="u"), event_id="e"), RunHandle[Any] | None)
    assert_type(await client.trigger(digest, {"user_id": "u"}, owner="acme"), RunHandle[int] | None)
    assert_type(await client.buffered(digest), list[OpenBatch])
    assert_type(await ctx.trigger(digest, Comment(user_id="u")), str | None)
    assert_type(await ctx.trigger("digest", {"user_id": "u"}, event_id="e"), str | None)
    assert_type(env.fired, list[RunHandle[Any]])
    await client.trigger(digest, "u")  # type: ignore[call-overload]
    await client.trigger(digest, {"user_id": "u"}, id="e")  # type: ignore[call-overload]
