"""Calls of what users write: a body, an attempt of a step. Each is a generator, entered by hand in its own context.

A generator can be resumed without a wrapper, unlike a coroutine.
"""

from collections.abc import Generator
from types import CoroutineType, coroutine
from typing import Any

from pyrula.workflows.engine.run import Run, enter_run

__all__ = ["as_coroutine", "invoke_body", "invoke_step"]


@coroutine
def invoke_body(run: Run, context: Any) -> Generator[Any, Any, None]:
    """The body, in the run's own context."""
    enter_run(run)
    fn, args = run.definition.fn, run.args
    if run.kwargs is not None:
        value = yield from fn(context, *args, **run.kwargs)
    elif len(args) == 1:  # as of nearly every record, and much cheaper than any number
        value = yield from fn(context, args[0])
    else:
        value = yield from fn(context, *args)
    if run.stopped is None:
        run.result = value


@coroutine
def invoke_step(fn: Any, args: Any, kwargs: Any, result: list[Any]) -> Generator[Any, Any, None]:
    """An attempt of a step, in the attempt's own context."""
    enter_run(None)
    # What most are called with takes a third of the time that any arguments take.
    steps = fn(args[0]) if len(args) == 1 and not kwargs else fn(*args, **kwargs)
    if type(steps) is not CoroutineType:
        steps = as_coroutine(steps)
    # A result put aside costs less than one that comes with a StopIteration.
    result.append((yield from steps))


async def as_coroutine(awaitable: Any) -> Any:
    """For what takes coroutines only."""
    return await awaitable
