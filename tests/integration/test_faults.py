"""Faults that are neither the body's nor the record's: they are told of, and everything else goes on."""

import logging
from typing import Any

import pytest

from pyrula.kafka import Record
from pyrula.kafka.client import GroupClient
from pyrula.kafka.events import RecordEvent
from pyrula.kafka.record import record_identity
from pyrula.workflows import Context, workflow
from pyrula.workflows.store.port import Batch
from tests.integration.rig import Rig

seen: list[int] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


@workflow(name="faults")
async def body(ctx: Context, record: Record[bytes]) -> None:
    seen.append(record.offset)


async def test_an_observer_that_raises_stops_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def raises(event: RecordEvent) -> None:
        raise ValueError("the observer's own fault")

    await rig.create()
    async with rig.running(rig.binding(body)) as running:
        running.worker.on_event = raises
        with caplog.at_level(logging.ERROR):
            await rig.produce([b"%d" % n for n in range(20)])
            await rig.until_drained()
    assert seen == list(range(20))
    assert "the observer's own fault" in caplog.text


async def test_rows_of_another_version_hold_their_record_alone(rig: Rig) -> None:
    await rig.create()
    await rig.produce([b"%d" % n for n in range(5)])
    binding = rig.binding(body)
    source = record_identity(binding.cluster, binding.group, rig.topic, 0)
    store = rig.store()
    await store.open()
    claim = await store.claim_source(source, 0)
    row = b'[99,"value","1","step","note",1,null,null,"f"]'
    assert await store.append_rows([Batch(source, claim.token, [(1, 0, row)], 1)]) == [None]
    await store.release_source(source, claim.token)
    await store.close()
    async with rig.running(binding) as running:
        await rig.until(lambda: len(seen) == 4 and running.told("stopped"), "the others to run")
        (held,) = running.told("stopped")
        assert (held.offset, "99" in (held.error or "")) == (1, True)
        assert f"{rig.topic}[0] offset 1" in running.reasons
        await rig.until_committed(1)
    assert seen == [0, 2, 3, 4]
    assert await rig.offset() == 1


@pytest.mark.parametrize("part", ["coordination", "fetching"])
async def test_a_client_whose_task_has_ended_is_made_anew(
    rig: Rig, part: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[GroupClient] = []
    start = GroupClient.start

    async def noted(client: GroupClient, *listeners: Any) -> None:
        clients.append(client)
        await start(client, *listeners)

    monkeypatch.setattr(GroupClient, "start", noted)
    await rig.create()
    async with rig.running(rig.binding(body)) as running:
        await rig.produce([b"%d" % n for n in range(5)])
        await rig.until_drained()
        consumer = clients[0]._consumer
        (consumer._coordinator._coordination_task if part == "coordination" else consumer._fetcher._fetch_task).cancel()
        await rig.until(lambda: f"its {part} has ended" in caplog.text, "it to be noticed")
        await rig.produce([b"%d" % n for n in range(5)])
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to tell that it works")
    assert seen == list(range(10))
