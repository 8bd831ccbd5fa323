"""What docs/kafka-groups.md says of groups: assignors, and why there is no static membership."""

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient

from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig

done: list[str] = []


@workflow(name="groups.note")
async def note(ctx: Context, value: str) -> str:
    done.append(value)
    return value


@pytest.mark.parametrize("assignor", ["roundrobin", "range", "sticky"])
async def test_a_group_is_dealt_out_by_the_assignor_of_the_options(rig: Rig, assignor: str) -> None:
    done.clear()
    await rig.create(partitions=2)
    await rig.produce([b"o1", b"o2"])
    binding = rig.binding(note)
    async with rig.running(binding, assignor=assignor), rig.running(binding, assignor=assignor) as second:
        await rig.until(lambda: second.worker.stats()[0].partitions == 1, "each to have a partition", timeout=90)
        admin = AIOKafkaAdminClient(bootstrap_servers=rig.kafka)
        await admin.start()

        async def dealt() -> bool:
            (answer,) = await admin.describe_consumer_groups([rig.group])
            return assignor in answer.groups[0]

        try:
            await rig.until(dealt, f"the group to have chosen {assignor}", timeout=60)
        finally:
            await admin.close()
        await rig.until_drained()
    assert sorted(done) == ["o1", "o2"]


async def test_two_clients_of_one_instance_id_displace_each_other_for_ever(rig: Rig) -> None:
    await rig.create()

    def client() -> Any:
        return AIOKafkaConsumer(
            rig.topic,
            bootstrap_servers=rig.kafka,
            group_id=rig.group,
            group_instance_id="worker-1",
            enable_auto_commit=False,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=500,
        )

    clients = [client(), client()]
    names: list[set[str]] = [set(), set()]
    try:
        for each in clients:
            await each.start()

        def displaced() -> bool:
            for known, each in zip(names, clients, strict=True):
                known.add(each._coordinator.member_id)
            return all(len(known) > 3 for known in names)

        await rig.until(displaced, "each to be displaced again and again", timeout=120)
    finally:
        for each in clients:
            await each.stop()
