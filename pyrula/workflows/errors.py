"""Every exception and warning of `pyrula.workflows`.

```
Exception
  PyrulaError
    ConfigurationError      a definition, option or environment that can't work; raised before anything runs
    SerializationError      a value that can't be stored unchanged, or is too large
    NonDeterminismError     a body asked for something other than what its journal has
    StepError               a step failed for good; this is what the body sees
    NoBrokerError           ctx.send in a run that nothing can send for
    StoreError
      StoreUnavailable      the store didn't answer, also after the store's own re-sends
      LeaseLost             somebody else has the source or the run now
      StaleToken            a claim with a generation below the stored one
      RunNotFoundError      no run has this id
      RunFinishedError      a signal or an update for a run that has ended
      RunNotWaitingError    an answer to an interrupt that isn't open
      InboxFullError        a run with as many unread messages as it may have
      TransitionRefused     the run's status doesn't allow this
    QueryError              a query that the run doesn't know, or that failed
      QueryTimeout          no worker answered it in time
    UpdateRejected          the update's validator refused it
    UpdateError             the update's handler raised
    UpdateTimeout           no worker applied the update in time; it stays queued
    DurableInvocationError      the result of a run that failed
    DurableInvocationCancelled  the result of a run that was cancelled
    DurableInvocationTimeout    the result of a run that hasn't ended in time
    BackpressureRejected    a worker takes no new runs while its egress is behind
BaseException
  RunCancelled              raised in the body of a cancelled run
Warning
  PyrulaWarning             something that works, but hardly as meant
    PolicyKeyWarning        a policy key that names no parameter
    PlainCallWarning        a step that a body calls like any function
```

What a store says no to, from RunNotFoundError to TransitionRefused, is defined in store/refusals.py.
Exceptions of aiokafka, redis, orjson and pydantic are translated where they arise and never cross a module of ours.
Control flow is a BaseException, so that a body's `except Exception` can't swallow it.
"""

from typing import Any

__all__ = [
    "BackpressureRejected",
    "ConfigurationError",
    "DurableInvocationCancelled",
    "DurableInvocationError",
    "DurableInvocationTimeout",
    "LeaseLost",
    "NoBrokerError",
    "NonDeterminismError",
    "PlainCallWarning",
    "PolicyKeyWarning",
    "PyrulaError",
    "PyrulaWarning",
    "QueryError",
    "QueryTimeout",
    "RunCancelled",
    "SerializationError",
    "StaleToken",
    "StepError",
    "StoreError",
    "StoreUnavailable",
    "UpdateError",
    "UpdateRejected",
    "UpdateTimeout",
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


class NoBrokerError(PyrulaError):
    """`ctx.send` in a run that was submitted: its worker has no broker. The text names the ways out."""


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


class QueryError(PyrulaError):
    """A query wasn't answered: the run knows no query of that name, its handler raised, or no worker was there.

    `error_type` names the handler's exception; it is "" if there was none.
    """

    def __init__(self, run_id: str, query: str, error_type: str, message: str) -> None:
        self.run_id = run_id
        self.query = query
        self.error_type = error_type
        self.message = message
        super().__init__(f"run {run_id}, query {query!r}: {_cause(error_type, message)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id, self.query, self.error_type, self.message)


class QueryTimeout(QueryError):
    """No worker of the workflow answered in time. A query changes nothing: ask again."""


class _UpdateFailed(PyrulaError):
    """An update came back with an error: that of the validator or of the handler."""

    verb = ""

    def __init__(self, run_id: str, update: str, update_id: str, error_type: str, message: str) -> None:
        self.run_id = run_id
        self.update = update
        self.update_id = update_id
        self.error_type = error_type
        self.message = message
        super().__init__(f"run {run_id}: the update {update!r} {self.verb}: {_cause(error_type, message)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id, self.update, self.update_id, self.error_type, self.message)


class UpdateRejected(_UpdateFailed):
    """The validator refused the update, so that nothing of it is on record. The same update_id may be sent again."""

    verb = "was rejected"


class UpdateError(_UpdateFailed):
    """The update's handler raised. The update is applied: its update_id gives this error from now on."""

    verb = "failed"


class UpdateTimeout(PyrulaError):
    """No worker applied the update in time. It stays queued: ask again with this `update_id` and it applies once."""

    def __init__(self, run_id: str, update: str, update_id: str, seconds: float) -> None:
        self.run_id = run_id
        self.update = update
        self.update_id = update_id
        self.seconds = seconds
        super().__init__(
            f"run {run_id}: the update {update!r} wasn't applied within {seconds:g} s; it stays queued, "
            f"so ask again with update_id={update_id!r}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id, self.update, self.update_id, self.seconds)


class DurableInvocationError(PyrulaError):
    """The run failed. `error_type`, `message` and `trace` are those of the exception its body ended with, as text."""

    def __init__(self, run_id: str, error_type: str, message: str, trace: str = "") -> None:
        self.run_id = run_id
        self.error_type = error_type
        self.message = message
        self.trace = trace
        super().__init__(f"run {run_id} failed: {_cause(error_type, message)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id, self.error_type, self.message, self.trace)


class DurableInvocationCancelled(PyrulaError):
    """The run was cancelled, so it has no result."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} was cancelled")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id,)


class DurableInvocationTimeout(PyrulaError):
    """The run hasn't ended in the time given to wait for it. It goes on: ask again."""

    def __init__(self, run_id: str, status: str, seconds: float) -> None:
        self.run_id = run_id
        self.status = status
        self.seconds = seconds
        super().__init__(f"run {run_id} hasn't ended within {seconds:g} s (status {status or 'unknown'})")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id, self.status, self.seconds)


class BackpressureRejected(PyrulaError):
    """The worker takes no new runs while its egress is behind. Nothing was queued: submit again later."""


class RunCancelled(BaseException):
    """The run was cancelled. Operations in `except` and `finally` blocks still work: that is the place to clean up."""


class PyrulaWarning(UserWarning):
    """Something works, but hardly as it was meant."""


class PolicyKeyWarning(PyrulaWarning):
    """A policy's key names no parameter of its workflow, so that all runs would share the bucket ""."""


class PlainCallWarning(PyrulaWarning):
    """A body calls a step like any function: it isn't journaled, so it runs again at each replay."""


def _cause(error_type: str, message: str) -> str:
    return f"{error_type}: {message}" if error_type and message else error_type or message
