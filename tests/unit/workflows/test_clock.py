import math
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from pyrula.workflows.clock import Clock, ManualClock, SystemClock, to_seconds
from pyrula.workflows.errors import ConfigurationError


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before, shown = time.monotonic(), datetime.now(UTC)
    assert before <= clock.monotonic() <= time.monotonic()
    assert shown <= clock.now() <= datetime.now(UTC)
    assert clock.now().tzinfo is UTC


def test_a_manual_clock_moves_only_when_told() -> None:
    clock: Clock = (manual := ManualClock(datetime(2025, 5, 1, 2, tzinfo=timezone(timedelta(hours=2)))))
    start = clock.now()
    assert start == datetime(2025, 5, 1, tzinfo=UTC)
    assert start.tzinfo is UTC
    assert clock.monotonic() == 0
    manual.advance(1.5)
    manual.advance(timedelta(days=30))
    assert clock.monotonic() == 30 * 86_400 + 1.5
    assert clock.now() - start == timedelta(days=30, seconds=1.5)


def test_a_manual_clock_does_not_go_back_and_starts_aware() -> None:
    with pytest.raises(ConfigurationError):
        ManualClock().advance(-1)
    with pytest.raises(ConfigurationError, match="aware"):
        ManualClock(datetime(2025, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("duration", "seconds"), [(2, 2.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (0, 0.0)])
def test_durations_are_seconds_or_timedeltas(duration: Any, seconds: float) -> None:
    assert to_seconds(duration, "timeout") == seconds


@pytest.mark.parametrize("duration", [-1, timedelta(-1), math.nan, math.inf, 10**400, "5", None, True])
def test_other_durations_are_refused_by_name(duration: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^step `a`: timeout must be"):
        to_seconds(duration, "step `a`: timeout")


def test_zero_may_be_excluded() -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        to_seconds(0, "timeout", zero=False)
