"""Where a worker's events go: a port of one method, and the bounded buffer before it.

The buffer never makes a run wait. When the port is slower than the runs it fills up; then `behind` is true until it is
half empty, the worker's client refuses new runs, and the oldest events are dropped, counted and logged. Events are for
people who look on: the journal and the store's own events are complete without them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

__all__ = ["Egress", "EgressBuffer", "EgressEvent"]

log = logging.getLogger("pyrula.egress")

_BATCH: Final = 500
_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 5.0


@dataclass(frozen=True, slots=True)
class EgressEvent:
    """Something that happened to a run of this worker; types and data are those of `RunHandle.events()`."""

    run_id: str
    workflow: str
    type: str
    at: float
    data: dict[str, Any]


@runtime_checkable
class Egress(Protocol):
    """Takes events, in order. What it raises is logged, and the same events are sent again: they may come twice."""

    async def send(self, events: Sequence[EgressEvent]) -> None: ...


class EgressBuffer:
    """Up to `limit` events on their way to a port."""

    def __init__(self, port: Egress, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._waiting: deque[EgressEvent] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._dropped = 0
        self._behind = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def behind(self) -> bool:
        """Since it was full, until it is half empty."""
        if self._behind and len(self._waiting) <= self._limit // 2:
            self._behind = False
        return self._behind

    def put(self, event: EgressEvent) -> None:
        """Never waits. The oldest goes if there is no place."""
        if len(self._waiting) >= self._limit:
            self._waiting.popleft()
            if not self._dropped:
                log.warning("the egress is behind: %d events wait, the oldest are dropped", self._limit)
            self._dropped += 1
        self._waiting.append(event)
        self._behind = self._behind or len(self._waiting) >= self._limit
        self._filled.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send_on(), name="egress")

    async def stop(self, seconds: float) -> None:
        """Send what waits, for at most so long."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(seconds):
                while self._waiting and not self._task.done():
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            log.warning("the egress is behind: %d events are not sent", len(self._waiting))
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _send_on(self) -> None:
        delay = _FIRST_DELAY
        while True:
            while self._waiting:
                batch = [self._waiting[number] for number in range(min(len(self._waiting), _BATCH))]
                try:
                    await self._port.send(batch)
                except Exception as error:  # noqa: BLE001 - the port is the user's
                    log.warning("the egress takes no events: %r; they are sent again in %.1f s", error, delay)
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, _LAST_DELAY)
                    continue
                delay = _FIRST_DELAY
                self._sent(batch)
            self._emptied.set()
            self._filled.clear()
            await self._filled.wait()

    def _sent(self, batch: list[EgressEvent]) -> None:
        # those that were dropped meanwhile were the first ones
        gone = {id(event) for event in batch}
        while self._waiting and id(self._waiting[0]) in gone:
            self._waiting.popleft()
        if self._dropped and not self.behind:
            log.warning("the egress has caught up; %d events were dropped", self._dropped)
            self._dropped = 0
