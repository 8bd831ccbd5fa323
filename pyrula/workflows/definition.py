"""Workflows and steps as declared: a function with its options. A definition knows no worker, store or topic.

Annotations are kept raw and resolved when first needed, so that a module may name types it defines further down; for
functions defined inside another function the local names are tried at once, since they are gone later.
"""

import functools
import inspect
import sys
import typing
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_origin, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import Codec
from pyrula.workflows.errors import ConfigurationError, PolicyKeyWarning
from pyrula.workflows.model import DEFAULT_VERSION
from pyrula.workflows.policies import Collect, Debounce, Limit, Rate, Retry

__all__ = [
    "Parameter",
    "StepDefinition",
    "WorkflowDefinition",
    "find_definition",
    "registered_definitions",
    "step",
    "step_of",
    "workflow",
]

P = ParamSpec("P")
R = TypeVar("R")

_UNSET: Final[Any] = object()
_BATCH_PARAMS = ("key", "events", "count")


class Parameter(NamedTuple):
    """One parameter of a body after ctx. `annotation` is raw: a text under postponed evaluation, Any if there is none."""

    name: str
    annotation: Any
    has_default: bool
    keyword_only: bool = False


class WorkflowDefinition(Generic[P, R]):
    """An async function with a name, a version and its policies. Made by `@workflow`; calling it calls the function.

    >>> @workflow(name="greet")
    ... async def greet(ctx: Any, who: str) -> str:
    ...     return f"hello {who}"
    >>> greet.name, greet.version, [parameter.name for parameter in greet.parameters]
    ('greet', '1', ['who'])
    """

    def __init__(
        self,
        fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        *,
        name: str | None = None,
        version: str = DEFAULT_VERSION,
        concurrency: Limit | None = None,
        rate_limit: Rate | None = None,
        trigger: Collect | Debounce | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        local_names: dict[str, Any] | None = None,
    ) -> None:
        name = getattr(fn, "__name__", None) if name is None else name
        _check_text(name, "a workflow's name")
        _check_text(version, f"workflow {name!r}: version")
        _check_type(concurrency, Limit, f"workflow {name!r}: concurrency")
        _check_type(rate_limit, Rate, f"workflow {name!r}: rate_limit")
        _check_type(trigger, (Collect, Debounce), f"workflow {name!r}: trigger")
        _check_type(retry, Retry, f"workflow {name!r}: retry")
        self.fn = fn
        self.name: str = name
        self.version = version
        self.concurrency = concurrency
        self.rate_limit = rate_limit
        self.trigger = trigger
        self.retry = retry
        self.timeout = None if timeout is None else to_seconds(timeout, f"workflow {name!r}: timeout", zero=False)
        self.parameters, self.accepts_extra = _body_parameters(fn, name)
        self.returns: Any = _raw_annotations(fn).get("return", Any)
        self._hints = _try_hints(fn, local_names)
        functools.update_wrapper(self, fn)
        self._warn_of_unknown_keys()

    def __call__(self, ctx: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version!r}>"

    def hints(self) -> dict[str, Any]:
        """The annotations, resolved, extras kept. ConfigurationError naming what can't be resolved."""
        if self._hints is None:
            self._hints = _hints(self.fn, f"workflow {self.name!r}")
        return self._hints

    @functools.cached_property
    def return_codec(self) -> Codec:
        """The codec of the body's result. ConfigurationError if the return annotation has no form in JSON."""
        return _codec_of(self.hints().get("return", Any), f"workflow {self.name!r}")

    def _warn_of_unknown_keys(self) -> None:
        """The keys of Collect and Debounce are fields of an event, so only those of Limit and Rate can be checked."""
        if self.accepts_extra:
            return
        known = _BATCH_PARAMS if self.trigger is not None else tuple(parameter.name for parameter in self.parameters)
        for policy in (self.concurrency, self.rate_limit):
            if policy is not None and isinstance(policy.key, str) and policy.key not in known:
                hint = "; a triggered run's params are key, events and count" if self.trigger is not None else ""
                warnings.warn(
                    f"workflow {self.name!r}: {type(policy).__name__}(key={policy.key!r}) names no parameter of the "
                    f'body, so all runs would share the bucket ""{hint}',
                    PolicyKeyWarning,
                    stacklevel=_outside(),
                )


