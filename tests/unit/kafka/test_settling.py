"""Offsets of records that were handed over count once the store's disk surely has them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pyrula.kafka import settling
from pyrula.kafka.settling import Settling
from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.lanes import Persistence
from tests.services.waiting import wait_until_async


class Partition:
    closed = False
    tp = ("orders", 0)

    def __init__(self) -> None:
        self.done: list[int] = []
        self.opened_again = 0

    def settled(self, offsets: Sequence[int]) -> None:
        self.done += offsets

    def reopen(self) -> None:
        self.opened_again += 1


class Store:
    """Answers as it was told, the last of these for ever."""

    settles = True

    def __init__(self, *answers: Persistence | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def persistence(self) -> Persistence:
        await asyncio.sleep(0)
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


IDLE, BUSY = Persistence("a", "everysec", False), Persistence("a", "everysec", True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(settling, "SYNC_SECONDS", 0.0)


async def settle(store: Store) -> tuple[Any, Settling]:
    partition, made = Partition(), Settling(store)
    await made.start()
    store.asked = 0
    made.entrust(partition, [3, 5])  # type: ignore[arg-type]
    return partition, made


async def test_a_store_that_needs_no_settling_is_believed_at_once() -> None:
    store = Store(StoreUnavailable("never asked"))
    store.settles = False
    partition, _ = await settle(store)
    assert (partition.done, store.asked) == ([3, 5], 0)


async def test_three_answers_tell_that_the_next_fsync_is_over() -> None:
    # at start; nothing under way; it has begun; it goes on; it is over
    store = Store(IDLE, BUSY, IDLE, BUSY, BUSY, BUSY, IDLE)
    partition, _ = await settle(store)
    await wait_until_async(lambda: partition.done, description="them to count", timeout=60)
    assert (partition.done, store.asked) == ([3, 5], 6)


async def test_one_answer_is_enough_of_a_server_that_syncs_before_it_answers() -> None:
    store = Store(Persistence("a", "always", False))
    partition, _ = await settle(store)
    await wait_until_async(lambda: partition.done, description="them to count", timeout=60)
    assert store.asked == 1


async def test_a_server_that_was_started_again_is_believed_nothing() -> None:
    store = Store(IDLE, IDLE, IDLE, StoreUnavailable("gone"), Persistence("b", "everysec", False))
    partition, made = await settle(store)
    await wait_until_async(lambda: partition.opened_again, description="it to be opened again", timeout=60)
    assert (partition.done, partition.opened_again) == ([], 1)
    made.entrust(partition, [3])
    await wait_until_async(lambda: partition.done, description="what comes later to count", timeout=60)
    assert (partition.done, partition.opened_again) == ([3], 1)


async def test_without_a_file_nothing_counts(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(IDLE, Persistence("a", "", False))
    partition, made = await settle(store)
    await wait_until_async(lambda: store.asked > 20, description="it to be asked again and again", timeout=60)
    assert partition.done == []
    assert caplog.text.count("offsets of records handed over stay open") == 1
    await made.stop()


async def test_a_partition_that_was_let_go_is_forgotten() -> None:
    store = Store(IDLE, BUSY)
    partition, made = await settle(store)
    partition.closed = True
    asked = store.asked
    await wait_until_async(lambda: made._looking is None, description="the last look", timeout=60)
    assert partition.done == []
    assert store.asked == asked + 1
