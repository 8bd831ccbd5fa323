"""A body that is bound to a topic feeds another workflow's trigger, once for each record."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.workflows import Collect, Context, Debounce, Retry, WorkerOptions, WorkflowWorker, step, workflow
from tests.integration.rig import Rig
from tests.services.topics import Committed, Message

got: list[tuple[str, list[int]]] = []
fed: Counter[int] = Counter()
hold: asyncio.Event


@pytest.fixture(autouse=True)
def fresh() -> None:
    global hold
    hold = asyncio.Event()  # it belongs to the test's loop
    got.clear()
    fed.clear()


class Comment(BaseModel):
    user: str
    n: int


@workflow(name="integration_digest", trigger=Collect(key="user", max_events=5, window_seconds=3))
async def digest(ctx: Context, key: str, events: list[Comment], count: int) -> int:
    got.append((key, [event.n for event in events]))
    return count


@workflow(name="integration_quiet", trigger=Debounce(key="user", window_seconds=0.3))
async def quiet(ctx: Context, key: str, events: list[Comment], count: int) -> None:
    got.append((key, [event.n for event in events]))


@workflow(name="integration_take")
async def take(ctx: Context, comment: Comment) -> None:
    run_id = await ctx.trigger(digest, comment)
    fed[comment.n] += 1
    if run_id is not None:
        assert run_id[2] == "-"


@step(retry=Retry(max_attempts=1))
async def wait(n: int) -> None:
    await hold.wait()


@workflow(name="integration_take_and_wait")
async def take_and_wait(ctx: Context, comment: Comment) -> None:
    await ctx.trigger("integration_digest", comment)
    fed[comment.n] += 1
    await ctx.step(wait, comment.n)


@workflow(name="integration_take_twice")
async def take_twice(ctx: Context, comment: Comment) -> None:
    await ctx.gather(ctx.trigger(digest, comment), ctx.trigger(quiet, comment))


@asynccontextmanager
async def batching(rig: Rig) -> AsyncIterator[WorkflowWorker]:
    """A worker for the batches, on the store of the topic's worker."""
    store: Any = rig.store()
    worker = WorkflowWorker([digest, quiet], store=store, options=WorkerOptions(claim_poll_interval=0.1))
    working = asyncio.create_task(worker.run())
    yield worker
    worker.stop()
    await working


def comments(count: int, users: int = 3) -> list[Message]:
    return [
        Message(f"u{n % users}".encode(), Comment(user=f"u{n % users}", n=n).model_dump_json().encode())
        for n in range(count)
    ]


def numbers() -> list[int]:
    return sorted(number for _, batch in got for number in batch)


@pytest.fixture
def rig(kafka: str, valkey: str, topic_prefix: str, namespace: str) -> Rig:
    return Rig(kafka, valkey, topic_prefix, namespace)


async def test_records_become_batches_in_their_order(rig: Rig) -> None:
    await rig.create(partitions=2)
    await rig.produce(comments(40))
    async with batching(rig), rig.running(rig.binding(take)):
        await rig.until(lambda: len(numbers()) >= 40, "all records to be in batches")
        await rig.until_drained()
    assert numbers() == list(range(40))
    assert max(len(batch) for _, batch in got) == 5
    for user in range(3):
        of_user = [number for key, batch in got if key == f"u{user}" for number in batch]
        assert sorted(of_user) == list(range(user, 40, 3))
        for key, batch in got:
            assert key != f"u{user}" or batch == sorted(batch)


async def test_a_record_that_comes_again_feeds_nothing(rig: Rig) -> None:
    await rig.create()
    await rig.produce(comments(6, users=1))
    async with batching(rig):
        async with rig.running(rig.binding(take_and_wait, max_concurrency=6, ordering="unordered")):
            await rig.until(lambda: len(fed) == 6, "all records to have fed")
        # cut in their steps: nothing is committed, so all of them come again
        assert await rig.offset() == 0
        hold.set()
        async with rig.running(rig.binding(take_and_wait)):
            await rig.until_committed(6)
        assert fed == dict.fromkeys(range(6), 2)
        await rig.until(lambda: len(numbers()) >= 6, "all records to be in batches")
        await asyncio.sleep(1)
    assert numbers() == list(range(6))


async def test_a_body_with_several_tasks_feeds_as_well(rig: Rig) -> None:
    await rig.create()
    await rig.produce(comments(10, users=1))
    async with batching(rig), rig.running(rig.binding(take_twice)):
        await rig.until(lambda: len(numbers()) >= 20, "all records to be in batches")
        await rig.until_committed(10)
    assert numbers() == sorted([*range(10)] * 2)


async def test_records_that_are_run_anew_by_hand_feed_anew(rig: Rig) -> None:
    """An event's id is the journal's, not the record's: who sets offsets back wants all of it again."""
    await rig.create()
    await rig.produce(comments(4, users=1))
    async with batching(rig):
        async with rig.running(rig.binding(take)):
            await rig.until_committed(4)
        await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(0, "")})
        async with rig.running(rig.binding(take)):
            await rig.until_committed(4)
        await rig.until(lambda: len(numbers()) >= 8, "all records to be in batches twice")
    assert numbers() == sorted([*range(4)] * 2)
