"""Which records of a partition may run at once, and in which order they end."""

import asyncio
from collections import Counter

import pytest

from pyrula.kafka import Record
from pyrula.workflows import Context, step, workflow
from tests.integration.rig import Rig
from tests.services.topics import Message

running: Counter[bytes | None] = Counter()
most: Counter[bytes | None] = Counter()
ended: list[tuple[bytes | None, int]] = []
# so many of a key run at once, and each waits until they do
together: dict[bytes | None, asyncio.Barrier] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    for names in (running, most, ended, together):
        names.clear()


@step
async def wait_a_little(n: int) -> None:
    # Later records would overtake earlier ones if they could.
    await asyncio.sleep(0.001 + 0.02 / (n + 1))


@workflow(name="ordering.overlapping")
async def overlapping(ctx: Context, record: Record[int]) -> None:
    key = record.key
    running[key] += 1
    most[key] = max(most[key], running[key])
    if key in together:
        await together[key].wait()
    await ctx.step(wait_a_little, record.value)
    running[key] -= 1
    ended.append((key, record.value))


async def run(rig: Rig, ordering: str, keys: list[bytes | None], count: int) -> None:
    await rig.create()
    await rig.produce(Message(keys[n % len(keys)], b"%d" % n) for n in range(count))
    async with rig.running(rig.binding(overlapping, ordering=ordering, max_concurrency=50)):
        await rig.until_drained()
    assert len(ended) == count


def in_order(key: bytes | None) -> bool:
    numbers = [n for one, n in ended if one == key]
    return numbers == sorted(numbers)


async def test_records_without_a_key_have_no_order(rig: Rig) -> None:
    together[None] = asyncio.Barrier(50)
    await run(rig, "key", [None], 200)
    assert most[None] == 50


async def test_an_empty_key_is_a_key(rig: Rig) -> None:
    await run(rig, "key", [b""], 50)
    assert most[b""] == 1
    assert in_order(b"")


async def test_keys_run_beside_each_other_and_each_in_order(rig: Rig) -> None:
    keys: list[bytes | None] = [b"a", b"b", None, b""]
    together[None] = asyncio.Barrier(15)
    await run(rig, "key", keys, 120)
    assert [most[key] for key in (b"a", b"b", b"")] == [1, 1, 1]
    assert most[None] > 10
    assert all(in_order(key) for key in keys if key is not None)
    assert [key for key, _ in ended] != [keys[n % 4] for n in range(120)]


async def test_a_whole_partition_in_order(rig: Rig) -> None:
    await run(rig, "partition", [b"a", b"b", None], 60)
    assert [n for _, n in ended] == list(range(60))


async def test_no_order_at_all(rig: Rig) -> None:
    together[b"a"] = asyncio.Barrier(50)
    await run(rig, "unordered", [b"a"], 200)
    assert most[b"a"] == 50
