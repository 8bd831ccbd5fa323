"""Makes runs of the batches whose time has come, for the workflows that are served here.

Rules: every worker looks, none has a batch for itself: the store gives a batch that is due to one at a time, and to
another one if that one is gone. A workflow whose code has no trigger any more is looked at now and then, so that what
was gathered before a deploy isn't left.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from pyrula.workflows.client.trigger import TriggerStore, make_runs
from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import PyrulaError, StoreUnavailable
from pyrula.workflows.store.batches import Buffer
from pyrula.workflows.worker.served import Served

__all__ = ["Triggers"]

log = logging.getLogger("pyrula.worker")

# A window that was opened since the last look is found this late at most, so that none is a second late.
_LOOK_SECONDS: Final = 0.5
_AFTER_DUE: Final = 0.005
_ALMOST_SECONDS: Final = 0.05
_AT_ONCE: Final = 200
_OTHERS_SECONDS: Final = 60.0
_TOLD_SECONDS: Final = 300.0


class Triggers:
    """Looks for batches that are due. `on_run` is told the workflow and id of each run that was made.

    A batch that can't become a run, since the key of a Limit or Rate fails for it, waits for a deploy; `on_refused` is
    told, and may raise.
    """

    def __init__(
        self,
        store: TriggerStore,
        served: Served,
        clock: Clock,
        *,
        poll_interval: float,
        on_run: Callable[[str, str], None] | None = None,
        on_refused: Callable[[Buffer, Exception], None] | None = None,
    ) -> None:
        self._store = store
        self._served = served
        self._clock = clock
        self._interval = min(poll_interval, _LOOK_SECONDS)
        self._on_run = on_run
        self._on_refused = on_refused or self._tell
        self._told: dict[Buffer, float] = {}
        self._others_at = -_OTHERS_SECONDS
        self._next_due: float | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            pause = self._interval
            try:
                if await self.fire_due():
                    # others may have fallen due meanwhile
                    pause = 0.0
                elif self._next_due is not None:
                    pause = min(pause, max(0.0, self._next_due - self._store.now()) + _AFTER_DUE)
            except StoreUnavailable as error:
                log.debug("batches can't be looked at: %s", error)
            await asyncio.sleep(pause)

    async def next_due(self) -> float | None:
        """When the next batch that isn't due yet falls due."""
        return (await self._store.due_batches(self._names())).next_due

    async def fire_due(self) -> int:
        """How many runs were made; 0 if none is due but those that others have, or that no run can be made of."""
        due = await self._store.due_batches(self._names())
        self._next_due = due.next_due
        # not the first ones: where many are due, other workers look at the same
        some = random.sample(due.buffers, min(_AT_ONCE, len(due.buffers)))
        answers = await asyncio.gather(*(self._fire(buffer) for buffer in some), return_exceptions=True)
        runs = 0
        for buffer, answer in zip(some, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            runs += answer
            if not answer:
                # somebody else is at it, or it isn't quite due by the store's clock
                soon = self._store.now() + _ALMOST_SECONDS
                self._next_due = soon if self._next_due is None else min(soon, self._next_due)
            elif not self._has_trigger(buffer.name):
                self._others_at = -_OTHERS_SECONDS
        return runs

    async def _fire(self, buffer: Buffer) -> int:
        definition = self._served.find(buffer.name, None)
        assert definition is not None
        batch = await self._store.take_batch(buffer)
        try:
            made = await make_runs(self._store, definition, batch)
        except StoreUnavailable:
            raise
        except (PyrulaError, ValueError) as error:
            self._on_refused(buffer, error)
            return 0
        if self._on_run is not None:
            for run_id in made.values():
                self._on_run(buffer.name, run_id)
        return len(made)

    def _names(self) -> list[str]:
        names = list(dict.fromkeys(name for name, _ in self._served.pairs))
        now = self._clock.monotonic()
        if now - self._others_at >= _OTHERS_SECONDS:
            self._others_at = now
            return names
        return [name for name in names if self._has_trigger(name)]

    def _has_trigger(self, name: str) -> bool:
        definition = self._served.find(name, None)
        return definition is not None and definition.trigger is not None

    def _tell(self, buffer: Buffer, error: Exception) -> None:
        now = self._clock.monotonic()
        if now - self._told.get(buffer, -_TOLD_SECONDS) >= _TOLD_SECONDS:
            self._told[buffer] = now
            log.error("workflow %r: a batch of its events waits, no run can be made of it: %s", buffer.name, error)
