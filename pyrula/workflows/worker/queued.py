"""What is queued for a run's next change: everything the engine asked to be written since the last one left."""

import asyncio
from typing import Any

from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.store.messages import Applied, Change, Child, Interrupt

__all__ = ["Queued"]


class Queued:
    """The parts of one `Change` to be. `written` is done when the store has acknowledged them all.

    `fed` are events for triggers, their answers are among the rows. Events of the run's history alone are no reason to
    write soon, so they don't count for `urgent`.
    """

    __slots__ = (
        "applied", "attempt", "children", "closed", "consumed", "events", "fed", "opened", "rows", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes]] = []
        self.consumed: list[int] = []
        self.applied: list[Applied] = []
        self.opened: list[Interrupt] = []
        self.closed: list[str] = []
        self.children: list[Child] = []
        self.events: list[bytes] = []
        self.fed: list[TriggerEvent] = []
        self.attempt: int | None = None
        self.written: asyncio.Future[None] | None = None

    @property
    def urgent(self) -> bool:
        return bool(
            self.rows
            or self.consumed
            or self.applied
            or self.opened
            or self.closed
            or self.children
            or self.attempt is not None
        )

    def change(self, number: int, seen: int, **more: Any) -> Change:
        return Change(
            number,
            seen,
            rows=self.rows,
            consumed=self.consumed,
            applied=self.applied,
            opened=self.opened,
            closed=self.closed,
            children=self.children,
            events=self.events,
            attempt=self.attempt,
            **more,
        )

    def settle(self, error: Exception | None) -> None:
        """Tell those who wait for it."""
        written = self.written
        if written is None or written.done():
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
            written.exception()  # it may be that nobody asks
