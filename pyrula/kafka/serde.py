"""How a record becomes the arguments of a workflow's body, compiled once per binding.

One parameter after ctx gets the decoded value, or the record itself where it is annotated `Record[T]`. With several
parameters the value is an object and they are its fields: extra fields are ignored (or taken by `**kwargs`), a missing
one is an error unless its parameter has a default. A body without parameters ignores the value, whatever it is.

A binding's `value_serde` takes the place of the reading that the annotation asks for, not of the validation by it. What
is wrong with one record is a RecordError, whatever foreign code raised; what would be wrong with any, a
ConfigurationError.
"""

import inspect
from collections.abc import Callable
from typing import Any, NotRequired, Protocol, TypeAlias, cast, get_args, get_origin

from pydantic import ConfigDict
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on only

from pyrula.kafka.record import RawRecord, Record
from pyrula.kafka.value_reader import Decode, RecordError, ValueReader, unwrapped, value_reader
from pyrula.workflows.codec import loads
from pyrula.workflows.definition import Parameter, WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError

__all__ = [
    "Arguments",
    "BytesSerde",
    "JsonSerde",
    "RecordError",
    "Serde",
    "StrSerde",
    "compile_arguments",
]

# From a raw record and its topic and partition.
Arguments: TypeAlias = Callable[[RawRecord, tuple[str, int]], tuple[tuple[Any, ...], dict[str, Any] | None]]


class Serde(Protocol):
    """Reads the value of a record; what it gives is then validated by the annotation of the body.

    >>> class Csv:
    ...     def decode(self, data: bytes | None) -> list[str] | None:
    ...         return None if data is None else data.decode().split(",")
    """

    def decode(self, data: bytes | None) -> Any:
        """The value; `data` is None for null. Whatever this raises sends the record to the dead-letter topic."""


class JsonSerde:
    """JSON, also where the annotation is `str` or `bytes` and would else get the value as it is."""

    def decode(self, data: bytes | None) -> Any:
        return None if data is None else loads(data)


class BytesSerde:
    """The bytes as they are."""

    def decode(self, data: bytes | None) -> bytes | None:
        return data


class StrSerde:
    """Text in an encoding, UTF-8 unless said otherwise."""

    def __init__(self, encoding: str = "utf-8") -> None:
        try:
            b"a".decode(encoding)
        except UnicodeError:
            pass  # it is known, only this isn't text in it
        except LookupError:
            raise ConfigurationError(f"StrSerde: Python knows no text encoding {encoding!r}") from None
        self.encoding = encoding

    def decode(self, data: bytes | None) -> str | None:
        return None if data is None else data.decode(self.encoding)


def compile_arguments(definition: WorkflowDefinition[..., Any], value_serde: Serde | None = None) -> Arguments:
    """A function from a raw record to the positional and the keyword arguments of the body, after ctx.

    Raises ConfigurationError for annotations that no record can be read by. The function itself raises RecordError
    only.
    """
    hints = definition.hints()
    annotations = {parameter.name: hints.get(parameter.name, Any) for parameter in definition.parameters}
    as_json = isinstance(value_serde, JsonSerde)
    decode = None if value_serde is None or as_json else value_serde.decode
    if definition.accepts_extra or len(annotations) > 1:
        return _fields(definition, annotations, decode)
    if annotations:
        parameter = definition.parameters[0]
        return _one_argument(definition.name, parameter, annotations[parameter.name], decode, as_json)
    return lambda raw, place: ((), None)


def _one_argument(
    workflow: str, parameter: Parameter, annotation: Any, decode: Decode | None, as_json: bool
) -> Arguments:
    name = parameter.name
    where = f"workflow {workflow}, parameter {name}"
    bare = unwrapped(annotation)
    if bare is Record or get_origin(bare) is Record:
        inner = (get_args(bare) or (Any,))[0]
        _refuse_records(inner, where)
        value = value_reader(inner, where, name, decode, as_json).value
        if parameter.keyword_only:
            return lambda raw, place: ((), {name: Record.of(raw, value(raw.value), place)})
        return lambda raw, place: ((Record.of(raw, value(raw.value), place),), None)
    _refuse_records(annotation, where)
    reader = value_reader(annotation, where, name, decode, as_json)
    if parameter.keyword_only:
        return lambda raw, place: ((), {name: reader.value(raw.value)})
    return _fast_argument(reader)


def _fast_argument(reader: ValueReader) -> Arguments:
    """`reader.value` without the call, since nearly every record comes this way."""
    read, _, kind, explain, misfit = reader

    def arguments(raw: RawRecord, place: tuple[str, int]) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
        try:
            value = read(raw.value)
        except Exception as error:
            if raw.value is None:
                return (reader.value(None),), None
            raise explain(error, raw.value) from error
        if kind is None or type(value) is kind:
            return (value,), None
        raise misfit(value)

    return arguments


def _fields(definition: WorkflowDefinition[..., Any], annotations: dict[str, Any], decode: Decode | None) -> Arguments:
    where = f"workflow {definition.name}"
    shape: dict[str, Any] = {}
    for parameter in definition.parameters:
        annotation = annotations[parameter.name]
        _refuse_records(annotation, f"{where}, parameter {parameter.name}")
        shape[parameter.name] = NotRequired[annotation] if parameter.has_default else annotation
    fields = cast(Any, TypedDict)("fields", shape)
    if not definition.accepts_extra:
        value = value_reader(fields, where, "", decode, as_json=True).value
        return lambda raw, place: ((), value(raw.value))
    fields.__pydantic_config__ = ConfigDict(extra="allow")
    value = value_reader(fields, where, "", decode, as_json=True).value
    ctx = next(iter(inspect.signature(definition.fn).parameters))

    def arguments(raw: RawRecord, place: tuple[str, int]) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
        named = value(raw.value)
        named.pop(ctx, None)  # the first parameter is given already
        return (), named

    return arguments


def _refuse_records(annotation: Any, where: str) -> None:
    """Record[T] stands alone as the annotation of the only parameter; inside anything else it can't be filled."""
    bare = unwrapped(annotation)
    if bare is Record or get_origin(bare) is Record:
        raise ConfigurationError(
            f"{where}: Record[...] is the whole record, so it can only be the annotation of a single parameter after "
            "ctx (for records without a value: Record[... | None]); in other bodies use ctx.record"
        )
    for member in get_args(bare):
        _refuse_records(member, where)
