"""How the value of a record is read for one annotation, and what is said when it can't be.

`bytes` is the value as it is, `str` its UTF-8 text, anything else JSON: plain for `dict`, `list` or no annotation, by
pydantic for the rest. Null is read only where the annotation admits None; b"" is a value like any other.

JSON is held to the standard, so NaN and Infinity are refused where pydantic alone would take them, and so is a number
past the largest float where it would be one. Of duplicate keys the last one counts. Whole numbers over 64 bits become
floats in a `dict`; a model keeps them.
"""

import codecs
from collections.abc import Callable
from traceback import format_exception_only
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias, Union, get_args, get_origin

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from pyrula.workflows.codec import JSONDecodeError, loads
from pyrula.workflows.errors import ConfigurationError, PyrulaError

# Of a value's wrong parts so many are told, each cut to so many characters: a large value may have one per element.
_TOLD = 3
_LONGEST_TEXT = 300

# Brings every number that may be too large for a float into a form that is quickly looked for.
_NUMBERS = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 309

_READ_OTHERWISE = "take it as bytes, or bind with a value_serde"

Decode: TypeAlias = Callable[[bytes | None], Any]


class RecordError(PyrulaError):
    """A record can't be turned into a run. It is never retried: the same bytes give the same error.

    `reason` is "null" (no value where the annotation admits none), "encoding" (not UTF-8), "json" (not JSON), "shape"
    (not what the annotation says) or "serde" (the binding's own value_serde raised); `detail` says it in words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason, detail)

    def __str__(self) -> str:
        return self.detail


class ValueReader(NamedTuple):
    """`read` takes bytes and raises anything, for None too; `kind`, if any, is the exact type it must give.

    `null` gives what a null value is, or raises. `explain` turns what these raised into a RecordError, and `misfit` a
    value of another kind.
    """

    read: Callable[[Any], Any]
    null: Callable[[], Any]
    kind: type | None
    explain: Callable[[Exception, bytes | None], RecordError]
    misfit: Callable[[Any], RecordError]

    def value(self, data: bytes | None) -> Any:
        """The value of a record. Raises RecordError only."""
        try:
            if data is None:
                return self.null()
            value = self.read(data)
        except Exception as error:
            raise self.explain(error, data) from error
        if self.kind is not None and type(value) is not self.kind:
            raise self.misfit(value)
        return value


class _NoNull(Exception):
    """The annotation admits no None."""


class _SerdeFailed(Exception):
    """The binding's value_serde raised; its exception is the cause."""


def value_reader(annotation: Any, where: str, name: str, decode: Decode | None, as_json: bool) -> ValueReader:
    """The reader of an annotation. `where` names workflow and parameter, `name` is put before a wrong part's name.

    `decode` is the binding's own way to read a value; with `as_json` it is JSON whatever the annotation. Raises
    ConfigurationError for an annotation that no value can be read as.
    """

    def explain(error: Exception, data: bytes | None) -> RecordError:
        return _record_error(error, annotation, where, name, data)

    def misfit(value: Any) -> RecordError:
        got = "null" if value is None else type(value).__name__
        return RecordError("shape", f"{where}: the value is JSON, but a {got} and not a {_text(annotation)}")

    read, null, kind = _choose(annotation, where, decode, as_json)
    return ValueReader(read, null, kind, explain, misfit)


_Choice: TypeAlias = tuple[Callable[[Any], Any], Callable[[], Any], type | None]


def _choose(annotation: Any, where: str, decode: Decode | None, as_json: bool) -> _Choice:
    anything = annotation is Any or annotation is object
    if decode is not None:
        return _decoded(annotation, where, decode, anything)
    if anything:
        return loads, lambda: None, None
    if annotation in (dict, dict[str, Any], dict[str, object]):
        return loads, _refuse_null, dict
    if annotation in (list, list[Any], list[object]):
        return loads, _refuse_null, list
    if not as_json:
        found = _raw(annotation, where)
        if found is not None:
            return found
    adapter = _adapter(annotation, where)
    validate = adapter.validator.validate_json
    floats = _reads_floats(adapter.core_schema)

    def read(data: bytes) -> Any:
        # Looking for one byte is some ten times faster than looking for a word.
        odd = (78 in data and b"NaN" in data) or (73 in data and b"Infinity" in data)
        if odd or (floats and _may_be_infinite(data)):
            loads(data)
        return validate(data)

    return read, lambda: _null_by(adapter), None


def _reads_floats(schema: Any) -> bool:
    if isinstance(schema, dict):
        if schema.get("type") in ("float", "any"):
            return True
        return any(_reads_floats(part) for key, part in schema.items() if key != "metadata")
    return isinstance(schema, (list, tuple)) and any(map(_reads_floats, schema))


def _may_be_infinite(data: bytes) -> bool:
    """Whether something in it looks like a number past the largest float, which pydantic reads as infinity."""
    numbers = data.translate(_NUMBERS)
    return b"0e000" in numbers or b"0e+000" in numbers or (len(data) > 308 and _MANY_DIGITS in numbers)


