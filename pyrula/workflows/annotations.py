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

__all__ = [
    "awaited",
    "caller",
    "early_hints",
    "is_async",
    "is_context",
    "may_be_context",
    "raw_annotations",
    "resolved_hints",
    "returned_by",
]

_CONTEXT = "Context"
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


def may_be_context(annotation: Any, fn: Any) -> bool:
    """Whether a body's parameter may be its ctx: all but what surely is something else."""
    annotation = _glimpsed(annotation, fn)
    if isinstance(annotation, type) and get_origin(annotation) is None:
        by_name = any(_CONTEXT in base.__name__ for base in annotation.__mro__)
        anything = annotation in (inspect.Parameter.empty, Any, object)
        return anything or by_name or bool(getattr(annotation, "_is_protocol", False))
    return get_origin(annotation) is None or _CONTEXT in str(annotation)


def is_context(annotation: Any, fn: Any) -> bool:
    """Whether a body's parameter surely is a ctx."""
    annotation = _glimpsed(annotation, fn)
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == _CONTEXT
    return getattr(annotation, "__name__", "") == _CONTEXT and annotation.__module__.startswith("pyrula.")


def _glimpsed(annotation: Any, fn: Any) -> Any:
    """An annotation that may be a text, as far as it can be resolved already."""
    if not isinstance(annotation, str):
        return annotation
    try:
        holder = SimpleNamespace(__annotations__={"it": annotation.strip("\"'")}, __globals__=fn.__globals__)
        return typing.get_type_hints(holder, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - it can wait
        return annotation.strip("\"'")


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
