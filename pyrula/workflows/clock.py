"""Where time comes from.

Pure parts take times as arguments. What needs a clock gets one passed in; only `SystemClock` reads the machine's.
Time-outs and delays use `monotonic()`, what a person or a body sees uses `now()`. Durations are seconds.
"""

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from pyrula.workflows.errors import ConfigurationError

__all__ = ["Clock", "ManualClock", "SystemClock", "to_seconds"]


class Clock(Protocol):
    """A source of time: `monotonic()` in seconds never goes back, `now()` is an aware datetime in UTC."""

    def monotonic(self) -> float: ...

    def now(self) -> datetime: ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A clock for tests that moves only when told to.

    >>> clock = ManualClock()
    >>> clock.advance(90)
    >>> clock.monotonic()
    90.0
    """

    __slots__ = ("_elapsed", "_start")

    def __init__(self, start: datetime | None = None) -> None:
        if start is None:
            start = datetime(2025, 1, 1, tzinfo=UTC)
        if not isinstance(start, datetime) or start.tzinfo is None:
            raise ConfigurationError(
                f"start= must be an aware datetime, such as datetime(2025, 1, 1, tzinfo=UTC), not {start!r}"
            )
        self._start = start.astimezone(UTC)
        self._elapsed = 0.0

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def advance(self, by: float | timedelta) -> None:
        """Moves the clock forward by seconds or a timedelta."""
        self._elapsed += to_seconds(by, "ManualClock.advance()")


def to_seconds(duration: float | timedelta, what: str, *, zero: bool = True) -> float:
    """A duration in seconds: finite, not negative, not 0 unless `zero`. `what` names it in the ConfigurationError."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        try:
            seconds = float(duration)
        except OverflowError:
            seconds = math.inf
    else:
        raise ConfigurationError(f"{what} must be seconds or a timedelta, not {duration!r}")
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "not negative" if zero else "above 0"
        raise ConfigurationError(f"{what} must be finite and {least}, not {duration!r}")
    return seconds
