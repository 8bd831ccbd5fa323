"""Values to JSON and back, so that what a body sees live is what it sees on replay.

A `Codec` belongs to an annotation. `encode` gives the JSON and the *decoded form*: what `decode` will give for that
JSON on any later replay. The body must see the decoded form. A value that would not come back as it went in (`likeness`
says what counts) is refused with a SerializationError, and so is one over the size limit; nothing changes silently.

Scalars take a path without pydantic, values without annotation one with orjson alone. All JSON made here survives
being parsed and written again by orjson: no whole number has more than 64 bits, no NaN is a literal.

This is the only module that imports orjson.
"""

import inspect
import marshal
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Never, NoReturn, TypeVar, Union, get_args, get_origin

import orjson
import pydantic
import pydantic_core
from orjson import Fragment, JSONDecodeError
from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter

from pyrula.workflows.errors import ConfigurationError, SerializationError
from pyrula.workflows.likeness import NotPlain, difference, plain
from pyrula.workflows.model import MAX_VALUE

__all__ = ["Codec", "Fragment", "JSONDecodeError", "dumps", "encode_message", "loads"]

# Exact builtin types only. Enums and UUIDs still pass in orjson; `marshal` takes no such object.
_STRICT: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
_SCALARS: Final = frozenset((str, int, bool, float, NoneType))
_SAFE: Final = _SCALARS - {float}
_BARE: Final = (Any, object, Never, NoReturn, inspect.Signature.empty)
_SPECIAL_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS_TO_0: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19
_CONFIG: Final = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")

_BY_NAME: Final = tuple(int(part) for part in pydantic.VERSION.split(".")[:2]) >= (2, 11)

_orjson_dumps = orjson.dumps
_marshal_dumps = marshal.dumps

loads = orjson.loads
"""JSON to plain values. Raises JSONDecodeError, a ValueError. Whole numbers of more than 64 bits become floats."""


def dumps(value: Any) -> bytes:
    """Plain values and Fragments to JSON, for rows and messages of our own. Raises SerializationError."""
    try:
        return _orjson_dumps(value, None, _STRICT)
    except TypeError as error:
        raise SerializationError(f"the value can't be written as JSON: {error}") from error


def encode_message(value: Any, what: str, limit: int | None = None, *, sort_keys: bool = False) -> bytes:
    """The JSON of a value that leaves Pyrula and isn't read back, so that types needn't survive; no NaN or infinity.

    Models are written as their `model_dump_json()`, dataclasses, dates, UUIDs, enums, Decimals in their usual form.
    """
    try:
        if isinstance(value, BaseModel):
            data = _model_json(value)
        else:
            data = _orjson_dumps(value, _usual_form, orjson.OPT_SORT_KEYS if sort_keys else 0)
            if b"null" in data:
                _refuse_special_floats(value)
    except Exception as error:
        raise SerializationError(f"{what}: the value can't be written as JSON: {error}") from error
    if limit is not None and len(data) > limit:
        raise _too_large(what, len(data), limit)
    return data


