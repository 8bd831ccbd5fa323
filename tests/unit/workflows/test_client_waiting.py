import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyrula.workflows.client.waiting import Polling


class Store:
    """Wakes when a test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def on_change(self, run_id: str, callback: Callable[[], None]) -> "Store":
        self.callbacks.append(callback)
        return self

    def close(self) -> None:
        self.callbacks.pop()


class Reads:
    """Gives None so often, and counts."""

    def __init__(self, nones: int) -> None:
        self.nones = nones
        self.count = 0
        self.again = asyncio.Event()

    async def __call__(self) -> str | None:
        self.count += 1
        self.again.set()
        return "there" if self.count > self.nones else None

    async def reach(self, count: int) -> None:
        while self.count < count:
            self.again.clear()
            await self.again.wait()


def polling(store: Any, interval: float = 3600.0) -> Polling:
    return Polling(store, interval)


async def test_what_is_there_is_read_once_and_nobody_listens() -> None:
    store, read = Store(), Reads(0)
    assert await polling(store).until("r", read, None) == "there"
    assert (read.count, store.callbacks) == (1, [])


async def test_it_is_read_again_after_listening_began() -> None:
    # what happened between the first look and the subscription woke nobody
    read = Reads(1)
    assert await polling(Store()).until("r", read, None) == "there"


async def test_a_wake_up_leads_to_a_read() -> None:
    store, read = Store(), Reads(3)
    waiting = asyncio.create_task(polling(store).until("r", read, None))
    for count in (2, 3):
        await read.reach(count)
        await asyncio.sleep(0)
        store.callbacks[0]()
    assert await waiting == "there"
    assert (read.count, store.callbacks) == (4, [])


async def test_without_any_wake_up_all_are_read_by_one_ticker() -> None:
    store, reads = Store(), [Reads(5) for _ in range(50)]
    waits = polling(store, 0.001)
    assert await asyncio.gather(*(waits.until("r", read, None) for read in reads)) == ["there"] * 50
    assert (waits._waiting, waits._ticker, store.callbacks) == (set(), None, [])


@pytest.mark.parametrize("seconds", [0, 0.001])
async def test_when_the_time_is_over_there_was_a_last_look(seconds: float) -> None:
    store = Store()
    assert await polling(store).until("r", Reads(100), seconds) is None
    assert await polling(store).until("r", Reads(2), seconds) == "there"
    assert store.callbacks == []


async def test_a_store_that_does_not_answer_holds_nobody_longer_than_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.workflows.client.waiting._GRACE", 0.001)

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    assert await polling(Store()).until("r", never, 0.001) is None


async def test_what_read_raises_is_raised_a_timeout_error_too() -> None:
    async def read() -> str | None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await polling(Store()).until("r", read, 5)


async def test_an_event_of_the_callers_wakes_too() -> None:
    read, woken = Reads(2), asyncio.Event()
    waiting = asyncio.create_task(polling(Store()).until("r", read, None, woken=woken))
    await read.reach(2)
    await asyncio.sleep(0)
    woken.set()
    assert await waiting == "there"
