import copy
import inspect
import pickle

import pytest

from pyrula.workflows import errors
from pyrula.workflows.errors import (
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    PyrulaError,
    QueryError,
    RunCancelled,
    StaleToken,
    StepError,
    StoreError,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
)
from pyrula.workflows.store import refusals


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").split("```")[1].strip("\n").splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        above = [each for each in above if each[0] < indent]
        if above:
            drawn[name] = above[-1][1]
        above.append((indent, name))
    kinds = [getattr(module, name) for module in (errors, refusals) for name in module.__all__]
    assert drawn == {kind.__name__: parent_of(kind) for kind in kinds if inspect.isclass(kind)}


def parent_of(kind: type) -> str:
    """The nearest base that a person may name: what begins with "_" is ours alone."""
    base = next(base for base in kind.__mro__[1:] if not base.__name__.startswith("_"))
    return "Warning" if base is UserWarning else base.__name__


def test_an_except_exception_in_a_body_cannot_swallow_a_cancellation() -> None:
    assert not issubclass(RunCancelled, Exception)


def test_a_step_error_says_what_happened() -> None:
    error = StepError("charge", 3, "app.CardDeclined", "no funds", "Traceback ...")
    assert str(error) == "step `charge` failed after 3 attempts: app.CardDeclined: no funds"
    assert str(StepError("charge", 1, "TimeoutError", "")) == "step `charge` failed after 1 attempt: TimeoutError"
    assert not error.timed_out


@pytest.mark.parametrize(
    "made",
    [
        StepError("charge", 2, "E", "m", "t", timed_out=True),
        StaleToken((3, 7)),
        refusals.RunNotFoundError("r", "no worker has had it"),
        QueryError("r", "items", "E", "m"),
        UpdateRejected("r", "add", "u1", "E", "m"),
        UpdateError("r", "add", "u1", "E", "m"),
        UpdateTimeout("r", "add", "u1", 1.5),
        DurableInvocationError("r", "E", "m", "t"),
        DurableInvocationCancelled("r"),
        DurableInvocationTimeout("r", "running", 1.5),
    ],
    ids=lambda made: type(made).__name__,
)
def test_errors_with_fields_can_be_copied(made: PyrulaError) -> None:
    for error in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(error) is type(made)
        assert vars(error) == vars(made)
        assert str(error) == str(made)


def test_a_stale_token_carries_the_stored_one() -> None:
    error = StaleToken((1, 5))
    assert error.stored == (1, 5)
    assert isinstance(error, StoreError)
