"""Batching, as the specification of flow control has it: its programs word for word, its sentences one a test."""

import subprocess
import sys
from typing import Any

import pytest

from pyrula.kafka import Binding
from pyrula.workflows import Collect, ConfigurationError, Debounce, Limit, RunHandle, workflow
from pyrula.workflows.testing import WorkflowTestEnv

DIGEST = """\
from pyrula.workflows import Collect, WorkflowClient, workflow

@workflow(name="digest", trigger=Collect(key="user_id", max_events=50, window_seconds=60))
async def digest(ctx, key: str, events: list[dict], count: int) -> None:
    ...

client = WorkflowClient(store)
await client.trigger("digest", {"user_id": "u1", "kind": "comment"})   # None until the batch fires
"""

PROGRAM = """\
import asyncio
from pyrula.workflows import MemoryStore

store = MemoryStore()


async def main():
{example}
    answers = [await client.trigger("digest", {{"user_id": "u1", "kind": "comment"}}) for _ in range(49)]
    assert [answer is None for answer in answers] == [True] * 48 + [False]
    print(type(answers[-1]).__name__, str(answers[-1]) == answers[-1].run_id, await answers[-1].status())


asyncio.run(main())
"""


def test_the_example_runs() -> None:
    indented = "".join(f"    {line}\n" for line in DIGEST.splitlines())
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(example=indented)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "RunHandle True queued\n", "")


async def env_of(**options: Any) -> tuple[WorkflowTestEnv, Any, list[tuple[str, list[Any], int]]]:
    got: list[tuple[str, list[Any], int]] = []

    @workflow(name="tour_digest", **options)
    async def digest(ctx, key: str, events: list[dict], count: int) -> int:  # type: ignore[no-untyped-def, type-arg]
        got.append((key, [event.get("n") for event in events], count))
        return count

    return WorkflowTestEnv(), digest, got


async def test_collect_starts_one_run_at_max_events() -> None:
    env, _digest, got = await env_of(trigger=Collect(key="user_id", max_events=3, window_seconds=60))
    answers = [await env.client.trigger("tour_digest", {"user_id": "u1", "n": n}) for n in range(3)]
    assert answers[:2] == [None, None]
    assert isinstance(answers[2], RunHandle)
    assert await answers[2].result() == 3
    assert got == [("u1", [0, 1, 2], 3)]


async def test_or_after_window_seconds() -> None:
    env, digest, got = await env_of(trigger=Collect(key="user_id", max_events=50, window_seconds=60))
    assert await env.client.trigger(digest, {"user_id": "u1", "n": 0}) is None
    await env.advance(59)
    assert await env.client.trigger(digest, {"user_id": "u1", "n": 1}) is None
    assert got == []
    await env.advance(1)
    assert got == [("u1", [0, 1], 2)]


async def test_debounce_starts_one_run_once_the_events_have_been_quiet() -> None:
    env, digest, got = await env_of(trigger=Debounce(key="user_id", window_seconds=60))
    for n in range(5):
        assert await env.client.trigger(digest, {"user_id": "u1", "n": n}) is None
        await env.advance(59)
    assert got == []
    await env.advance(1)
    assert got == [("u1", [0, 1, 2, 3, 4], 5)]


async def test_a_key_is_a_name_or_a_function_and_a_missing_one_is_empty() -> None:
    env, digest, got = await env_of(
        trigger=Collect(key=lambda e: f"{e['org']}:{e['region']}", max_events=1, window_seconds=60)
    )
    await env.client.trigger(digest, {"org": "o", "region": "r"})
    env, named, missing = await env_of(trigger=Collect(key="user_id", max_events=2, window_seconds=60))
    for n in range(2):
        await env.client.trigger(named, {"n": n})
    assert [key for key, _, _ in got] == ["o:r"]
    assert missing == [("", [0, 1], 2)]


async def test_a_triggered_workflow_can_also_take_concurrency_keyed_on_the_batch_key() -> None:
    env, digest, got = await env_of(
        trigger=Collect(key="user_id", max_events=2, window_seconds=60), concurrency=Limit(key="key", max=1)
    )
    for n in range(6):
        await env.client.trigger(digest, {"user_id": "u1", "n": n})
    assert got == [("u1", [0, 1], 2), ("u1", [2, 3], 2), ("u1", [4, 5], 2)]


async def test_a_kafka_bound_workflow_cant_take_a_trigger() -> None:
    _, digest, _ = await env_of(trigger=Collect(key="user_id", max_events=2, window_seconds=60))
    with pytest.raises(ConfigurationError, match="trigger"):
        Binding(digest, topic="comments", group="digests")
