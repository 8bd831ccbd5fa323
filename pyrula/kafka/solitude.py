"""Letting one run have the whole process to itself, so that a death while it runs can be put down to it alone.

Of those who ask, the one that has died alone the least often goes first, so that no record takes the blame for kills
that hit whatever runs; so a little time passes in which all of them may ask. From then on nothing else starts, and what
runs already is waited for.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from time import monotonic

log = logging.getLogger("pyrula.kafka")

LOOK_SECONDS = 0.02
# From the first who asks: the records that were in progress together are read again together.
GATHER_SECONDS = 0.5


class Solitude:
    """One process's. `in_progress` counts what runs now; `reopened` is called when others may start again."""

    def __init__(
        self, in_progress: Callable[[], int], reopened: Callable[[], None], gather_seconds: float = GATHER_SECONDS
    ) -> None:
        self.wanted = False
        self._in_progress = in_progress
        self._gather_seconds = gather_seconds
        self._reopened = reopened
        self._asking: list[tuple[int, int]] = []
        self._numbers = count()
        self._taken = False
        self._gathered = 0.0

    async def take(self, deaths: int, still: Callable[[], bool]) -> bool:
        """Wait until nothing else runs; `give_back` must follow. False, with nothing to give back, once `still` is
        False: whoever asks isn't needed any more. `deaths` is how often it died alone."""
        place = (deaths, next(self._numbers))
        if not self._asking and not self._taken:
            log.warning("a record that may have killed its process is to run alone; nothing else starts meanwhile")
            self._gathered = monotonic() + self._gather_seconds
        self._asking.append(place)
        try:
            while still():
                if monotonic() >= self._gathered:
                    self.wanted = True
                    if not self._taken and min(self._asking) == place and self._in_progress() == 0:
                        self._taken = True
                        return True
                await asyncio.sleep(LOOK_SECONDS)
            return False
        finally:
            self._asking.remove(place)
            if not self._taken:
                self._open()

    def give_back(self) -> None:
        """The run has ended: others may go on."""
        self._taken = False
        self._open()

    async def open(self) -> None:
        """Until nobody has it or asks for it."""
        while self.wanted:  # noqa: ASYNC110 - it is rare, and an event would have to be set at every give_back
            await asyncio.sleep(LOOK_SECONDS)

    def _open(self) -> None:
        self.wanted = self._taken or bool(self._asking)
        if not self.wanted:
            self._reopened()
