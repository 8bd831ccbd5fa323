"""A hot key and a hot partition: what is stuck behind them waits, everything else goes on."""

import asyncio

from pyrula.kafka import Record
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig
from tests.services.topics import Message

HOT, COLD = 3_000, 30
SECONDS = 0.003


async def test_only_its_own_records_wait_for_a_hot_key(rig: Rig) -> None:
    """99 of 100 records have one key, whose bodies take their time one after the other."""
    done: list[tuple[int, bytes | None]] = []

    @workflow(name="hot.key")
    async def body(ctx: Context, record: Record[bytes]) -> None:
        if record.key == b"hot":
            await asyncio.sleep(SECONDS)
        done.append((record.partition, record.key))

    await rig.create(partitions=4)
    messages = [Message(b"hot", b"", partition=0) for _ in range(HOT)]
    # some behind it in its own partition, the others elsewhere
    messages[100:100] = [Message(b"cold %d" % n, b"", partition=0) for n in range(COLD)]
    messages += [Message(b"cold %d" % n, b"", partition=1 + n % 3) for n in range(COLD)]
    await asyncio.to_thread(rig.topics.produce, rig.topic, messages)
    async with rig.running(rig.binding(body)) as running:
        cold = 2 * COLD
        await rig.until(lambda: sum(key != b"hot" for _, key in done) == cold, "the others to be done")
        hot = len(done) - cold
        print(f"{cold} other records were done with the first {hot} of {HOT} of the hot key")
        assert hot < HOT / 2
        lag = running.worker.stats()[0].lag
        assert lag >= HOT - hot - cold
        await rig.until_drained()
    assert len(done) == HOT + cold