class StepDefinition(Generic[P, R]):
    """A function with its options as a step. Made by `@step` or `step_of`; calling it calls the function unchanged.

    >>> @step(retry=Retry(max_attempts=5), timeout=10)
    ... def charge(cents: int) -> str:
    ...     return f"ch_{cents}"
    >>> charge(5), charge.name, charge.options(timeout=2).timeout
    ('ch_5', 'charge', 2.0)
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        total_timeout: float | timedelta | None = None,
        name: str | None = None,
        inline: bool = False,
        returns: Any = _UNSET,
    ) -> None:
        if not callable(fn):
            raise ConfigurationError(f"a step must be something to call, not {fn!r}")
        name = _name_of(fn) if name is None else name
        _check_text(name, "a step's name")
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise ConfigurationError(f"step `{name}` is a generator: a step returns one value; return a list instead")
        _check_type(retry, Retry, f"step `{name}`: retry")
        self.fn = fn
        self.name: str = name
        self.retry = Retry() if retry is None else retry
        self.timeout = None if timeout is None else to_seconds(timeout, f"step `{name}`: timeout", zero=False)
        self.total_timeout = (
            None if total_timeout is None else to_seconds(total_timeout, f"step `{name}`: total_timeout", zero=False)
        )
        self.inline = inline
        self.is_async = _is_async(fn)
        self._returns = returns
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> "StepDefinition[..., R]":
        """As a method: a definition of the bound function with the same options."""
        if instance is None:
            return self
        bound = StepDefinition[..., R].__new__(StepDefinition)
        bound.__dict__.update(self.__dict__)
        bound.fn = self.fn.__get__(instance, owner)  # type: ignore[attr-defined]
        return bound

    def __repr__(self) -> str:
        return f"<step `{self.name}`>"

    def options(
        self,
        *,
        retry: Retry = _UNSET,
        timeout: float | timedelta | None = _UNSET,
        total_timeout: float | timedelta | None = _UNSET,
        name: str = _UNSET,
        inline: bool = _UNSET,
    ) -> "StepDefinition[P, R]":
        """The same function with other options."""
        return StepDefinition(
            self.fn,
            retry=self.retry if retry is _UNSET else retry,
            timeout=self.timeout if timeout is _UNSET else timeout,
            total_timeout=self.total_timeout if total_timeout is _UNSET else total_timeout,
            name=self.name if name is _UNSET else name,
            inline=self.inline if inline is _UNSET else inline,
            returns=self._returns,
        )

    @functools.cached_property
    def return_codec(self) -> Codec:
        """The codec of what the step gives (of an async function: awaited). ConfigurationError if it can't be made."""
        returns = _returned_by(self.fn, f"step `{self.name}`") if self._returns is _UNSET else self._returns
        return _codec_of(returns, f"step `{self.name}`")


@overload
def workflow(fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> WorkflowDefinition[P, R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    version: str = DEFAULT_VERSION,
    concurrency: Limit | None = None,
    rate_limit: Rate | None = None,
    trigger: Collect | Debounce | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
) -> "_WorkflowDecorator": ...


def workflow(fn: Any = None, /, **options: Any) -> Any:
    """Declares an async function as a workflow: `@workflow(name="charge_order")`. The name defaults to the function's.

    A workflow's first parameter is ctx; the others are its params. The definition is registered by name for this
    process: the same name from another module is a ConfigurationError, from the same one it replaces (a reload).
    """
    local_names = _local_names(sys._getframe(1))

    def declare(fn: Any) -> WorkflowDefinition[Any, Any]:
        definition: WorkflowDefinition[Any, Any] = WorkflowDefinition(fn, **options, local_names=local_names)
        _register(definition)
        return definition

    return declare if fn is None else declare(fn)


class _WorkflowDecorator(typing.Protocol):
    def __call__(self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> WorkflowDefinition[P, R]: ...


@overload
def step(fn: Callable[P, R], /) -> StepDefinition[P, R]: ...


@overload
def step(
    *,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    total_timeout: float | timedelta | None = None,
    name: str | None = None,
    inline: bool = False,
) -> "_StepDecorator": ...


def step(fn: Any = None, /, **options: Any) -> Any:
    """Declares how a function runs as a step: `@step(retry=Retry(max_attempts=5), timeout=10)`, or plain `@step`.

    `timeout` is per attempt, `total_timeout` for all attempts and the delays between them, both in seconds.
    `inline=True` runs a sync function on the event loop instead of a thread.
    """
    local_names = _local_names(sys._getframe(1))

    def declare(fn: Any) -> StepDefinition[Any, Any]:
        hints = _try_hints(fn, local_names)
        returns = _UNSET if hints is None else _awaited(fn, hints.get("return", Any))
        return StepDefinition(fn, **options, returns=returns)

    return declare if fn is None else declare(fn)


class _StepDecorator(typing.Protocol):
    def __call__(self, fn: Callable[P, R], /) -> StepDefinition[P, R]: ...


_steps: "WeakKeyDictionary[Any, StepDefinition[Any, Any]]" = WeakKeyDictionary()
_definitions: "dict[str, WorkflowDefinition[Any, Any]]" = {}
_local_definitions: "WeakValueDictionary[str, WorkflowDefinition[Any, Any]]" = WeakValueDictionary()


def step_of(fn: Callable[P, R]) -> StepDefinition[P, R]:
    """The definition of anything that can be called; for a plain function the same one each time."""
    if type(fn) is StepDefinition:
        return fn
    try:
        return _steps[fn]
    except KeyError:
        _steps[fn] = definition = StepDefinition(fn)
        return definition
    except TypeError:  # not hashable, or takes no weak reference
        return StepDefinition(fn)


def find_definition(name: str) -> WorkflowDefinition[Any, Any] | None:
    """The workflow of that name which this process has imported."""
    return _local_definitions.get(name) or _definitions.get(name)


def registered_definitions() -> dict[str, WorkflowDefinition[Any, Any]]:
    """All workflows that this process has imported, by name."""
    return {**_definitions, **_local_definitions}


def _register(definition: WorkflowDefinition[Any, Any]) -> None:
    name, fn = definition.name, definition.fn
    if "<locals>" in getattr(fn, "__qualname__", ""):
        # Made by a function that may run often, a test or a factory: the latest counts, for as long as it lives.
        _local_definitions[name] = definition
        return
    known = _definitions.get(name)
    if known is not None and not _same_module(known.fn, fn):
        raise ConfigurationError(
            f"workflow {name!r} is defined in {fn.__module__} and in {known.fn.__module__}; give one another name"
        )
    _definitions[name] = definition


def _same_module(one: Any, two: Any) -> bool:
    # By file as well: `python -m app` runs a file as __main__ that others import as app.
    return bool(one.__module__ == two.__module__ or one.__code__.co_filename == two.__code__.co_filename)


def _body_parameters(fn: Any, name: str) -> tuple[tuple[Parameter, ...], bool]:
    if inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"workflow {name!r} is an async generator: a body returns its result, it can't yield")
    if not inspect.iscoroutinefunction(fn):
        raise ConfigurationError(f"workflow {name!r} must be an `async def` function, not {fn!r}")
    first, *others = list(inspect.signature(fn).parameters.values()) or [None]
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ConfigurationError(f"workflow {name!r} must take ctx as its first parameter")
    parameters = []
    for parameter in others:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigurationError(
                f"workflow {name!r}: params are passed by name, which the parameter {parameter} doesn't allow"
            )
        if parameter.kind is not parameter.VAR_KEYWORD:
            annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = parameter.default is not parameter.empty
            keyword_only = parameter.kind is parameter.KEYWORD_ONLY
            parameters.append(Parameter(parameter.name, annotation, default, keyword_only))
    accepts_extra = any(parameter.kind is parameter.VAR_KEYWORD for parameter in others)
    return tuple(parameters), accepts_extra


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))


