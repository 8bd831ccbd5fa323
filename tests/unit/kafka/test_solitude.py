"""Solitude: nothing starts while somebody asks for it, the least suspect goes first, and it always opens again."""

import asyncio

from pyrula.kafka.solitude import Solitude


class Process:
    """How many bodies run, and how often the others were let in again."""

    def __init__(self) -> None:
        self.running = 0
        self.opened = 0
        self.solitude = Solitude(lambda: self.running, self.open, gather_seconds=0)

    def open(self) -> None:
        self.opened += 1


async def test_it_waits_for_what_runs_and_opens_when_given_back() -> None:
    process = Process()
    process.running = 1
    taking = asyncio.create_task(process.solitude.take(0, lambda: True))
    await asyncio.sleep(0)
    assert process.solitude.wanted
    assert not taking.done()
    process.running = 0
    assert await taking
    assert process.solitude.wanted
    opening = asyncio.create_task(process.solitude.open())
    process.solitude.give_back()
    await opening
    assert process.opened == 1


async def test_of_several_the_one_that_died_least_goes_first() -> None:
    process = Process()
    order = []

    async def run(deaths: int) -> None:
        assert await process.solitude.take(deaths, lambda: True)
        order.append(deaths)
        process.running = 1
        await asyncio.sleep(0)
        process.running = 0
        process.solitude.give_back()

    process.running = 1
    runs = [asyncio.create_task(run(deaths)) for deaths in (2, 0, 1)]
    await asyncio.sleep(0)
    process.running = 0
    await asyncio.gather(*runs)
    assert order == [0, 1, 2]
    assert not process.solitude.wanted


async def test_who_is_no_longer_needed_gives_up_and_lets_the_others_in() -> None:
    process = Process()
    process.running = 1
    needed = True
    taking = asyncio.create_task(process.solitude.take(0, lambda: needed))
    await asyncio.sleep(0)
    needed = False
    assert not await taking
    assert not process.solitude.wanted
    assert process.opened == 1
