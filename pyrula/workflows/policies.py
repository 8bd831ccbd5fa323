"""What can be declared about when runs start and how failures repeat. Plain rules: no I/O, no clock, no randomness.

A policy's key is a parameter name or a function of the params. It resolves to a text: a missing or None value to "",
a scalar to its `str()` (1 and "1" are one key), a dict or list to its JSON.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from pyrula.workflows.annotations import is_async
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import encode_message
from pyrula.workflows.errors import ConfigurationError, NonDeterminismError, SerializationError, StepError
from pyrula.workflows.naming import names_checked

__all__ = ["Collect", "Debounce", "Key", "Limit", "Policy", "Rate", "Retry", "resolve_key"]

Key: TypeAlias = str | Callable[[dict[str, Any]], Any]


@names_checked
@dataclass(frozen=True, slots=True)
class Limit:
    """At most `max` runs per key execute at once.

    >>> Limit(key="tenant_id", max=2)
    Limit(key='tenant_id', max=2)
    """

    key: Key
    max: int

    def __post_init__(self) -> None:
        _check_key(self.key, "Limit")
        _check_count(self.max, "Limit(max=...)")


@names_checked
@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket per key: `per_second` starts a second, up to `burst` at once (by default ceil(per_second)).

    >>> Rate("tenant_id", per_second=2.5).burst
    3
    """

    key: Key
    per_second: float
    burst: int | None = None

    def __post_init__(self) -> None:
        _check_key(self.key, "Rate")
        _check_number(self.per_second, "Rate(per_second=...)", least=0, above=True)
        if self.burst is None:
            object.__setattr__(self, "burst", math.ceil(self.per_second))
        else:
            _check_count(self.burst, "Rate(burst=...)")


@names_checked
@dataclass(frozen=True, slots=True)
class Collect:
    """Buffers events per key; one run starts at `max_events`, or `window_seconds` after the first of them.

    >>> Collect(key="user_id", max_events=50, window_seconds=60).window_seconds
    60
    """

    key: Key
    max_events: int
    window_seconds: float

    def __post_init__(self) -> None:
        _check_key(self.key, "Collect")
        _check_count(self.max_events, "Collect(max_events=...)")
        _check_number(self.window_seconds, "Collect(window_seconds=...)", least=0, above=True)


@names_checked
@dataclass(frozen=True, slots=True)
class Debounce:
    """Buffers events per key; one run starts once no event has come for `window_seconds`.

    With `max_wait_seconds` it starts so long after the first event at the latest, though events still come.

    >>> Debounce("document_id", window_seconds=5, max_wait_seconds=60).window_seconds
    5
    """

    key: Key
    window_seconds: float
    max_wait_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_key(self.key, "Debounce")
        _check_number(self.window_seconds, "Debounce(window_seconds=...)", least=0, above=True)
        if self.max_wait_seconds is not None:
            _check_number(self.max_wait_seconds, "Debounce(max_wait_seconds=...)", least=0, above=True)
            if self.max_wait_seconds < self.window_seconds:
                raise ConfigurationError(
                    f"Debounce(max_wait_seconds={self.max_wait_seconds!r}) is less than "
                    f"window_seconds={self.window_seconds!r}, so that no event would ever extend the wait"
                )


Policy: TypeAlias = Limit | Rate | Collect | Debounce

# The same attempt would fail in the same way, or must not be made at all.
_NEVER_RETRYABLE = (ConfigurationError, NonDeterminismError, SerializationError)


@names_checked
@dataclass(frozen=True, slots=True)
class Retry:
    """How a failed attempt is repeated: exponential delays in seconds, shortened at random by up to `jitter`.

    An error with a `retry_after` (seconds or timedelta) sets the delay itself.

    >>> Retry(max_attempts=5, initial=1).delay(3, 0.0)
    4.0
    """

    max_attempts: int = 3
    initial: float | timedelta = 0.5
    factor: float = 2.0
    max_delay: float | timedelta = 60
    jitter: float = 0.1
    non_retryable: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        _check_count(self.max_attempts, "Retry(max_attempts=...)")
        _check_number(self.factor, "Retry(factor=...)", least=1)
        _check_number(self.jitter, "Retry(jitter=...)", least=0)
        if self.jitter > 1:
            raise ConfigurationError(f"Retry(jitter=...) is a share of the delay, from 0 to 1, not {self.jitter!r}")
        object.__setattr__(self, "initial", to_seconds(self.initial, "Retry(initial=...)"))
        object.__setattr__(self, "max_delay", to_seconds(self.max_delay, "Retry(max_delay=...)"))
        object.__setattr__(self, "non_retryable", _exception_types(self.non_retryable))

    def delay(self, attempt: int, rnd: float) -> float:
        """Seconds between failed attempt number `attempt` (from 1) and the next; `rnd`, in [0, 1), is the jitter's."""
        most = _plain_seconds(self.max_delay)
        try:
            delay = min(_plain_seconds(self.initial) * self.factor ** (attempt - 1), most)
        except OverflowError:
            delay = most
        return delay * (1 - self.jitter * rnd)

    def delay_for(self, exc: BaseException, attempt: int, rnd: float) -> float:
        """As `delay`, but the error's own `retry_after` wins if it is a duration."""
        wanted = getattr(exc, "retry_after", None)
        if wanted is not None:
            try:
                return to_seconds(wanted, "retry_after")
            except ConfigurationError:
                pass  # a text or a negative number: not meant for us
        return self.delay(attempt, rnd)

    def retryable(self, exc: BaseException) -> bool:
        """Whether another attempt makes sense after this error; attempts left are the caller's to count."""
        if not isinstance(exc, Exception) or isinstance(exc, _NEVER_RETRYABLE + self.non_retryable):
            return False
        if isinstance(exc, StepError):
            return not any(exc.error_type in _names(kind) for kind in self.non_retryable)
        return True


def resolve_key(policy: Policy, params: Mapping[str, Any], workflow: str) -> str:
    """The policy's key for these params, for Collect and Debounce those of an event. ValueError naming the workflow."""
    what = f"workflow {workflow!r}: the key of {type(policy).__name__}"
    key = policy.key
    try:
        value = params.get(key) if isinstance(key, str) else key(dict(params))
        if isinstance(value, (dict, list, tuple)):
            return encode_message(value, what, sort_keys=True).decode()
    except Exception as error:
        raise ValueError(f"{what} failed for these params: {type(error).__name__}: {error}") from error
    return "" if value is None else str(value)


def _check_key(key: object, policy: str) -> None:
    if not callable(key) and (not isinstance(key, str) or not key):
        raise ConfigurationError(f"{policy}(key=...) must be a parameter name or a function of the params, not {key!r}")
    if callable(key) and is_async(key):
        raise ConfigurationError(f"{policy}(key=...) must be a plain function, not an async one: {key!r}")


def _check_count(value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{what} must be a whole number from 1 on, not {value!r}")


def _check_number(value: object, what: str, *, least: float, above: bool = False) -> None:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < least or (above and number == least):
        bound = "above" if above else "from"
        raise ConfigurationError(f"{what} must be a finite number {bound} {least}, not {value!r}")


def _exception_types(kinds: object) -> tuple[type[BaseException], ...]:
    listed = tuple(kinds) if isinstance(kinds, (tuple, list, set, frozenset)) else (kinds,)
    for kind in listed:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ConfigurationError(f"Retry(non_retryable=...) must hold exception classes, not {kind!r}")
    return listed


def _names(kind: type) -> tuple[str, str, str]:
    """The forms in which a StepError may carry the type of its error."""
    return kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}"


def _plain_seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
