"""What a worker tells of itself: events of single records, counters of a binding, and its health.

Plain data, no I/O. Health answers "would a restart or a person help?", so a long-running body alone is not sick.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

log = logging.getLogger("pyrula.kafka")

EventKind = Literal[
    "completed",  # the run ended and its outputs, if any, are acknowledged
    "retrying",  # the run failed and will be tried again after a delay
    "dead_lettered",  # the record's copy is acknowledged by the dead-letter topic
    "stopped",  # on_failure="stop": the record stays unfinished and its lane holds
    "blocked",  # on_failure="park_key": dead-lettered, and the key waits for a retry or a cancel of the run
    "skipped",  # on_failure="skip": the record counts as done
    "paused",  # today's code doesn't match the run's journal; its lane holds
    "handed_over",  # the run waits, or is queued behind one that does, and the store has it; the record counts as done
    "cancelled",  # the run was cancelled; the record counts as done
    "lost",  # retention deleted records before they were read
]


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """One thing that happened to one record. `seconds` is the time since its body first started here."""

    kind: EventKind
    binding: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    run_id: str
    attempt: int
    error: str | None = None
    seconds: float = 0.0


Observer = Callable[[RecordEvent], None]


def tell(observer: Observer, event: RecordEvent) -> None:
    """Tell an observer, whose own faults are no reason to stop working."""
    try:
        observer(event)
    except Exception:
        log.exception("on_event raised for %r", event)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A record that isn't done, and for how long it has been the oldest such one of its partition."""

    topic: str
    partition: int
    offset: int
    run_id: str
    seconds: float


@dataclass(slots=True)
class BindingStats:
    """Counters of one binding since its worker started, and gauges of now. `lag` counts to the end of the log as of the
    last fetch, so it stands still while a partition isn't read. `failed`: records that on_failure decided about, since
    their last attempt failed, they can't be read, or their worker died of them. `held`: records that wait for a person;
    those in the store as of the last look there, 10 s ago at most."""

    binding: str
    completed: int = 0
    retried: int = 0
    failed: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    cancelled: int = 0
    paused: int = 0
    in_flight: int = 0
    buffered: int = 0
    partitions: int = 0
    lag: int = 0
    held: int = 0
    oldest: Unfinished | None = None


@dataclass(frozen=True, slots=True)
class BindingHealth:
    """State of one binding: "healthy", "degraded" (works, a person should look), or "unhealthy" (doesn't work)."""

    binding: str
    state: Literal["healthy", "degraded", "unhealthy"]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """State of a worker: the worst of its bindings, and why."""

    state: Literal["starting", "healthy", "degraded", "unhealthy", "stopping"]
    bindings: tuple[BindingHealth, ...] = ()
    reasons: tuple[str, ...] = field(default=())
