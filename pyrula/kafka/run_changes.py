"""What is decided about the run of a record, until it is written: the next change of it.

All that was decided in one stretch leaves together, with a flush of the run's partition and behind the rows that were
queued there. Events alone wait a moment for something to travel with.
"""

import asyncio
import secrets
from contextvars import Context
from typing import Any, Final

from pyrula.kafka.partition import Partition, RecordRun
from pyrula.workflows.clock import Clock
from pyrula.workflows.group_commit import Flush
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Applied, Child, Interrupt, Wait
from pyrula.workflows.store.record_changes import RecordChange, RecordEnd, RecordId

__all__ = ["Changes"]

_EVENTS_SECONDS: Final = 0.5


class Changes:
    """The changes of one run by its present holder. `flush` is the one that the last of them travels in."""

    def __init__(self, partition: Partition, run_id: RecordId, clock: Clock) -> None:
        self.run: RecordRun | None = None
        self.flush: Flush | None = None
        self.over = False
        self._partition = partition
        self._run_id = run_id
        self._clock = clock
        self._holder = secrets.token_hex(8)
        self._number = 0
        self._on_its_way = False
        self._lazy: asyncio.TimerHandle | None = None
        self.status = RunStatus.RUNNING
        self.waits: tuple[Wait, ...] = ()
        self.reason: bytes | None = None
        self._begin()

    def _begin(self) -> None:
        self.rows: list[tuple[int, bytes]] = []
        self.consumed: list[int] = []
        self.applied: list[Applied] = []
        self.opened: list[Interrupt] = []
        self.closed: list[str] = []
        self.children: list[Child] = []
        self.attempt: int | None = None
        self._events: list[bytes] = []
        self._end: RecordEnd | None = None

    def show(self, status: RunStatus, waits: tuple[Wait, ...] = (), reason: bytes | None = None) -> None:
        """How it stands from now on; told with the next change."""
        self.status, self.waits, self.reason = status, waits, reason

    def event(self, type: str, **data: Any) -> None:  # noqa: A002 - the public name
        """Something for the run's history."""
        self._events.append(encode_event(type, self._clock.now().timestamp(), **data))
        if self._lazy is None and not self._on_its_way:
            loop = asyncio.get_running_loop()
            self._lazy = loop.call_later(_EVENTS_SECONDS, self.touch, context=Context())

    def touch(self) -> None:
        """Something was decided that is to be written soon."""
        self._forget_timer()
        if self._on_its_way or self.over or self._partition.closed:
            return
        self._on_its_way = True
        self.flush = self._partition.change(self._take)
        if self.run is not None:
            self.run.flush = self.flush

    def end(self, end: RecordEnd) -> Flush:
        """The last word; nothing is written after it. The partition is open."""
        self._end = end
        self.touch()
        self.over = True
        assert self.flush is not None
        return self.flush

    def _take(self) -> RecordChange:
        self._number += 1
        self._on_its_way = False
        change = RecordChange(
            self._run_id,
            self._holder,
            self._number,
            status=self.status,
            waits=self.waits,
            error=self.reason,
            attempt=self.attempt,
            rows=self.rows,
            consumed=self.consumed,
            applied=self.applied,
            opened=self.opened,
            closed=self.closed,
            children=self.children,
            events=self._events,
            end=self._end,
        )
        self._begin()
        return change

    def _forget_timer(self) -> None:
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None

    def let_go(self) -> None:
        """Nothing more is written."""
        self._forget_timer()
