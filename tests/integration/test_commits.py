"""When offsets are committed, and what a worker says that can't even join its group."""

import pytest

from pyrula.kafka import KafkaOptions, KafkaWorker
from pyrula.kafka.client import BrokerError
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig


@workflow(name="commits")
async def body(ctx: Context) -> None:
    pass


async def test_a_commit_is_due_after_so_many_completions(rig: Rig) -> None:
    await rig.create()
    async with rig.running(rig.binding(body), commit_interval=300.0, commit_after=50):
        await rig.produce([b"{}"] * 49)
        await rig.until_committed(0)
        assert await rig.offset() == 0
        await rig.produce([b"{}"] * 60)
        await rig.until_committed(50)


async def test_a_group_that_refuses_the_member_is_told_from_a_silent_broker(rig: Rig) -> None:
    await rig.create()
    # A broker's group.max.session.timeout.ms is half an hour.
    refused = KafkaOptions(bootstrap_servers=rig.kafka, session_timeout=3600)
    silent = KafkaOptions(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(BrokerError, match=f"group {rig.group} could not be joined: InvalidSessionTimeoutError"):
        await KafkaWorker(rig.binding(body), store=rig.store(), kafka=refused).run()
    with pytest.raises(BrokerError, match="no Kafka broker answered"):
        await KafkaWorker(rig.binding(body), store=rig.store(), kafka=silent).run()
