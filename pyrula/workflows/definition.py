"""Workflows and steps as declared: a function with its options. A definition knows no worker, store or topic.

Workflows are registered by name for the process, so that a client can stamp a run with their version and policies.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import BuiltinFunctionType, FunctionType
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload
from weakref import WeakValueDictionary

from pyrula.workflows.annotations import (
    awaited,
    caller,
    early_hints,
    is_async,
    is_context,
    may_be_context,
    raw_annotations,
    resolved_hints,
    returned_by,
)
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import Codec
from pyrula.workflows.errors import ConfigurationError, PolicyKeyWarning
from pyrula.workflows.model import DEFAULT_VERSION
from pyrula.workflows.naming import options_of, refuse_unknown
from pyrula.workflows.policies import Collect, Debounce, Limit, Rate, Retry
from pyrula.workflows.schedules import Cron, Every

__all__ = [
    "Parameter",
    "StepDefinition",
    "WorkflowDefinition",
    "definition_of",
    "find_definition",
    "registered_definitions",
    "step",
    "step_of",
    "watch_plain_calls",
    "workflow",
]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

_UNSET: Final[Any] = object()
_DEFAULT_RETRY: Final = Retry()
_BATCH_PARAMS: Final = ("key", "events", "count")


class Parameter(NamedTuple):
    """One parameter of a body after ctx. `annotation` is as written: Any if there is none."""

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

    `accepts_extra` says that the body takes `**kwargs`, which `parameters` leaves out.
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
        schedule: Cron | Every | None = None,
        hints: dict[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.name = _checked_text(getattr(fn, "__name__", None) if name is None else name, "a workflow's name")
        what = f"workflow {self.name!r}"
        self.version = _checked_text(version, f"{what}: version")
        self.concurrency = _checked(concurrency, f"{what}: concurrency", Limit)
        self.rate_limit = _checked(rate_limit, f"{what}: rate_limit", Rate)
        self.trigger = _checked(trigger, f"{what}: trigger", Collect, Debounce)
        self.retry = _checked(retry, f"{what}: retry", Retry)
        self.timeout = _seconds(timeout, f"{what}: timeout")
        self.schedule = _checked(schedule, f"{what}: schedule", Cron, Every)
        self.parameters, self.accepts_extra = _body_parameters(fn, what)
        self.returns: Any = raw_annotations(fn).get("return", Any)
        self._hints = hints
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, ctx: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version!r}>"

    def hints(self) -> dict[str, Any]:
        """The annotations by name, resolved, extras kept. ConfigurationError naming what can't be resolved."""
        if self._hints is None:
            self._hints = resolved_hints(self.fn, f"workflow {self.name!r}")
        return self._hints

    @functools.cached_property
    def return_codec(self) -> Codec:
        """The codec of the body's result. ConfigurationError if what it is declared to return has no form in JSON."""
        return _return_codec(self.hints().get("return", Any), f"workflow {self.name!r}")


