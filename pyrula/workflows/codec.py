"""Values to JSON and back, so that what a body sees live is what it sees on replay.

A `Codec` belongs to an annotation. `encode` gives the JSON and the *decoded form*: what `decode` will give for that JSON,
on any later replay. The body must see the decoded form. A value that would not come back as it went in (see
`likeness`) is refused with a SerializationError, and so is one over the size limit; nothing is changed silently.

Scalars take a path without pydantic, values without annotation one with orjson alone. Every JSON text made here survives
being parsed and written again by orjson: no number is longer than 64 bits, no NaN is a literal.

This is the only module that imports orjson.
"""

import marshal
import math
import re
from collections.abc import Callable
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Never, NoReturn, TypeVar, Union, get_args, get_origin

import orjson
import pydantic_core
from orjson import Fragment, JSONDecodeError
from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter

from pyrula.workflows.errors import ConfigurationError, SerializationError
from pyrula.workflows.likeness import NotPlain, difference, plain
from pyrula.workflows.model import MAX_VALUE

__all__ = ["Codec", "Fragment", "JSONDecodeError", "dumps", "encode_message", "loads"]

# orjson then takes exact builtin types only; enums and UUIDs still pass, which `marshal` finds out.
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
_SCALARS = frozenset((str, int, bool, float, NoneType))
_BARE = (Any, object, None.__class__.__mro__[-1], Never, NoReturn)
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_CONFIG = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")

_orjson_dumps = orjson.dumps
_marshal_dumps = marshal.dumps

loads = orjson.loads
"""JSON to plain values. Raises JSONDecodeError, a ValueError. Whole numbers over 64 bits become floats."""


def dumps(value: Any) -> bytes:
    """Plain values and Fragments to JSON, for rows and messages of our own. Raises SerializationError."""
    try:
        return _orjson_dumps(value, None, _STRICT)
    except TypeError as error:
        raise SerializationError(f"the value can't be written as JSON: {error}") from error


def encode_message(value: Any, what: str, limit: int | None = None) -> bytes:
    """The JSON of a value that leaves Pyrula and is not read back: models, dataclasses and dates in their usual form."""
    try:
        if isinstance(value, BaseModel):
            data = value.model_dump_json().encode()
        else:
            data = _orjson_dumps(value, _as_usual)
            if b"null" in data:
                _refuse_special_floats(value)
    except Exception as error:
        raise SerializationError(f"{what}: the value can't be written as JSON: {error}") from error
    if limit is not None and len(data) > limit:
        raise _too_large(what, len(data), limit)
    return data


