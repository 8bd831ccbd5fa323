"""What a run's host gives and takes."""

from collections.abc import Awaitable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from pyrula.workflows.replay.journal import Entry

__all__ = ["COMPLETED", "Host", "Outcome", "Output", "Status"]

Status: TypeAlias = Literal["completed", "failed", "cancelled", "paused", "cut"]


class Output(NamedTuple):
    """A message that `ctx.send` buffered, as it will be produced."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    timestamp_ms: int | None


class Outcome:
    """How a body ended. `error` is set for "failed" and "paused", `value` for "completed" (as the body returned it)."""

    __slots__ = ("error", "status", "value")

    def __init__(self, status: Status, value: Any = None, error: BaseException | None = None) -> None:
        self.status = status
        self.value = value
        self.error = error

    def __repr__(self) -> str:
        return f"Outcome({self.status!r}, value={self.value!r}, error={self.error!r})"


class Host(Protocol):
    """Who keeps the journals of runs; one object serves many."""

    def append(self, run: "Any", index: int, entry: Entry | None) -> None:
        """Queues a row for the next group commit, in order; None deletes the row."""

    def durable(self, run: "Any") -> Awaitable[None] | None:
        """None when all rows of the run are acknowledged, else what to await for it; that may raise LeaseLost."""

    def record(self, run: "Any") -> object | None:
        """What `ctx.record` shows."""


COMPLETED = Outcome("completed")
"""Of every body that returned None."""
