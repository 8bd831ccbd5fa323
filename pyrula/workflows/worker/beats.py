"""The worker's heartbeat, and its eye on the other workers.

Rules: a heartbeat counts from the moment it was sent. A worker that can't get one through lets its bodies go before
others may take over its runs, uncharged. It judges others only by what it has seen while it was connected itself.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.store.leases import Watch
from pyrula.workflows.store.runs import RunStore, Suspect
from pyrula.workflows.worker.held import HeldRun
from pyrula.workflows.worker.options import WorkerOptions

__all__ = ["Heartbeat", "Holding"]

log = logging.getLogger("pyrula.worker")


class Holding(Protocol):
    """Who has runs in hand."""

    @property
    def held(self) -> Mapping[str, HeldRun]:
        """By run id."""

    def cut(self) -> None:
        """End all bodies promptly, uncharged."""


class Heartbeat:
    """Beats, reaps, relays. `on_freed` is called when there may be runs to claim because of it. `answered` is when the
    last heartbeat left that the store has answered."""

    def __init__(
        self,
        store: RunStore,
        worker: str,
        lives: Holding,
        options: WorkerOptions,
        clock: Clock,
        on_freed: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._lives = lives
        self._interval = options.heartbeat_interval
        self._patience = options.patience
        self._clock = clock
        self._on_freed = on_freed
        self._watch = Watch[Suspect](options.lease_seconds)
        self.reached = clock.monotonic()
        self.cut_off = False
        self.answered: float | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began = self._clock.monotonic()
            try:
                await self.beat()
            except StoreUnavailable as error:
                self._watch.forget()
                log.warning("the worker's heartbeat doesn't get through: %s", error)
            await asyncio.sleep(max(0.0, self._interval - (self._clock.monotonic() - began)))

    async def watch_over(self) -> None:
        """Cut the bodies when the store was out of reach for too long. Until it is cancelled."""
        while True:
            left = self.reached + self._patience - self._clock.monotonic()
            if left <= 0:
                if not self.cut_off:
                    self.cut_off = True
                    log.error("the store can't be reached for %.1f s: the running bodies are cut", self._patience)
                self._lives.cut()
                left = self._interval
            await asyncio.sleep(max(left, 0.01))

    async def beat(self) -> None:
        sent = self._clock.monotonic()
        held = {one.lease: one for one in self._lives.held.values()}
        beat = await self._store.heartbeat(self._worker, {lease: one.seen for lease, one in held.items()})
        self.reached = self.answered = sent
        self.cut_off = False
        for lease in beat.lost:
            # parked or ended since the heartbeat left
            if self._lives.held.get(lease.run_id) is held[lease]:
                held[lease].look_for_messages()
        for run_id in beat.unread:
            self._on_message(run_id)
        await self._look_at_others()
        await self._store.relay()

    def _on_message(self, run_id: str) -> None:
        held = self._lives.held.get(run_id)
        if held is not None:
            held.look_for_messages()

    async def _look_at_others(self) -> None:
        beats = [beat for beat in await self._store.beats() if beat.worker != self._worker]
        for suspect in self._watch.observe(beats, self._clock.monotonic()):
            reaped = await self._store.reap(suspect)
            if reaped:
                log.warning("worker %s is dead: %d runs of it are queued again", suspect.worker, reaped)
                self._on_freed()