def _as_usual(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return Fragment(value.model_dump_json())
    return pydantic_core.to_jsonable_python(value)


def _refuse_special_floats(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no form in JSON")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        _refuse_special_floats(item)


class Codec:
    """JSON for the values of one annotation.

    >>> codec = Codec.of(tuple[int, str])
    >>> codec.encode((1, "a"), "step `pair`")
    (b'[1,"a"]', (1, 'a'))
    >>> codec.decode(b'[1,"a"]')
    (1, 'a')
    """

    __slots__ = ("annotation",)

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    @staticmethod
    def of(annotation: Any = Any) -> "Codec":
        """The codec of an annotation (one object for equal ones). ConfigurationError if values of it have no JSON form."""
        try:
            # int | str == str | int, but a union is decoded in its order.
            return _cached_codec(annotation, repr(annotation))
        except TypeError:  # not hashable
            return _make_codec(annotation)

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        """The JSON and the decoded form. `what` names the value in errors: "step `charge`"."""
        raise NotImplementedError

    def decode(self, data: bytes, what: str = "the stored value") -> Any:
        """The value of a JSON text that `encode` made. SerializationError for any other text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Codec.of({self.annotation!r})"


class _BareCodec(Codec):
    """No annotation, or one that says no more than `dict` or `list`: the decoded form is what the JSON says."""

    __slots__ = ("_kind",)

    def __init__(self, annotation: Any, kind: type | None = None) -> None:
        super().__init__(annotation)
        self._kind = kind

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        kind = type(value)
        if self._kind is not None and kind is not self._kind:
            raise _misfit(what, value, self.annotation)
        if kind is str and len(value) > limit:
            raise _too_large(what, len(value), limit)
        try:
            data = _orjson_dumps(value, None, _STRICT)
            if kind is str or kind is int or kind is bool or value is None:
                decoded = value
            else:
                image = _marshal_dumps(value, 2)
                decoded = loads(data)
                # Only a NaN or infinity becomes another value here, and that is null.
                if b"null" in data and _marshal_dumps(decoded, 2) != image:
                    data, decoded = self._by_walk(value, what)
        except (TypeError, ValueError):
            data, decoded = self._by_walk(value, what)
        if len(data) > limit:
            raise _too_large(what, len(data), limit)
        return data, decoded

    def _by_walk(self, value: Any, what: str) -> tuple[bytes, Any]:
        try:
            data = _orjson_dumps(plain(value), None, _STRICT)
            return data, loads(data)
        except NotPlain as error:
            advice = "annotate what it returns" if what.startswith("step ") else "annotate it"
            raise SerializationError(
                f"{what}: without an annotation that says its type, JSON can't hold the value: it has {error}; {advice}"
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise _not_json(what, error) from error

    def decode(self, data: bytes, what: str = "the stored value") -> Any:
        try:
            value = loads(data)
        except ValueError as error:
            raise SerializationError(f"{what} is no JSON: {error}") from error
        if self._kind is not None and type(value) is not self._kind:
            raise _misfit(what, value, self.annotation)
        return value


class _ScalarCodec(Codec):
    """str, int, bool, float, None and unions of them: a value is its own decoded form."""

    __slots__ = ("_kinds",)

    def __init__(self, annotation: Any, kinds: frozenset[type]) -> None:
        super().__init__(annotation)
        self._kinds = kinds

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        kind = type(value)
        if kind not in self._kinds:
            if kind is not int or float not in self._kinds:
                raise _misfit(what, value, self.annotation)
            value = _as_float(value, what)
        elif kind is str and len(value) > limit:
            raise _too_large(what, len(value), limit)
        elif kind is float and not math.isfinite(value):
            return self._encode_text(_special_name(value), what), value
        try:
            data = _orjson_dumps(value)
        except TypeError as error:
            if kind is not int:
                raise _not_json(what, error) from error
            data = self._encode_text(_digits(value, what), what)
        if len(data) > limit:
            raise _too_large(what, len(data), limit)
        return data, value

    def _encode_text(self, text: str, what: str) -> bytes:
        if str in self._kinds:
            raise SerializationError(f"{what}: {text} has no form in JSON beside a str; leave str out of the annotation")
        return _orjson_dumps(text)

    def decode(self, data: bytes, what: str = "the stored value") -> Any:
        try:
            value = loads(data)
            kind = type(value)
            if kind in self._kinds:
                return value
            if kind is str:
                value = _SPECIAL_FLOATS[value] if value in _SPECIAL_FLOATS else int(value)
            elif kind is int and float in self._kinds:
                return float(value)
        except (ValueError, OverflowError) as error:
            raise SerializationError(f"{what} is no {_text(self.annotation)} in JSON: {error}") from error
        if type(value) not in self._kinds:
            raise _misfit(what, value, self.annotation)
        return value


class _TypedCodec(Codec):
    """Any other annotation, by pydantic."""

    __slots__ = ("_to_json", "_validate_json")

    def __init__(self, annotation: Any) -> None:
        super().__init__(annotation)
        adapter = _adapter(annotation)
        self._to_json: Callable[..., bytes] = adapter.serializer.to_json
        self._validate_json: Callable[..., Any] = adapter.validator.validate_json

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        try:
            # Fields by their names and all of them: a journal outlives aliases and defaults.
            data = self._to_json(value, by_alias=False, round_trip=True, warnings="error")
        except Exception as error:
            raise _not_json(what, error, self.annotation) from error
        if len(data) > limit:
            raise _too_large(what, len(data), limit)
        try:
            decoded = self._validate_json(data, by_alias=True, by_name=True)
            changed = difference(value, decoded)
        except Exception as error:
            raise SerializationError(
                f"{what}: the value doesn't come back from its JSON as {_text(self.annotation)}: {error}"
            ) from error
        if changed is not None:
            raise SerializationError(
                f"{what}: the value doesn't come back unchanged as {_text(self.annotation)}: value{changed}"
            )
        if _LONG_NUMBER.search(data) and (changed := _long_number(loads(data), data)):
            raise SerializationError(f"{what}: {changed}")
        return data, decoded

    def decode(self, data: bytes, what: str = "the stored value") -> Any:
        try:
            return self._validate_json(data, by_alias=True, by_name=True)
        except Exception as error:
            raise SerializationError(f"{what} is no {_text(self.annotation)} in JSON: {error}") from error


@lru_cache(maxsize=1024)
def _cached_codec(annotation: Any, text: str) -> Codec:
    return _make_codec(annotation)


def _make_codec(annotation: Any) -> Codec:
    if any(annotation is bare for bare in _BARE) or isinstance(annotation, TypeVar):
        return _BareCodec(annotation)
    if annotation is dict or annotation is list or annotation in (dict[str, Any], list[Any]):
        return _BareCodec(annotation, get_origin(annotation) or annotation)
    kinds = _scalar_kinds(annotation)
    if kinds is not None:
        return _ScalarCodec(annotation, kinds)
    return _TypedCodec(annotation)


def _scalar_kinds(annotation: Any) -> frozenset[type] | None:
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = frozenset(NoneType if member is None else member for member in members if _hashable(member))
    return kinds if len(kinds) == len(members) and kinds <= _SCALARS else None


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        try:
            return TypeAdapter(annotation, config=_CONFIG)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return TypeAdapter(annotation)  # a model brings its own config
    except Exception as error:
        raise ConfigurationError(f"values of {_text(annotation)} have no form in JSON: {error}") from error


def _as_float(value: int, what: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value:
        raise SerializationError(f"{what}: the int {value} is no float without being rounded")
    return number


def _special_name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _digits(value: int, what: str) -> str:
    try:
        return str(value)
    except ValueError as error:
        raise _not_json(what, error) from error


def _long_number(value: Any, data: bytes) -> str | None:
    """Looks for a number that orjson would read as a rounded float."""
    return None if pydantic_core.from_json(data) == value else "it has an int of more than 64 bits; keep it as a str"


def _too_large(what: str, size: int, limit: int) -> SerializationError:
    return SerializationError(
        f"{what}: the value is {size:,} bytes as JSON, the limit is {limit:,}; keep it elsewhere and pass a reference"
    )


def _misfit(what: str, value: Any, annotation: Any) -> SerializationError:
    return SerializationError(f"{what}: the value is a {type(value).__qualname__}, not the declared {_text(annotation)}")


def _not_json(what: str, error: Exception, annotation: Any = None) -> SerializationError:
    declared = "" if annotation is None else f" as {_text(annotation)}"
    return SerializationError(f"{what}: the value can't be written as JSON{declared}: {error}")


def _text(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else repr(annotation)