def _usual_form(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return Fragment(_model_json(value))
    form = pydantic_core.to_jsonable_python(value)
    _refuse_special_floats(form)
    return form


def _model_json(model: BaseModel) -> bytes:
    data = model.model_dump_json().encode()
    # What a NaN or infinity is written as, by the model's config.
    if b"null" in data or b"NaN" in data or b"Infinity" in data:
        _refuse_special_floats(model.model_dump(mode="json", warnings=False))
    return data


def _refuse_special_floats(value: Any) -> None:
    """orjson writes them as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no form in JSON")
    if isinstance(value, dict):
        items = list(value.values())
    elif is_dataclass(value):
        items = [getattr(value, field.name, None) for field in fields(value)]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
    else:
        return
    for item in items:
        _refuse_special_floats(item)


class Codec(ABC):
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
        """The codec of a resolved annotation, the same object for the same one.

        ConfigurationError if values of it have no form in JSON.
        """
        try:
            # By text too: int | str equals str | int, but pydantic tries the members in their order.
            return _cached_codec(annotation, repr(annotation))
        except TypeError:  # not hashable
            return _make_codec(annotation)

    @abstractmethod
    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        """The JSON and the decoded form. SerializationError; `what` names the value there: "step `charge`"."""

    def encode_message(self, value: Any, what: str, limit: int = MAX_VALUE) -> bytes:
        """A value that leaves Pyrula: its JSON, where other readers wouldn't take a text for the number it stands for;
        bytes as they are, if they are declared."""
        if isinstance(value, bytes):
            self.encode(b"", what)
            if len(value) > limit:
                raise SerializationError(f"{what}: the value has {len(value):,} bytes, the limit is {limit:,}")
            return value
        data, decoded = self.encode(value, what, limit)
        try:
            if b'"NaN"' in data or b'Infinity"' in data:
                _refuse_special_floats(pydantic_core.to_jsonable_python(decoded, fallback=str))
            if type(decoded) is int and data[:1] == b'"':
                raise ValueError("an int of more than 64 bits has no form in JSON that all readers take")
        except ValueError as error:
            raise _not_json(what, error) from error
        return data

    @abstractmethod
    def decode(self, data: bytes, what: str = "the stored value") -> Any:
        """The value of a JSON text that `encode` made. SerializationError for texts that can't be one."""

    def __repr__(self) -> str:
        return f"Codec.of({_text(self.annotation)})"


class _BareCodec(Codec):
    """No annotation, or one that says no more than dict or list: the decoded form is what the JSON says."""

    __slots__ = ("_kind",)

    def __init__(self, annotation: Any, kind: type | None = None) -> None:
        super().__init__(annotation)
        self._kind = kind

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        kind = type(value)
        if self._kind is not None and kind is not self._kind and not (kind is tuple and self._kind is list):
            raise _misfit(what, value, self.annotation)
        if kind is str and len(value) > limit:
            raise _too_large(what, len(value) + 2, limit)
        try:
            data = _orjson_dumps(value, None, _STRICT)
            if kind in _SAFE or (kind is float and math.isfinite(value)):
                decoded = value
            elif kind is dict and _SAFE.issuperset(map(type, value.values())):
                decoded = value.copy()
            else:
                image = _marshal_dumps(value, 2)  # version 2 has no references: equal values, equal bytes
                decoded = loads(data)
                # Of the types that pass both, only a NaN or infinity is written as something else: null.
                if b"null" in data and _marshal_dumps(decoded, 2) != image:
                    data, decoded = self._encode_by_walk(value, what)
        except (TypeError, ValueError):
            data, decoded = self._encode_by_walk(value, what)
        if len(data) > limit:
            raise _too_large(what, len(data), limit)
        return data, decoded

    def _encode_by_walk(self, value: Any, what: str) -> tuple[bytes, Any]:
        try:
            data = _orjson_dumps(plain(value), None, _STRICT)
            return data, loads(data)
        except NotPlain as error:
            raise SerializationError(
                f"{what}: JSON can't hold {error} unchanged; declare the value's type by an annotation"
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
    """str, int, bool, float, None and unions of them: a value is its own decoded form.

    An int for a float is that float. NaN, infinities and ints of more than 64 bits are written as text, where no
    str is declared beside them.
    """

    __slots__ = ("_kinds",)

    def __init__(self, annotation: Any, kinds: frozenset[type]) -> None:
        super().__init__(annotation)
        self._kinds = kinds

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        kind = type(value)
        if kind not in self._kinds:
            if kind is not int or float not in self._kinds:
                raise _misfit(what, value, self.annotation)
            value = self._as_float(value, what)
        elif kind is str and len(value) > limit:
            raise _too_large(what, len(value) + 2, limit)
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

    def _as_float(self, value: int, what: str) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if number != value:
            raise SerializationError(f"{what}: the int {_shortened(value)} isn't exact as the declared float")
        return number

    def _encode_text(self, text: str, what: str) -> bytes:
        if str in self._kinds:
            raise SerializationError(
                f"{what}: JSON has no number {_shortened(text)}, and as a text it would come back as a str"
            )
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

    __slots__ = ("_by_name", "_to_json", "_validate_json")

    def __init__(self, annotation: Any) -> None:
        super().__init__(annotation)
        try:
            adapter = _adapter(annotation)
            self._to_json: Callable[..., bytes] = adapter.serializer.to_json
            self._validate_json: Callable[..., Any] = adapter.validator.validate_json
            self._by_name = _aliases_differ(adapter.core_schema)
            if self._by_name and not _BY_NAME:
                raise TypeError("a field is read under another alias than it is written, which needs pydantic 2.11")
        except Exception as error:
            raise ConfigurationError(f"values of {_text(annotation)} have no form in JSON: {error}") from error

    def encode(self, value: Any, what: str, limit: int = MAX_VALUE) -> tuple[bytes, Any]:
        try:
            # A value that isn't as declared is found by comparing, and told better so than by pydantic's warning.
            data = self._to_json(value, by_alias=not self._by_name, round_trip=True, warnings=False)
        except Exception as error:
            raise _not_json(what, error, self.annotation) from error
        if len(data) > limit:
            raise _too_large(what, len(data), limit)
        try:
            decoded = self._decode(data)
            changed = difference(value, decoded)
        except Exception as error:
            raise SerializationError(
                f"{what}: the value doesn't come back from its JSON as {_text(self.annotation)}: {_why(error)}"
            ) from error
        if changed is None and _LONG_NUMBER in data.translate(_DIGITS_TO_0) and not _is_stable(data):
            changed = " has an int of more than 64 bits; declare it as a Decimal or a str"
        if changed is not None:
            raise SerializationError(
                f"{what}: the value doesn't come back unchanged as {_text(self.annotation)}: value{changed}"
            )
        return data, decoded

    def decode(self, data: bytes, what: str = "the stored value") -> Any:
        try:
            return self._decode(data)
        except Exception as error:
            raise SerializationError(f"{what} is no {_text(self.annotation)} in JSON: {_why(error)}") from error

    def _decode(self, data: bytes) -> Any:
        return self._validate_json(data, by_alias=False, by_name=True) if self._by_name else self._validate_json(data)


@lru_cache(maxsize=1024)
def _cached_codec(annotation: Any, text: str) -> Codec:
    return _make_codec(annotation)


def _make_codec(annotation: Any) -> Codec:
    if isinstance(annotation, TypeVar) or any(annotation is bare for bare in _BARE):
        return _BareCodec(annotation)
    if annotation is dict or annotation is list or annotation in (dict[str, Any], list[Any]):
        return _BareCodec(annotation, get_origin(annotation) or annotation)
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [NoneType if member is None else member for member in members]
    if all(any(kind is scalar for scalar in _SCALARS) for kind in kinds):
        return _ScalarCodec(annotation, frozenset(kinds))
    return _TypedCodec(annotation)


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_CONFIG)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(annotation)  # a model brings its own config


def _aliases_differ(schema: Any) -> bool:
    """Whether a field is read under another alias than it is written: then only its name serves for both."""
    if isinstance(schema, dict):
        if schema.get("validation_alias") != schema.get("serialization_alias"):
            return True
        return any(_aliases_differ(part) for key, part in schema.items() if key != "metadata")
    if isinstance(schema, (list, tuple)):
        return any(_aliases_differ(part) for part in schema)
    return False


def _is_stable(data: bytes) -> bool:
    """Whether orjson reads the numbers as they are; longer ones it rounds to floats, and refuses what is none."""
    try:
        return _marshal_dumps(pydantic_core.from_json(data), 2) == _marshal_dumps(loads(data), 2)
    except JSONDecodeError:
        return False


def _why(error: Exception) -> str:
    """Without pydantic's heading and links, and without values, which may be secret."""
    if not isinstance(error, pydantic.ValidationError):
        return str(error)
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in wrong[:3])


def _special_name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _digits(value: int, what: str) -> str:
    try:
        return str(value)
    except ValueError as error:  # beyond sys.set_int_max_str_digits
        raise _not_json(what, error) from error


def _too_large(what: str, size: int, limit: int) -> SerializationError:
    """A text that is too long by itself isn't encoded first: `size` is the least it can be."""
    return SerializationError(
        f"{what}: the value has {size:,} bytes as JSON, the limit is {limit:,}; keep it elsewhere and pass a reference"
    )


def _misfit(what: str, value: Any, annotation: Any) -> SerializationError:
    kind = type(value).__qualname__
    return SerializationError(f"{what}: the value is a {kind}, not the declared {_text(annotation)}")


def _not_json(what: str, error: Exception, annotation: Any = None) -> SerializationError:
    declared = "" if annotation is None else f" as {_text(annotation)}"
    return SerializationError(f"{what}: the value can't be written as JSON{declared}: {error}")


def _shortened(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:
        return "of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _text(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else repr(annotation)