def _raw_annotations(fn: Any) -> dict[str, Any]:
    return getattr(fn, "__annotations__", None) or {}


def _local_names(frame: Any) -> dict[str, Any] | None:
    """What a function defined here can name beside globals. Only where annotations may be texts that need it."""
    return None if frame.f_locals is frame.f_globals else frame.f_locals


def _try_hints(fn: Any, local_names: dict[str, Any] | None) -> dict[str, Any] | None:
    if local_names is None:
        return None
    try:
        return typing.get_type_hints(fn, localns=local_names, include_extras=True)
    except Exception:
        return None  # perhaps defined later; resolved, or reported, when needed


def _hints(fn: Any, what: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{what}: an annotation names {error.name!r}, which can't be resolved; it must be a global name of its module, "
            "imported at run time"
        ) from error
    except Exception as error:
        raise ConfigurationError(f"{what}: its annotations can't be resolved: {error}") from error


def _returned_by(fn: Any, what: str) -> Any:
    """The annotation of what a call gives, awaited. Other annotations needn't be resolvable."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type):
        return fn
    function = inspect.unwrap(fn)
    if "return" not in _raw_annotations(function):
        function = getattr(type(fn), "__call__", fn)
    raw = _raw_annotations(function).get("return", Any)
    if isinstance(raw, str):
        function = getattr(function, "__func__", function)
        holder = SimpleNamespace(__annotations__={"return": raw}, __globals__=getattr(function, "__globals__", {}))
        raw = _hints(holder, what)["return"]
    return _awaited(fn, raw)


def _awaited(fn: Any, returns: Any) -> Any:
    """A function that isn't async but gives an awaitable counts as async: what it declares is what awaiting gives."""
    origin = get_origin(returns)
    if not _is_async(fn) and isinstance(origin, type) and issubclass(origin, Awaitable):
        return get_args(returns)[-1]
    return returns


def _codec_of(annotation: Any, what: str) -> Codec:
    try:
        return Codec.of(annotation)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: its return annotation: {error}") from error


def _check_text(value: object, what: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text that isn't empty, not {value!r}")


def _check_type(value: object, kind: type | tuple[type, ...], what: str) -> None:
    if value is not None and not isinstance(value, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise ConfigurationError(f"{what} must be a {names}, not {value!r}")


def _outside() -> int:
    """The stack level, for a warning, of the first frame that isn't this module's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals is globals():
        level, frame = level + 1, frame.f_back
    return level
