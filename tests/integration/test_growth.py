"""What changes under a running worker: partitions added, topics made late; and several bindings in one process."""

import asyncio
from collections import Counter

from pyrula.kafka import Binding
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig
from tests.services.topics import Message


class Seen:
    """A workflow that counts its records by topic."""

    def __init__(self, name: str) -> None:
        self.values: Counter[int] = Counter()

        @workflow(name=name)
        async def body(ctx: Context, n: int) -> int:
            self.values[n] += 1
            return n + 1

        self.workflow = body


async def test_records_of_partitions_that_are_added_are_processed(rig: Rig) -> None:
    await rig.create(partitions=2)
    seen = Seen("growth.partitions")
    async with rig.running(rig.binding(seen.workflow), metadata_max_age=1.0):
        await rig.produce([b"%d" % n for n in range(20)])
        await rig.until_drained()
        await asyncio.to_thread(rig.topics.grow, rig.topic, 5)
        late = [Message(b"k", b"%d" % (100 + n), partition=n % 5) for n in range(20)]
        await asyncio.to_thread(rig.topics.produce, rig.topic, late)
        await rig.until(lambda: sum(seen.values.values()) == 40, "the records of all five partitions", timeout=60)
        await rig.until_drained()
    assert set(seen.values.values()) == {1}


async def test_a_topic_that_is_made_late_is_read_from_its_start(rig: Rig) -> None:
    seen = Seen("growth.late")
    async with rig.running(rig.binding(seen.workflow), metadata_max_age=1.0) as running:
        await rig.until(lambda: rig.topic in running.reasons, "health to name the topic")
        await rig.create()
        await rig.produce([b"%d" % n for n in range(5)])
        await rig.until(lambda: len(seen.values) == 5, "its records", timeout=60)
        await rig.until_drained()


async def test_a_topic_that_is_made_again_is_read_soon(rig: Rig) -> None:
    """The client itself would look for it again after metadata_max_age, five minutes."""
    seen = Seen("growth.again")
    await rig.create(partitions=2)
    async with rig.running(rig.binding(seen.workflow)) as running:
        await rig.produce([b"%d" % n for n in range(4)])
        await rig.until_drained()
        await asyncio.to_thread(rig.topics.delete, rig.topic)
        await rig.until(lambda: f"topic {rig.topic} of binding" in running.reasons, "health to name it", timeout=60)
        await rig.create(partitions=2, letters=False)
        await rig.produce([b"%d" % n for n in range(10, 15)])
        await rig.until(lambda: len(seen.values) == 9, "the records of the new one", timeout=60)
        await rig.until_drained()
    assert set(seen.values.values()) == {1}


async def test_a_pipeline_of_bindings_in_one_process(rig: Rig) -> None:
    """Each stage's output is the next one's input; every stage has its own group, lag and health."""
    middle, last = f"{rig.topic}-middle", f"{rig.topic}-last"
    await rig.create(partitions=2)
    await asyncio.to_thread(rig.topics.create, middle, last)
    first, second = Seen("growth.first"), Seen("growth.second")
    bindings = [
        rig.binding(first.workflow, output=middle),
        Binding(second.workflow, topic=middle, group=f"{rig.group}-2", output=last),
    ]
    async with rig.running(*bindings) as running:
        await rig.produce([b"%d" % n for n in range(100)])
        await rig.until(lambda: len(second.values) == 100, "the second stage", timeout=60)
        assert [stats.binding for stats in running.worker.stats()] == [binding.name for binding in bindings]
    outputs = await asyncio.to_thread(rig.topics.read, last)
    assert Counter(output.value for output in outputs) == Counter(b"%d" % (n + 2) for n in range(100))
    assert set(second.values) == {n + 1 for n in range(100)}
