"""Claims runs while there is room for them.

Rules: one claim is on its way at a time. The store's wake-ups, a place that becomes free and a timer that falls due are
reasons to look; so is the end of the poll interval, since each of them may be missed.
"""

import asyncio
import logging
from typing import Final

from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.runs import Claims, RunStore
from pyrula.workflows.worker.life import Lives
from pyrula.workflows.worker.served import Served

__all__ = ["Claimer", "woken_within"]

log = logging.getLogger("pyrula.worker")

# Timers are the store's; a look just before one falls due would be for nothing.
_AFTER_DUE: Final = 0.002


class Claimer:
    """Fills `lives` from the store. `trouble` says why it can't, while it can't."""

    def __init__(
        self, store: RunStore, worker: str, served: Served, lives: Lives, *, places: int, poll_interval: float
    ) -> None:
        self._store = store
        self._worker = worker
        self._served = served
        self._lives = lives
        self._places = places
        self._interval = poll_interval
        self._wake = asyncio.Event()
        self._due: float | None = None
        self._stopping = False
        self.trouble: str | None = None

    def wake(self) -> None:
        """There may be something to claim, or a place to put it."""
        self._wake.set()

    def on_due(self, moment: float) -> None:
        """A timer falls due then, by the store's clock."""
        if self._due is None or moment < self._due:
            self._due = moment
            self._wake.set()

    def stop(self) -> None:
        """After the claim that is on its way, no more."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopping:
            self._wake.clear()
            try:
                full = await self.claim_once()
                self._works()
            except StoreUnavailable as error:
                self._fails(error)
                full = False
            if not full and not self._stopping:
                await woken_within(self._wake, self._pause())

    async def claim_once(self) -> bool:
        """Claim what there is room for. Whether there may be more, and room for it."""
        room = 0 if self._lives.crowded else self._places - len(self._lives)
        if room <= 0:
            return False
        sent = self._lives.clock.monotonic()
        claims: Claims = await self._store.claim(self._worker, self._served.pairs, room)
        self._due = claims.next_due
        for claimed in claims.runs:
            self._lives.begin(claimed, sent)
        return len(claims.runs) == room and len(self._lives) < self._places

    def _pause(self) -> float:
        if self._due is None or self.trouble is not None or len(self._lives) >= self._places:
            return self._interval
        return min(self._interval, max(0.0, self._due - self._store.now()) + _AFTER_DUE)

    def _fails(self, error: StoreUnavailable) -> None:
        if self.trouble is None:
            log.warning("runs can't be claimed, tried again each %.1f s: %s", self._interval, error)
        self.trouble = str(error)

    def _works(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            log.warning("runs are claimed again")


async def woken_within(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, but no longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