class StepDefinition(Generic[P, R]):
    """A function with its options as a step. Made by `@step` or `step_of`; calling it calls the function unchanged.

    >>> @step(retry=Retry(max_attempts=5), timeout=10)
    ... def charge(cents: int) -> str:
    ...     return f"ch_{cents}"
    >>> charge(5), charge.name, charge.options(timeout=2).timeout
    ('ch_5', 'charge', 2.0)
    """

    # Every step reads some of them.
    __slots__ = (
        "__dict__", "__weakref__", "_hints", "codec", "fn", "inline", "is_async", "name", "retry", "timeout", "title",
        "total_timeout",
    )  # fmt: skip

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        total_timeout: float | timedelta | None = None,
        name: str | None = None,
        inline: bool = False,
        hints: dict[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.name = _name_of(fn) if name is None else _checked_text(name, "a step's name")
        self.title = what = f"step `{self.name}`"
        _check_step_function(fn, what)
        self.retry = _DEFAULT_RETRY if retry is None else _checked(retry, f"{what}: retry", Retry)
        self.timeout = _seconds(timeout, f"{what}: timeout")
        self.total_timeout = _seconds(total_timeout, f"{what}: total_timeout")
        self.inline = inline
        self.is_async = is_async(fn)
        self.codec: Codec | None = None  # once it was asked for
        self._hints = hints

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        for watcher in _plain_call_watchers:
            watcher(self)
        return self.fn(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self: "StepDefinition[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> "StepDefinition[Q, R]": ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: a definition of the bound function, with the same options."""
        return self if instance is None else self._with(fn=self.fn.__get__(instance, owner))

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
        changes: dict[str, Any] = {}
        what = f"step `{self.name}`"
        if retry is not _UNSET:
            changes["retry"] = _checked(retry, f"{what}: retry", Retry) or _DEFAULT_RETRY
        if timeout is not _UNSET:
            changes["timeout"] = _seconds(timeout, f"{what}: timeout")
        if total_timeout is not _UNSET:
            changes["total_timeout"] = _seconds(total_timeout, f"{what}: total_timeout")
        if name is not _UNSET:
            changes["name"] = _checked_text(name, "a step's name")
        if inline is not _UNSET:
            changes["inline"] = inline
        return self._with(**changes)

    @property
    def return_codec(self) -> Codec:
        """The codec of what a call gives, awaited. ConfigurationError if that has no form in JSON."""
        if self.codec is None:
            what, hints = f"step `{self.name}`", self._hints
            returned = returned_by(self.fn, what) if hints is None else awaited(self.fn, hints.get("return", Any))
            self.codec = _return_codec(returned, what)
        return self.codec

    def _with(self, **changes: Any) -> "StepDefinition[P, R]":
        other: StepDefinition[P, R] = StepDefinition.__new__(StepDefinition)
        other.__dict__.update(self.__dict__)
        for field in _STEP_FIELDS:
            setattr(other, field, changes[field] if field in changes else getattr(self, field))
        return other


_STEP_FIELDS: Final = tuple(name for name in StepDefinition.__slots__ if not name.startswith("__"))


class _WorkflowDecorator(Protocol):
    def __call__(self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> WorkflowDefinition[P, R]: ...


class _StepDecorator(Protocol):
    def __call__(self, fn: Callable[P, R], /) -> StepDefinition[P, R]: ...


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
    schedule: Cron | Every | None = None,
) -> _WorkflowDecorator: ...


def workflow(fn: Any = None, /, **options: Any) -> Any:
    """Declares an async function as a workflow: `@workflow(name="charge_order")`. The name defaults to the function's.

    The first parameter is ctx, the others are the run's params, passed by name. The definition is registered for this
    process: the same name from another module is a ConfigurationError, from the same one it replaces (a reload).
    """
    declared_in = caller()
    _refuse_positional(fn, "@workflow")
    refuse_unknown(options, _WORKFLOW_OPTIONS, "@workflow")

    def declare(fn: Any) -> WorkflowDefinition[Any, Any]:
        hints = early_hints(fn, declared_in)
        definition: WorkflowDefinition[Any, Any] = WorkflowDefinition(fn, **options, hints=hints)
        _warn_of_unknown_keys(definition)
        _register(definition)
        return definition

    return declare if fn is None else declare(fn)


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
) -> _StepDecorator: ...


def step(fn: Any = None, /, **options: Any) -> Any:
    """Declares how a function runs as a step: `@step(retry=Retry(max_attempts=5), timeout=10)`, or plain `@step`.

    `timeout` is for each attempt, `total_timeout` for all attempts and the delays between them, both in seconds. A sync
    function runs in a thread, which can't be stopped: past its time it is warned of, and fails when it ends.
    `inline=True` runs a sync function on the event loop instead of a thread of its own.
    """
    declared_in = caller()
    _refuse_positional(fn, "@step")
    refuse_unknown(options, _STEP_OPTIONS, "@step")

    def declare(fn: Any) -> StepDefinition[Any, Any]:
        definition: StepDefinition[Any, Any] = StepDefinition(fn, **options, hints=early_hints(fn, declared_in))
        functools.update_wrapper(definition, fn, updated=())
        return definition

    return declare if fn is None else declare(fn)


def watch_plain_calls(watcher: Callable[[StepDefinition[..., Any]], None]) -> None:
    """Have it called whenever a step is called like any function."""
    _plain_call_watchers.append(watcher)


_plain_call_watchers: list[Callable[[StepDefinition[..., Any]], None]] = []
_WORKFLOW_OPTIONS: Final = options_of(WorkflowDefinition.__init__, "fn", "hints")
_STEP_OPTIONS: Final = options_of(StepDefinition.__init__, "fn", "hints")
_steps: dict[Any, StepDefinition[Any, Any]] = {}
_definitions: dict[str, WorkflowDefinition[Any, Any]] = {}
_local_definitions: "WeakValueDictionary[str, WorkflowDefinition[Any, Any]]" = WeakValueDictionary()


def step_of(fn: Callable[P, R]) -> StepDefinition[P, R]:
    """The definition of anything that can be called; for a function of a module the same one each time."""
    if type(fn) is StepDefinition:
        return fn
    kind = type(fn)
    if kind is FunctionType or kind is BuiltinFunctionType or kind is type:
        if fn in _steps:
            return _steps[fn]
        definition = StepDefinition(fn)
        # One made in a body, a lambda or a bound method, lives for a run; kept here, it would stay for ever.
        if "<locals>" not in fn.__qualname__ and "<lambda>" not in fn.__qualname__:
            _steps[fn] = definition
        return definition
    return StepDefinition(fn)


def find_definition(name: str) -> WorkflowDefinition[Any, Any] | None:
    """The workflow of that name which this process has imported."""
    return _local_definitions.get(name) or _definitions.get(name)


def definition_of(named: str | WorkflowDefinition[..., Any]) -> WorkflowDefinition[..., Any] | None:
    """The definition that is meant by itself or by its name; None for a name that this process hasn't imported.

    ConfigurationError for anything else, as a function that was never declared."""
    if isinstance(named, WorkflowDefinition):
        return named
    if not isinstance(named, str):
        raise ConfigurationError(
            f"a workflow is named by its definition or its name, not by {named!r:.100}; "
            "a function becomes a workflow by @workflow(name=...)"
        )
    return find_definition(named)


def registered_definitions() -> dict[str, WorkflowDefinition[Any, Any]]:
    """All workflows that this process has imported, by name."""
    return {**_definitions, **_local_definitions}


def _register(definition: WorkflowDefinition[Any, Any]) -> None:
    name, fn = definition.name, definition.fn
    if "<locals>" in fn.__qualname__:
        # Made by a function that may run often, a test or a factory: the latest counts, for as long as it lives.
        _local_definitions[name] = definition
        return
    known = _definitions.get(name)
    if known is not None and not _same_module(known.fn, fn):
        raise ConfigurationError(
            f"workflow {name!r} is defined in {fn.__module__} and in {known.fn.__module__}: give one another name"
        )
    _definitions[name] = definition


def _same_module(one: Any, two: Any) -> bool:
    # By file as well: `python -m app` runs as __main__ a file that others import as app.
    return bool(one.__module__ == two.__module__ or one.__code__.co_filename == two.__code__.co_filename)


def _warn_of_unknown_keys(definition: WorkflowDefinition[Any, Any]) -> None:
    """The keys of Collect and Debounce are fields of an event, so only those of Limit and Rate can be checked."""
    triggered = definition.trigger is not None
    known = _BATCH_PARAMS if triggered else tuple(parameter.name for parameter in definition.parameters)
    for policy in (definition.concurrency, definition.rate_limit):
        if policy is None or not isinstance(policy.key, str) or policy.key in known:
            continue
        if triggered or not definition.accepts_extra:
            hint = "; the params of a triggered run are key, events and count" if triggered else ""
            warnings.warn(
                f"workflow {definition.name!r}: {type(policy).__name__}(key={policy.key!r}) names no parameter of the "
                f'body, so that all runs share the bucket ""{hint}',
                PolicyKeyWarning,
                stacklevel=_level_outside(),
            )


def _level_outside() -> int:
    """The stack level, for a warning of the caller's, of the first frame that isn't this module's."""
    level, frame = 1, caller()
    while frame is not None and frame.f_globals is globals():
        level, frame = level + 1, frame.f_back
    return level


def _body_parameters(fn: Any, what: str) -> tuple[tuple[Parameter, ...], bool]:
    if inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{what} is an async generator: a body returns its result and can't yield")
    if not inspect.iscoroutinefunction(fn):
        raise ConfigurationError(f"{what} must be an `async def` function, not {fn!r}")
    listed = list(inspect.signature(fn).parameters.values())
    if not listed or listed[0].kind not in (listed[0].POSITIONAL_ONLY, listed[0].POSITIONAL_OR_KEYWORD):
        raise ConfigurationError(f"{what} must take ctx as its first parameter")
    if not may_be_context(listed[0].annotation, fn):
        raise ConfigurationError(f"{what}: ctx must be the first parameter, and `{listed[0]}` is no Context")
    parameters, accepts_extra = [], False
    for each in listed[1:]:
        if is_context(each.annotation, fn):
            raise ConfigurationError(f"{what}: ctx must be the first parameter, and `{each}` is a later one")
        if each.kind is each.VAR_KEYWORD:
            accepts_extra = True
        elif each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
            raise ConfigurationError(f"{what}: params are passed by name, which `{each}` doesn't allow")
        else:
            annotation = Any if each.annotation is each.empty else each.annotation
            has_default = each.default is not each.empty
            parameters.append(Parameter(each.name, annotation, has_default, each.kind is each.KEYWORD_ONLY))
    return tuple(parameters), accepts_extra


def _check_step_function(fn: object, what: str) -> None:
    if isinstance(fn, WorkflowDefinition):
        raise ConfigurationError(f"{what} is a workflow, not a step")
    if inspect.iscoroutine(fn):
        called = fn.cr_code.co_name
        fn.close()
        raise ConfigurationError(f"{called}(...) was called already: pass the function, ctx.step({called}, ...)")
    if not callable(fn):
        raise ConfigurationError(
            f"a step must be something to call, not {fn!r:.100}: pass the function and its arguments, "
            "ctx.step(charge, order)"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{what} is a generator: a step gives one value, so let it return a list")


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _return_codec(annotation: Any, what: str) -> Codec:
    try:
        return Codec.of(annotation)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: its return annotation: {error}") from error


def _refuse_positional(fn: object, what: str) -> None:
    if isinstance(fn, str):
        raise ConfigurationError(f"{what} takes its options by name: {what}(name={fn!r})")
    if fn is not None and not callable(fn):
        raise ConfigurationError(f"{what} takes its options by name, and a function alone without one, not {fn!r}")


def _checked_text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text that isn't empty, not {value!r}")
    return value


def _checked(value: R, what: str, *kinds: type) -> R:
    if value is not None and not isinstance(value, kinds):
        raise ConfigurationError(f"{what} must be a {' or '.join(kind.__name__ for kind in kinds)}, not {value!r}")
    return value


def _seconds(duration: float | timedelta | None, what: str) -> float | None:
    return None if duration is None else to_seconds(duration, what, zero=False)
