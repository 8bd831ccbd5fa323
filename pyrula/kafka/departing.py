"""Handing the run of one record that stands still over to the store.

Rules: what was decided about the run is durable first, and then it must still be so that it may leave. If the store
refuses, or can't be reached, it stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TypeAlias

from pyrula.kafka.attending import Leaving
from pyrula.kafka.run_changes import Changes
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.store.lanes import HandedOver
from pyrula.workflows.store.record_changes import RecordId

__all__ = ["Departing", "Departure"]

log = logging.getLogger("pyrula.kafka")

# Hands a run that stands still over to the store.
Departure: TypeAlias = Callable[[Leaving], Awaitable[HandedOver]]


class Departing:
    """One run's departures, one after the other. Without a `departure` it stays here."""

    def __init__(self, run_id: RecordId, changes: Changes, departure: Departure | None) -> None:
        self.departure = departure
        self._run_id = run_id
        self._changes = changes
        self._task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether it is about to leave, or being handed over."""
        return self._task is not None

    def begin(self, leaving: Callable[[], Leaving | None], then: Callable[[HandedOver | None], None]) -> None:
        """Hand it over as `leaving` says when the time has come, None if it had better stay; then call `then`, with
        None if the partition is about to be dropped."""
        loop = asyncio.get_running_loop()
        self._task = Context().run(loop.create_task, self._leave(leaving, then), name=f"hand over {self._run_id}")

    async def _leave(self, leaving: Callable[[], Leaving | None], then: Callable[[HandedOver | None], None]) -> None:
        answer: HandedOver | None = HandedOver(False)
        try:
            if (flush := self._changes.flush) is not None and not flush.done:
                await flush.wait()
            asked = leaving()
            if asked is not None and self.departure is not None:
                answer = await self.departure(asked)
        except LeaseLost:
            answer = None
        except StoreError as error:
            log.warning("run %s stays here: %s", self._run_id, error)
        finally:
            self._task = None
        then(answer)

    def let_go(self) -> None:
        """The partition was let go."""
        if self._task is not None:
            self._task.cancel()
