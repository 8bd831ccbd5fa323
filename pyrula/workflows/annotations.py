"""Annotations of functions, resolved: what a parameter or a result is declared to be.

A module may name types that it defines further down, so resolving waits until it is asked for. Only the local names of
a function in which another one is declared are gone by then: those are tried at once.
"""

import functools
import inspect
import typing
from collections.abc import Awaitable
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any, get_args, get_origin
from weakref import WeakKeyDictionary

from pyrula.workflows.errors import ConfigurationError

__all__ = ["awaited", "caller", "early_hints", "is_async", "raw_annotations", "resolved_hints", "returned_by"]

_returned: "WeakKeyDictionary[FunctionType, Any]" = WeakKeyDictionary()


def raw_annotations(fn: Any) -> dict[str, Any]:
    """As written: texts under `from __future__ import annotations`."""
    return getattr(fn, "__annotations__", None) or {}


def resolved_hints(fn: Any, what: str) -> dict[str, Any]:
    """All annotations by name, extras kept. ConfigurationError with `what` and the name that can't be resolved."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{what}: an annotation names {error.name!r}, which can't be resolved: "
            "it must be a global name of its module, imported at run time too"
        ) from error
    except (TypeError, AttributeError, SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{what}: its annotations can't be resolved: {error}") from error


def caller() -> FrameType | None:
    """The frame that called the function which asks."""
    frame = inspect.currentframe()
    asking = None if frame is None else frame.f_back
    return None if asking is None else asking.f_back


def early_hints(fn: Any, declared_in: FrameType | None) -> dict[str, Any] | None:
    """The hints of a function declared inside another one, with that one's names; None if they can wait."""
    if declared_in is None or declared_in.f_locals is declared_in.f_globals:
        return None
    if all(isinstance(annotation, type) for annotation in raw_annotations(fn).values()):
        return None
    try:
        return typing.get_type_hints(fn, localns=dict(declared_in.f_locals), include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError, ValueError):
        return None  # perhaps defined later; reported when needed


def is_async(fn: Any) -> bool:
    """Whether calling it gives a coroutine. Sees through partials, and objects with an async `__call__`."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def returned_by(fn: Any, what: str) -> Any:
    """What a call gives, awaited: Any if nothing is declared. The other annotations needn't be resolvable."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type):
        return fn
    function = inspect.unwrap(fn)
    if not raw_annotations(function) and not isinstance(function, FunctionType):
        function = type(function).__call__
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return Any
    try:
        returns = _returned[function]
    except KeyError:
        returns = _returned[function] = _resolved_return(function, what)
    return awaited(fn, returns)


def awaited(fn: Any, returns: Any) -> Any:
    """A function that isn't async but declares an awaitable counts as async: its value is what awaiting gives."""
    origin = get_origin(returns)
    if isinstance(origin, type) and issubclass(origin, Awaitable) and not is_async(fn):
        return get_args(returns)[-1]
    return returns


def _resolved_return(function: FunctionType, what: str) -> Any:
    returns = raw_annotations(function).get("return", Any)
    if isinstance(returns, type):
        return returns
    holder = SimpleNamespace(__annotations__={"return": returns}, __globals__=function.__globals__)
    return resolved_hints(holder, what)["return"]
