"""An update's handler: how a payload becomes its arguments, and how what it gives becomes an answer."""

import inspect
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from pyrula.workflows.annotations import awaited, early_hints, is_async, resolved_hints
from pyrula.workflows.codec import Codec, dumps
from pyrula.workflows.store.payloads import Failure, arguments_of_update, failure_of

__all__ = ["Refused", "UpdateHandler"]


class Refused(Exception):
    """An update that doesn't come to its handler."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class UpdateHandler:
    """What `ctx.on_update` registered. `variables` are the body's context variables at that point."""

    __slots__ = ("_codecs", "_signature", "_validator", "fn", "name", "returns", "variables")

    def __init__(
        self, name: str, fn: Callable[..., Any], validator: Callable[..., Any] | None, variables: Context, frame: Any
    ) -> None:
        if validator is not None and is_async(validator):
            raise TypeError(f"the validator of update {name!r} is async; it decides at once, from what the body knows")
        self.name = name
        self.fn = fn
        self.variables = variables
        self._validator = validator
        self._signature = inspect.signature(fn)
        plain = fn
        while isinstance(plain, partial):
            plain = plain.func
        if not inspect.isroutine(plain) and not isinstance(plain, type):
            plain = type(plain).__call__
        hints = early_hints(plain, frame) or resolved_hints(plain, f"update {name!r}")
        self._codecs = {
            parameter.name: Codec.of(hints[parameter.name])
            for parameter in self._signature.parameters.values()
            if parameter.name in hints
        }
        self.returns = Codec.of(awaited(fn, hints.get("return", Any)))

    def arguments(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Validated by the handler's annotations. Raises Refused."""
        args, kwargs = arguments_of_update(payload)
        try:
            bound = self._signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                bound.arguments[name] = self._valid(name, value)
        except Exception as error:
            raise Refused(Failure("", f"update {self.name!r}: {error}")) from error
        return bound.args, bound.kwargs

    def _valid(self, name: str, value: Any) -> Any:
        codec = self._codecs.get(name)
        if codec is None:
            return value
        what, kind = f"argument {name!r}", self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(codec.decode(dumps(one), what) for one in value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: codec.decode(dumps(one), what) for key, one in value.items()}
        return codec.decode(dumps(value), what)

    def validate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Asks the validator. Raises Refused."""
        if self._validator is None:
            return
        try:
            self._validator(*args, **kwargs)
        except Exception as error:
            raise Refused(failure_of(error)) from error
