"""A request that waits for something of a run: until it is there, the caller leaves, or the server shuts down.

Rules: whoever waits holds nothing but memory: no worker, no slot. Leaving ends the wait and nothing else.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from pyrula.http.problems import Refusal

__all__ = ["CallerLeft", "Closing", "gone", "while_connected"]

T = TypeVar("T")

_SHUTTING_DOWN = "the server shuts down; ask again"


class CallerLeft(Exception):
    """Nobody is there any more to be answered."""


class Closing:
    """Set when the server shuts down, so that what waits ends before its time is over."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def begin(self) -> None:
        self._event.set()

    @property
    def begun(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()


async def gone(receive: Receive) -> None:
    """Returns when the caller has left. What is left of the body is read and thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, closing: Closing, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. It is cancelled when the caller leaves (CallerLeft) or the server shuts down (Refusal)."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(receive))
    ending = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait([working, leaving, ending], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if ending.done():
            raise Refusal("ShuttingDown", _SHUTTING_DOWN, headers={"Retry-After": "1"})
        raise CallerLeft
    finally:
        others = [working, leaving, ending]
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        for task in others:
            # taken note of, or asyncio would complain
            if not task.cancelled():
                task.exception()
