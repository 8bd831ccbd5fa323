"""Every exception and warning of `pyrula.workflows`.

```
Exception
  PyrulaError
    ConfigurationError      a definition, option or environment that can't work; raised before anything runs
    SerializationError      a value that can't be stored unchanged, or is too large
    NonDeterminismError     a body asked for something other than what its journal has
    StepError               a step failed for good; this is what the body sees
    StoreError
      StoreUnavailable      the store didn't answer, also after the store's own re-sends
      LeaseLost             somebody else has the source or the run now
      StaleToken            a claim with a generation below the stored one
BaseException
  RunCancelled              raised in the body of a cancelled run
Warning
  PyrulaWarning             something that works, but hardly as meant
    PolicyKeyWarning        a policy key that names no parameter
```

Exceptions of aiokafka, redis, orjson and pydantic are translated where they arise and never cross a module of ours.
Control flow is a BaseException, so that a body's `except Exception` can't swallow it.
"""

from typing import Any

__all__ = [
    "ConfigurationError",
    "LeaseLost",
    "NonDeterminismError",
    "PolicyKeyWarning",
    "PyrulaError",
    "PyrulaWarning",
    "RunCancelled",
    "SerializationError",
    "StaleToken",
    "StepError",
    "StoreError",
    "StoreUnavailable",
]


class PyrulaError(Exception):
    """The root of all errors that Pyrula raises."""


class ConfigurationError(PyrulaError):
    """A definition, an option or the environment can't work as declared. The text names the way out."""


class SerializationError(PyrulaError):
    """A value can't be stored so that it comes back unchanged, or is over the size limit. Nothing was written."""


class NonDeterminismError(PyrulaError):
    """The body asked for an operation other than the one its journal has at this point.

    The run is paused, not failed: deploy code that fits the journal, or guard a change with `ctx.patched("change-id")`.
    """


class StepError(PyrulaError):
    """A step failed for good: its attempts are used up, or its error isn't retryable.

    `error_type` is the qualified name of the last attempt's exception, `message` its text, `trace` its traceback as
    text (cut). They are text because a replay, perhaps in another process, raises the same error from the journal.
    """

    def __init__(
        self,
        step: str,
        attempts: int,
        error_type: str,
        message: str,
        trace: str = "",
        timed_out: bool = False,
    ) -> None:
        self.step = step
        self.attempts = attempts
        self.error_type = error_type
        self.message = message
        self.trace = trace
        self.timed_out = timed_out
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        cause = f"{error_type}: {message}" if message else error_type
        super().__init__(f"step `{step}` failed after {times}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would rebuild it from the one text in `args`.
        fields = (self.step, self.attempts, self.error_type, self.message, self.trace, self.timed_out)
        return type(self), fields


class StoreError(PyrulaError):
    """The store refused or couldn't do what was asked."""


class StoreUnavailable(StoreError):
    """The store didn't answer within the time it is given, re-sends included. Whether a write arrived isn't known."""


class LeaseLost(StoreError):
    """Another process has the source or the run now. Drop it: nothing that was buffered for it may be produced."""


class StaleToken(StoreError):
    """A claim came with a generation below the stored one; `stored` is the token that the store has."""

    def __init__(self, stored: Any) -> None:
        self.stored = stored
        super().__init__(f"the source was claimed with a later token: {stored!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stored,)


class RunCancelled(BaseException):
    """The run was cancelled. Operations in `except` and `finally` blocks still work: that is the place to clean up."""


class PyrulaWarning(UserWarning):
    """Something works, but hardly as it was meant."""


class PolicyKeyWarning(PyrulaWarning):
    """A policy's key names no parameter of its workflow, so that all runs would share the bucket ""."""
