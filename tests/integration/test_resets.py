"""Offsets that somebody set by hand, commits that came back, and a store that was emptied: what runs again, and how."""

import asyncio
from collections import Counter

import pytest
from redis.asyncio import Redis

from pyrula.workflows import Context, step, workflow
from tests.integration.rig import Rig
from tests.services.topics import Committed, Message

runs: Counter[int] = Counter()
steps: Counter[tuple[int, int]] = Counter()
done: list[int] = []
blocked: set[int] = set()
release: asyncio.Event
epoch = 0


@pytest.fixture(autouse=True)
def fresh() -> None:
    global release, epoch
    release = asyncio.Event()  # it belongs to the test's loop
    epoch = 1
    for names in (runs, steps, done, blocked):
        names.clear()


@step
async def count(n: int, number: int) -> int:
    steps[n, number] += 1
    return epoch


@workflow(name="resets.counting")
async def counting(ctx: Context, n: int) -> None:
    runs[n] += 1
    epochs = [await ctx.step(count, n, 1)]
    if n in blocked:
        await release.wait()
    epochs.append(await ctx.step(count, n, 2))
    assert epochs == [epoch, epoch], "a value from before the reset"
    done.append(n)


def numbers(start: int, stop: int) -> list[Message]:
    return [Message(None, b"%d" % n) for n in range(start, stop)]


async def test_offsets_reset_by_hand_run_everything_anew(rig: Rig) -> None:
    global epoch
    await rig.create()
    await rig.produce(numbers(0, 100))
    binding = rig.binding(counting)
    async with rig.running(binding):
        await rig.until_drained()
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(20, "")})
    epoch = 2
    # Records are in progress when the worker ends, and after the next start they are new, not those of long ago.
    blocked.update({20, 60})
    async with rig.running(binding):
        await rig.until(lambda: len(done) == 100 + 78, "all others to complete anew")
        await rig.until_committed(20)
    blocked.clear()
    async with rig.running(binding):
        await rig.until_drained()
    assert len(done) == 180
    assert steps == Counter({(n, number): 2 if n >= 20 else 1 for n in range(100) for number in (1, 2)})
    assert await rig.read(rig.letters) == []


async def test_a_reset_does_not_touch_what_was_unfinished(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(0, 100))
    binding = rig.binding(counting)
    blocked.add(50)
    async with rig.running(binding):
        await rig.until(lambda: len(done) == 99, "all others to complete")
        await rig.until_committed(50)
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(40, "")})
    blocked.clear()
    async with rig.running(binding):
        await rig.until_drained()
    assert steps[50, 1] == 1
    assert {steps[n, 1] for n in range(40, 50)} == {2}
    assert {steps[n, 1] for n in range(40)} == {1}
    assert await rig.read(rig.letters) == []


async def test_offsets_set_forward_by_hand_skip_what_lies_before(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(0, 100))
    binding = rig.binding(counting)
    blocked.add(10)
    async with rig.running(binding):
        await rig.until(lambda: len(done) == 99, "all others to complete")
        await rig.until_committed(10)
    await rig.produce(numbers(100, 110))
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, {0: Committed(105, "")})
    async with rig.running(binding):
        await rig.until_drained()
    assert runs == Counter([*range(100), *range(105, 110)])


async def test_a_commit_that_came_back_repeats_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.create()
    await rig.produce(numbers(0, 50))
    binding = rig.binding(counting)
    async with rig.running(binding):
        await rig.until_drained()
    before = await rig.committed()
    await rig.produce(numbers(50, 100))
    async with rig.running(binding):
        await rig.until_drained()
    await asyncio.to_thread(rig.topics.commit, rig.group, rig.topic, before)
    await rig.produce(numbers(100, 110))
    async with rig.running(binding):
        await rig.until_drained()
    assert runs == Counter(range(110))
    assert "older than what was committed before (100)" in caplog.text


async def empty(rig: Rig) -> None:
    client = Redis.from_url(rig.valkey.replace("valkey://", "redis://"))
    try:
        keys = [key async for key in client.scan_iter(f"*{rig.namespace}*", count=10_000)]
        assert keys
        await client.delete(*keys)
    finally:
        await client.aclose()


async def test_a_store_that_was_emptied_between_two_starts_is_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.create()
    await rig.produce(numbers(0, 20))
    binding = rig.binding(counting)
    blocked.add(5)
    async with rig.running(binding):
        await rig.until(lambda: len(done) == 19, "all others to complete")
        await rig.until_committed(5)
    await empty(rig)
    blocked.clear()
    async with rig.running(binding):
        await rig.until_drained()
    assert "steps of unfinished records run again" in caplog.text
    assert runs == Counter([*range(20), 5])
    assert steps[5, 1] == 2


async def test_a_store_that_was_emptied_under_a_running_worker(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(0, 20))
    binding = rig.binding(counting)
    blocked.add(5)
    async with rig.running(binding) as running:
        await rig.until(lambda: len(done) == 19, "all others to complete")
        await rig.until_committed(5)
        await empty(rig)
        blocked.clear()
        await rig.produce(numbers(20, 40))
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to recover")
    assert sorted(set(done)) == list(range(40))
    assert len(done) <= 60
