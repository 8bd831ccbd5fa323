"""The buffer before an egress: bounded, in order, never in a run's way."""

import asyncio
from collections.abc import Sequence

from pyrula.workflows.egress import EgressBuffer, EgressEvent
from tests.services.waiting import wait_until_async


def event(number: int) -> EgressEvent:
    return EgressEvent("00-run", "charge", "started", float(number), {})


class Port:
    """Takes events once `open` is set; fails `failures` times before that."""

    def __init__(self, failures: int = 0) -> None:
        self.open = asyncio.Event()
        self.failures = failures
        self.taken: list[float] = []

    async def send(self, events: Sequence[EgressEvent]) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("not now")
        await self.open.wait()
        self.taken += [one.at for one in events]


async def test_events_are_sent_in_order() -> None:
    port = Port()
    port.open.set()
    buffer = EgressBuffer(port, 1000)
    buffer.start()
    for number in range(700):
        buffer.put(event(number))
    await buffer.stop(5.0)
    assert port.taken == list(range(700))


async def test_events_that_were_not_taken_are_sent_again() -> None:
    port = Port(failures=1)
    port.open.set()
    buffer = EgressBuffer(port, 10)
    buffer.start()
    buffer.put(event(1))
    await buffer.stop(5.0)
    assert port.taken == [1]


async def test_a_full_buffer_is_behind_until_it_is_half_empty_and_drops_the_oldest() -> None:
    port = Port()
    buffer = EgressBuffer(port, 4)
    for number in range(3):
        buffer.put(event(number))
    assert not buffer.behind
    for number in range(3, 6):
        buffer.put(event(number))
    assert buffer.behind
    buffer.start()
    port.open.set()
    await wait_until_async(lambda: not buffer.behind, description="the buffer to be half empty")
    await buffer.stop(5.0)
    assert port.taken == [2, 3, 4, 5]


async def test_stopping_does_not_wait_for_a_port_that_takes_nothing() -> None:
    buffer = EgressBuffer(Port(), 4)
    buffer.start()
    buffer.put(event(1))
    await buffer.stop(0.01)