def _raw(annotation: Any, where: str) -> _Choice | None:
    """`str` and `bytes`, with or without None: the value as it is. None if the annotation means JSON."""
    kinds = [kind for kind in map(unwrapped, _members(unwrapped(annotation))) if kind is not NoneType]
    if not any(kind is str or kind is bytes for kind in kinds):
        return None
    if len(kinds) > 1:
        raise ConfigurationError(
            f"{where}: {_text(annotation)} doesn't tell whether the value is to be taken as it is or read as JSON; "
            "annotate one of them, or bind with value_serde=JsonSerde(), StrSerde() or BytesSerde()"
        )
    read: Callable[[Any], Any] = bytes.decode if kinds[0] is str else bytes
    if annotation is str or annotation is bytes:
        return read, _refuse_null, None
    if annotation in (str | None, bytes | None):
        return read, lambda: None, None
    adapter = _adapter(annotation, where)
    validate = adapter.validator.validate_python
    return lambda data: validate(read(data)), lambda: _null_by(adapter), None


def _decoded(annotation: Any, where: str, decode: Decode, anything: bool) -> _Choice:
    def decoded(data: bytes | None) -> Any:
        try:
            return decode(data)
        except Exception as error:
            raise _SerdeFailed from error

    if anything:
        return decoded, lambda: decoded(None), None
    validate = _adapter(annotation, where, arbitrary=True).validator.validate_python

    def null() -> Any:
        value = decoded(None)
        try:
            return validate(value)
        except ValidationError:
            if value is None:
                raise _NoNull from None
            raise

    return lambda data: validate(decoded(data)), null, None


def _refuse_null() -> NoReturn:
    raise _NoNull


def _null_by(adapter: TypeAdapter[Any]) -> Any:
    """Kafka's null is JSON's null to an annotation."""
    try:
        return adapter.validate_json(b"null")
    except ValidationError:
        raise _NoNull from None


def _adapter(annotation: Any, where: str, arbitrary: bool = False) -> TypeAdapter[Any]:
    try:
        try:
            adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True) if arbitrary else None)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = TypeAdapter(annotation)  # a model brings its own config
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: a record can't be read as {_text(annotation)}: {_said_by(error)}; "
            "use a pydantic model or a builtin type, or bind with a value_serde that gives the object"
        ) from error
    return adapter


def _record_error(error: Exception, annotation: Any, where: str, name: str, data: bytes | None) -> RecordError:
    if isinstance(error, _NoNull):
        if not name:
            return RecordError("null", f"{where}: the value is null, and the parameters need an object's fields")
        asked = _text(annotation)
        return RecordError(
            "null", f"{where}: the value is null; annotate `{asked} | None` to take records without a value"
        )
    if isinstance(error, _SerdeFailed) and isinstance(error.__cause__, Exception):
        return RecordError("serde", f"{where}: value_serde can't read the value: {_said_by(error.__cause__)}")
    if isinstance(error, UnicodeDecodeError):
        said = f"{error.reason} at byte {error.start}"
        return RecordError("encoding", f"{where}: the value is not UTF-8 ({said}); {_READ_OTHERWISE}")
    if isinstance(error, JSONDecodeError):
        said = _encoding_flaw(data) or f"{error.msg} at character {error.pos}"
        return RecordError("json", f"{where}: the value is not JSON ({said}); {_READ_OTHERWISE}")
    if isinstance(error, ValidationError):
        return _shape_error(error, where, name, data)
    return RecordError("shape", f"{where}: validating the value raised {_said_by(error)}")


def _encoding_flaw(data: bytes | None) -> str:
    """Why it is no JSON, where a parser would only say that it met a character it doesn't know."""
    if data is None:
        return ""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it is UTF-16, and JSON is UTF-8"
    if data.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark, which JSON doesn't have"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8: {error.reason} at byte {error.start}"
    return ""


def _shape_error(error: ValidationError, where: str, name: str, data: bytes | None) -> RecordError:
    # Values are left out: they may be secret, and the dead letter has them anyway.
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        said = _encoding_flaw(data) or errors[0]["msg"]
        return RecordError("json", f"{where}: the value is not JSON ({said}); {_READ_OTHERWISE}")
    told = []
    for wrong in errors[:_TOLD]:
        path = [*([name] if name else []), *map(str, wrong["loc"])]
        told.append(f"{_cut('.'.join(path)) or 'the value'}: {_cut(wrong['msg'])}")
    if len(errors) > _TOLD:
        told.append(f"and {len(errors) - _TOLD} more")
    advice = ""
    if any(wrong["type"] == "missing" for wrong in errors[:_TOLD]):
        advice = " (give what may be missing a default)"
    return RecordError("shape", f"{where}: the value has another shape: {'; '.join(told)}{advice}")


def unwrapped(annotation: Any) -> Any:
    """An annotation without Annotated, NewType and type aliases around it."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _said_by(error: Exception) -> str:
    # Unlike str(), this can't raise, whatever the exception of a user's own does.
    return _cut("".join(format_exception_only(error)).strip())


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."


def _text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else repr(annotation)
