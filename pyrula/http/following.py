"""Following a run: its events over the whole chain, each once and in order, from any point on.

Rules: a position is a link of the chain and how many of its events were read; it is what a client sends back after a
break, and holds in any process. Events are read from the store by number, so that a worker's death, a wake-up that got
lost or a server that was restarted leave no gap and repeat nothing. They are read page by page, however many there are:
of a long history no more is held than a page of it, which is short where items are large.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.codec import dumps
from pyrula.workflows.store.events import Event, InOrder
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.runs import Result

__all__ = ["Ended", "Happened", "Position", "follow", "told"]

_FIRST_PAGE: Final = 8
_LONGEST_PAGE: Final = 64
_SMALL: Final = 64 * 1024
_LARGE: Final = 512 * 1024
_POSITION: Final = re.compile(r"([1-9]\d{0,8})-(\d{1,12})(\.end)?", re.ASCII)


class Position(NamedTuple):
    """So many events of this link were read; `ended`: the run's end was told, too.

    >>> Position.parse("2-17")
    Position(link=2, number=17, ended=False)
    """

    link: int
    number: int = 0
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.link}-{self.number}{'.end' if self.ended else ''}"

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """None for what is no position."""
        match = _POSITION.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]), match[3] is not None)


class Happened(NamedTuple):
    """An event of the run `run_id`; after it one is at `position`."""

    position: Position
    run_id: str
    event: Event


class Ended(NamedTuple):
    """The run has ended, and there is nothing more to come unless somebody retries it."""

    position: Position
    result: Result


class Pages:
    """Reads the events of one link after the other: as many at once as are small together."""

    def __init__(self, client: WorkflowClient, name: str) -> None:
        self._client = client
        self._name = name
        self._length = _FIRST_PAGE

    async def read(self, link: str, start: int) -> list[Event]:
        """Of this link, from number `start` on; none if there are no more by now."""
        events = await self._client.events_of(self._name, link, start=start, limit=self._length)
        size = sum(len(dumps(event.data)) for event in events)
        if size > _LARGE:
            self._length = max(1, self._length // 4)
        elif size < _SMALL and len(events) == self._length:
            self._length = min(_LONGEST_PAGE, self._length * 4)
        return events


async def told(client: WorkflowClient, name: str, run_id: str) -> AsyncGenerator[list[Event], None]:
    """What happened to the live link so far, in the order in which it happened, page by page."""
    if RecordId.parse(run_id) is not None and not await client.events_of(name, run_id, limit=1):
        # its worker may have them, and not the store
        yield await client.events(name, run_id)
        return
    link, pages, order, number = (await client.detail(name, run_id)).run_id, Pages(client, name), InOrder(), 0
    while events := await pages.read(link, number):
        number += len(events)
        yield order.take(events)
    yield order.rest()


async def follow(
    client: WorkflowClient, name: str, run_id: str, after: Position, *, poll_interval: float = 1.0
) -> AsyncGenerator[Happened | Ended | None, None]:
    """What happened after this position, and then what happens, until the run ends. None each time nothing has happened
    for `poll_interval` seconds. RunNotFoundError when the run is gone, or never was."""
    run = RunId.parse(run_id)
    at, sure, pages = after._replace(ended=False), False, Pages(client, name)
    changed = asyncio.Event()
    await client.origin(name, run_id)
    subscription = client.store.on_change(run_id, changed.set)
    try:
        while True:
            changed.clear()
            # first the result: then all events of a run that has one are there
            result = await client.store.result(run_id)
            link = str(run._replace(link=at.link))
            events = await pages.read(link, at.number)
            for event in events:
                at = at._replace(number=at.number + 1)
                if event.type == "continued_as_new":
                    yield Happened(at, link, event)
                    at = Position(at.link + 1)
                    break
                yield Happened(at, link, event)
            if events:
                sure = True
                continue
            if not sure or result is not None:
                # a link that continued is forgotten after its retention, with the event that would lead on
                live = RunId.parse(result.run_id if result else (await client.detail(name, run_id)).run_id).link
                if at.link < live:
                    at = Position(at.link + 1)
                    continue
                sure = True
            if result is not None:
                if not after.ended or at != after._replace(ended=False):
                    yield Ended(at._replace(ended=True), result)
                return
            if not await _set_within(changed, poll_interval):
                yield None
    finally:
        subscription.close()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
