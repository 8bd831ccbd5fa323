"""The fence around a partition's journal: groups made again, claims that come late, claims that come between."""

import asyncio
import logging

import pytest
from aiokafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pyrula.kafka import Binding, Record
from pyrula.kafka.assignment import Assignment
from pyrula.kafka.client import Membership, MembershipLost
from pyrula.kafka.opening import Opener
from pyrula.kafka.record import record_identity
from pyrula.workflows import Context, step, workflow
from pyrula.workflows.errors import StaleToken
from pyrula.workflows.store.port import Claim
from tests.integration.rig import Rig

runs: list[tuple[str, int]] = []
steps: list[int] = []
held: dict[int, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    runs.clear()
    steps.clear()
    held.clear()


@step
async def note(offset: int) -> None:
    steps.append(offset)


@workflow(name="generations")
async def body(ctx: Context, record: Record[bytes]) -> None:
    runs.append((ctx.run.id, record.offset))
    await ctx.step(note, record.offset)
    if record.offset in held:
        await held[record.offset].wait()


def source(binding: Binding, partition: int = 0) -> bytes:
    return record_identity(binding.cluster, binding.group, binding.topics[0], partition)


async def look(rig: Rig, binding: Binding) -> Claim | StaleToken:
    """What a claim of the lowest generation finds: the stored token, as a rule."""
    store = rig.store()
    await store.open()
    try:
        return await store.claim_source(source(binding), 0)
    except StaleToken as stale:
        return stale
    finally:
        await store.close()


async def test_a_group_made_again_is_taken_over(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.create()
    await rig.produce([b"%d" % n for n in range(5)])
    binding = rig.binding(body)
    # Each life of the group's only member raises its generation.
    for _ in range(2):
        async with rig.running(binding):
            await rig.until_drained()
    found = await look(rig, binding)
    assert isinstance(found, StaleToken)
    assert found.stored.incarnation == 1
    assert found.stored.generation > 1
    admin = AdminClient({"bootstrap.servers": rig.kafka, "broker.address.family": "v4"})
    await asyncio.to_thread(lambda: admin.delete_consumer_groups([rig.group])[rig.group].result(30))
    await rig.produce([b"5"])
    with caplog.at_level(logging.WARNING):
        async with rig.running(binding):
            await rig.until_drained()
    assert "was made again" in caplog.text
    found = await look(rig, binding)
    assert isinstance(found, StaleToken)
    assert (found.stored.incarnation, found.stored.generation) == (2, 1)
    # Its offsets went with it, so all records run again, as runs of their own.
    assert [offset for _, offset in runs] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert len({run for run, _ in runs}) == 11


async def test_an_assignment_that_opens_late_is_refused(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"0"])
    binding = rig.binding(body)
    async with rig.running(binding):
        await rig.until_drained()
    async with rig.running(binding) as running:
        client = running.worker._groups[0].client
        stored = client.membership
        tp = TopicPartition(rig.topic, 0)
        late = rig.store()
        await late.open()

        async def probe(tp: TopicPartition, offset: int) -> None:
            raise AssertionError("nothing is read for an assignment that is over")

        old = Assignment(Membership(stored.generation - 1, "former"), frozenset({tp}))
        opener = Opener(client, late, old, {tp: binding}, {tp: source(binding)}, probe)
        with pytest.raises(MembershipLost):
            await opener.open([tp])
        assert old.claimed == {}
        await late.close()
        # The holder noticed nothing.
        await rig.produce([b"1"])
        await rig.until_drained()
        assert client.membership == stored
    assert [offset for _, offset in runs] == [0, 1]


async def test_a_claim_in_between_drops_what_runs_and_opens_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.create()
    held[1] = asyncio.Event()
    binding = rig.binding(body)
    async with rig.running(binding):
        await rig.produce([b"0", b"1"])
        await rig.until(lambda: steps == [0, 1] and rig.offset(), "the second record to run")
        other = rig.store()
        await other.open()
        with pytest.raises(StaleToken) as stale:
            await other.claim_source(source(binding), 0)
        await other.claim_source(source(binding), 0, replaces=stale.value.stored)
        await other.close()
        with caplog.at_level(logging.WARNING):
            # The next row is refused, the partition is claimed again, and the second record goes on from its journal.
            await rig.produce([b"2"])
            await rig.until(lambda: len([run for run in runs if run[1] == 1]) == 2, "the second record to run again")
        held[1].set()
        await rig.until_drained()
    assert "another claim has replaced ours" in caplog.text
    assert steps.count(1) == 1
    assert sorted({offset for _, offset in runs}) == [0, 1, 2]
    # The row of the third one's step was refused, so that step was in progress.
    assert steps.count(2) <= 2
