"""The states of a submitted run, and which may follow which: data, drawn from here into the docs.

Rules: whatever isn't in `TRANSITIONS` is refused by the store, with the present status. Terminal states are final but
for one verb, `retry`. A parked run's status names what it waits for: the wait that was registered first.
"""

from enum import StrEnum
from typing import Final

__all__ = ["PARKED", "TERMINAL", "TRANSITIONS", "RunStatus"]


class RunStatus(StrEnum):
    """Where a run is. A member equals its text.

    >>> RunStatus("signal_waiting") == "signal_waiting"
    True
    """

    QUEUED = "queued"
    RUNNING = "running"
    SLEEPING = "sleeping"
    SIGNAL_WAITING = "signal_waiting"
    INTERRUPT_WAITING = "interrupt_waiting"
    CHILD_WAITING = "child_waiting"
    RETRYING = "retrying"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CONTINUED_AS_NEW = "continued_as_new"


PARKED: Final = frozenset(
    {
        RunStatus.SLEEPING,
        RunStatus.SIGNAL_WAITING,
        RunStatus.INTERRUPT_WAITING,
        RunStatus.CHILD_WAITING,
        RunStatus.RETRYING,
    }
)
"""Waiting in the store, held by nobody; a timer, a matching message or a cancel queues it again."""

TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.CONTINUED_AS_NEW})

_WOKEN: Final = frozenset({RunStatus.QUEUED, RunStatus.PAUSED})

TRANSITIONS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    # claim; cancel of a run that never started; pause
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.PAUSED}),
    # park and pause; finish; queued: its worker died or let it go
    RunStatus.RUNNING: PARKED | TERMINAL | _WOKEN,
    # timer, message, cancel (the body gets to clean up); pause
    **dict.fromkeys(sorted(PARKED), _WOKEN),
    # unpause; cancel of a run that never started
    RunStatus.PAUSED: frozenset({RunStatus.QUEUED, RunStatus.CANCELLED}),
    RunStatus.COMPLETED: frozenset(),
    # retry
    RunStatus.FAILED: frozenset({RunStatus.QUEUED}),
    RunStatus.CANCELLED: frozenset({RunStatus.QUEUED}),
    RunStatus.CONTINUED_AS_NEW: frozenset(),
}
