"""Which records wait for which: by key, by partition, or not at all; also while one is tried again."""

import asyncio
from collections import defaultdict

import pytest

from pyrula.kafka import Record
from pyrula.workflows import Context, Retry, step, workflow
from tests.integration.rig import Rig
from tests.services.topics import Message


class Overlap:
    """How many bodies of a kind are in progress, the most there ever were, and the order in which they began."""

    def __init__(self) -> None:
        self.now: dict[object, int] = defaultdict(int)
        self.most: dict[object, int] = defaultdict(int)
        self.began: dict[object, list[int]] = defaultdict(list)

    async def spend(self, kind: object, number: int, seconds: float) -> None:
        self.began[kind].append(number)
        self.now[kind] += 1
        self.most[kind] = max(self.most[kind], self.now[kind])
        await asyncio.sleep(seconds)
        self.now[kind] -= 1


async def test_null_keys_have_no_order(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"{}"] * 200)
    seen = Overlap()

    @workflow(name="null-keys")
    async def body(ctx: Context, record: Record[bytes]) -> None:
        await seen.spend(record.key, record.offset, 0.05)

    async with rig.running(rig.binding(body, max_concurrency=50)):
        await rig.until_drained()
    assert seen.most[None] > 10
    assert sorted(seen.began[None]) == list(range(200))


async def test_an_empty_key_is_a_key(rig: Rig) -> None:
    await rig.create()
    await rig.produce([Message(b"", b"{}")] * 50)
    seen = Overlap()

    @workflow(name="empty-keys")
    async def body(ctx: Context, record: Record[bytes]) -> None:
        await seen.spend(record.key, record.offset, 0.005)

    async with rig.running(rig.binding(body, max_concurrency=50)):
        await rig.until_drained()
    assert seen.most[b""] == 1
    assert seen.began[b""] == list(range(50))


@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
async def test_the_binding_says_what_waits(rig: Rig, ordering: str) -> None:
    await rig.create(partitions=2)
    await rig.produce([Message(b"k%d" % (n % 3), b"{}", partition=n % 2) for n in range(120)])
    keys, partitions = Overlap(), Overlap()

    @workflow(name=f"ordered-{ordering}")
    async def body(ctx: Context, record: Record[bytes]) -> None:
        await asyncio.gather(
            keys.spend((record.partition, record.key), record.offset, 0.01),
            partitions.spend(record.partition, record.offset, 0.01),
        )

    async with rig.running(rig.binding(body, max_concurrency=50, ordering=ordering)):
        await rig.until_drained()
    for began in keys.began.values():
        assert len(began) == 20
    most_of_a_key, most_of_a_partition = max(keys.most.values()), max(partitions.most.values())
    if ordering == "unordered":
        assert most_of_a_key > 1
    else:
        assert most_of_a_key == 1
        assert all(began == sorted(began) for began in keys.began.values())
        assert most_of_a_partition == (3 if ordering == "key" else 1)
    if ordering == "partition":
        assert all(began == list(range(60)) for began in partitions.began.values())


async def test_no_record_overtakes_one_that_is_tried_again(rig: Rig) -> None:
    await rig.create()
    # k's first record fails twice; m's never do.
    await rig.produce([Message(key, b"%d" % n) for n in (1, 2, 3) for key in (b"k", b"m")])
    sink: list[tuple[bytes | None, int, int]] = []

    @workflow(name="tried-again")
    async def body(ctx: Context, record: Record[int]) -> None:
        sink.append((record.key, record.value, ctx.run.attempt))
        if record.key == b"k" and record.value == 1 and ctx.run.attempt < 3:
            raise ValueError("not yet")

    binding = rig.binding(body, retry=Retry(max_attempts=3, initial=2, factor=1, jitter=0))
    async with rig.running(binding) as running:
        await rig.until_drained()
    assert [entry[1:] for entry in sink if entry[0] == b"k"] == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert [entry[1:] for entry in sink if entry[0] == b"m"] == [(1, 1), (2, 1), (3, 1)]
    # The other lane didn't wait for it.
    assert sink.index((b"m", 3, 1)) < sink.index((b"k", 1, 2))
    assert len(running.told("retrying")) == 2


async def test_a_delayed_attempt_keeps_its_place_across_a_restart(rig: Rig) -> None:
    await rig.create()
    await rig.produce([Message(b"k", b"%d" % n) for n in (1, 2, 3)])
    sink: list[tuple[int, int]] = []
    steps: list[int] = []

    @step
    async def note(number: int) -> None:
        steps.append(number)

    @workflow(name="restarted")
    async def body(ctx: Context, record: Record[int]) -> None:
        sink.append((record.value, ctx.run.attempt))
        await ctx.step(note, record.value)
        if record.value == 1 and ctx.run.attempt < 3:
            raise ValueError("not yet")

    slow = rig.binding(body, retry=Retry(max_attempts=3, initial=20, jitter=0))
    async with rig.running(slow) as running:
        await rig.until(lambda: running.told("retrying"), "the first attempt to fail")
    assert await rig.offset() == 0
    quick = rig.binding(body, retry=Retry(max_attempts=3, initial=0.1, jitter=0))
    async with rig.running(quick):
        await rig.until_drained()
    assert sink == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert steps == [1, 2, 3]
