import asyncio
import contextlib
from collections.abc import AsyncIterator
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
        self.known = set(existing)
        self.refreshed = 0

    async def existing_topics(self) -> frozenset[str]:
        if self.existing is None:
            raise BrokerError("nobody answers")
        return frozenset(self.existing)

    def knows(self, topic: str) -> bool:
        return topic in self.known

    def look_for_partitions(self) -> None:
        self.refreshed += 1
        self.known = set(self.existing or ())


async def some_looks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def at_work(looking: TopicWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(looking.run())
    try:
        await some_looks()
        assert not task.done()
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.kafka.topics.LOOK_SECONDS", 0)


def watch(cluster: Any, **options: Any) -> TopicWatch:
    return TopicWatch(cluster, [Binding(body, topic="orders", group="billing", **options)])


async def test_nothing_is_missing() -> None:
    cluster = Cluster("orders", "orders.billing.dlq")
    looking = watch(cluster)
    async with at_work(looking):
        assert looking.missing == {}
    assert cluster.refreshed == 0


async def test_each_missing_topic_says_what_waits_for_it() -> None:
    cluster = Cluster()
    looking = watch(cluster, output="bills")
    async with at_work(looking):
        assert looking.missing.keys() == {"orders", "orders.billing.dlq", "bills"}
        assert "failed records stay unfinished" in looking.missing["orders.billing.dlq"]
        assert cluster.existing is not None
        cluster.existing |= {"orders", "bills"}
        await some_looks()
        assert looking.missing.keys() == {"orders.billing.dlq"}
        assert cluster.refreshed == 1
        cluster.existing.add("orders.billing.dlq")
        await some_looks()
        assert looking.missing == {}
    assert cluster.refreshed == 1


@pytest.mark.parametrize("seen", [True, False])
async def test_a_topic_that_was_deleted_is_looked_for(seen: bool) -> None:
    """Also if it was made again between two looks: the client itself looks only every metadata_max_age."""
    cluster = Cluster("orders", "orders.billing.dlq")
    looking = watch(cluster)
    async with at_work(looking):
        cluster.known.discard("orders")
        if seen:
            assert cluster.existing is not None
            cluster.existing.discard("orders")
            await some_looks()
            assert looking.missing.keys() == {"orders"}
            assert cluster.refreshed == 0
            cluster.existing.add("orders")
        await some_looks()
        assert (looking.missing, cluster.refreshed) == ({}, 1)


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
async def test_a_dead_letter_topic_is_not_missed_where_nothing_goes(on_failure: str) -> None:
    looking = watch(Cluster("orders"), on_failure=on_failure)
    async with at_work(looking):
        assert looking.missing == {}


async def test_a_silent_broker_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.existing = None
    async with at_work(watch(cluster)):
        assert "nobody answers" in caplog.text
