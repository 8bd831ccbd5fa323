import asyncio
import contextlib
from typing import Any

import pytest

from pyrula.kafka import Binding
from pyrula.kafka.client import BrokerError
from pyrula.kafka.topics import TopicWatch
from pyrula.workflows import Context, workflow


@workflow(name="unit.topics")
async def body(ctx: Context) -> None:
    pass


class Cluster:
    """A client that knows topics, or has none to ask."""

    topics = ("orders",)

    def __init__(self, *existing: str) -> None:
        self.existing: set[str] | None = set(existing)
        self.refreshed = 0

    async def existing_topics(self) -> frozenset[str]:
        if self.existing is None:
            raise BrokerError("nobody answers")
        return frozenset(self.existing)

    def look_for_partitions(self) -> None:
        self.refreshed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.kafka.topics.LOOK_SECONDS", 0)


def watch(cluster: Any, **options: Any) -> TopicWatch:
    return TopicWatch(cluster, [Binding(body, topic="orders", group="billing", **options)])


async def test_nothing_is_missing() -> None:
    found = watch(Cluster("orders", "orders.billing.dlq"))
    await found.run()
    assert found.missing == {}


async def test_each_missing_topic_says_what_waits_for_it() -> None:
    cluster = Cluster()
    looking = watch(cluster, output="bills")
    task = asyncio.create_task(looking.run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert looking.missing.keys() == {"orders", "orders.billing.dlq", "bills"}
    assert "failed records stay unfinished" in looking.missing["orders.billing.dlq"]
    assert cluster.existing is not None
    cluster.existing |= {"orders", "bills"}
    for _ in range(5):
        await asyncio.sleep(0)
    assert looking.missing.keys() == {"orders.billing.dlq"}
    assert cluster.refreshed == 1
    cluster.existing.add("orders.billing.dlq")
    await task
    assert looking.missing == {}
    assert cluster.refreshed == 1


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
async def test_a_dead_letter_topic_is_not_missed_where_nothing_goes(on_failure: str) -> None:
    found = watch(Cluster("orders"), on_failure=on_failure)
    await found.run()
    assert found.missing == {}


async def test_a_silent_broker_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.existing = None
    task = asyncio.create_task(watch(cluster).run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert "nobody answers" in caplog.text
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
