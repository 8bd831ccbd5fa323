"""What clients and holders put into the payloads that a store carries but never looks into. Public (docs/formats.md).

- *signal*: the payload's JSON.
- *update*: the payload's JSON: an object is the handler's keyword arguments, null none, anything else its one argument.
- *resume*: `{"action": text, "value": any}`.
- *query*: `{"args": [...], "kwargs": {...}}`; its answer is `{"ok": any}` or `{"error": failure}`.
- *failure*, of a run, an update or a query: `{"type": text, "message": text, "trace": text}`. In a query's answer the
  type "" means that nothing raised: there is no such query, or nobody to answer it.

Values are plain JSON: who receives one validates it by the annotations it has.
"""

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyrula.workflows.codec import Fragment, dumps, encode_message, loads
from pyrula.workflows.errors import SerializationError
from pyrula.workflows.model import MAX_VALUE

__all__ = [
    "Failure",
    "InterruptAnswer",
    "arguments_of_update",
    "encode_answer",
    "encode_failure",
    "encode_payload",
    "encode_query",
    "encode_refusal",
    "encode_resume",
    "failure_of",
    "read_answer",
    "read_failure",
    "read_query",
    "read_resume",
]

_MESSAGE_LIMIT: Final = 2_000
_TRACE_LIMIT: Final = 8_000


class Failure(NamedTuple):
    """An exception as text. `type` is its qualified name."""

    type: str
    message: str
    trace: str = ""


class InterruptAnswer(NamedTuple):
    """What `ctx.interrupt` gives the body: what `resume` was called with."""

    action: str
    value: Any = None


def encode_payload(value: Any, what: str) -> bytes:
    """Models, dataclasses and dates in their usual form. SerializationError naming `what`."""
    return encode_message(value, what, MAX_VALUE)


def arguments_of_update(payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an update's handler and validator are called with."""
    value = loads(payload)
    if isinstance(value, dict):
        return (), value
    return (() if value is None else (value,)), {}


def encode_resume(action: str, value: Any, what: str) -> bytes:
    return dumps({"action": action, "value": Fragment(encode_payload(value, what))})


def read_resume(payload: bytes) -> InterruptAnswer:
    fields = _object(payload, "an interrupt's answer")
    return InterruptAnswer(str(fields.get("action")), fields.get("value"))


def encode_query(args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> bytes:
    return encode_payload({"args": list(args), "kwargs": dict(kwargs)}, what)


def read_query(payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a query's handler is called with."""
    fields = _object(payload, "a query's payload")
    args, kwargs = fields.get("args"), fields.get("kwargs")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise SerializationError("a query's payload has no args and kwargs")
    return tuple(args), kwargs


def encode_answer(value: Any, what: str) -> bytes:
    """A query's answer. SerializationError naming `what` for a value that has no form in JSON or is too large."""
    return dumps({"ok": Fragment(encode_payload(value, what))})


def encode_refusal(failure: Failure) -> bytes:
    """The answer of a query that failed."""
    return dumps({"error": failure._asdict()})


def read_answer(answer: bytes) -> tuple[Any, Failure | None]:
    """A query's value, or why there is none."""
    fields = _object(answer, "a query's answer")
    if "ok" in fields:
        return fields["ok"], None
    return None, _failure(fields.get("error"))


def failure_of(error: BaseException) -> Failure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as failed:  # noqa: BLE001 - a user's own __str__
        message = f"(its text can't be told: {type(failed).__name__})"
    trace = "".join(traceback.format_exception(error))
    return Failure(name, _clean(message[:_MESSAGE_LIMIT]), _clean(trace[-_TRACE_LIMIT:]))


def encode_failure(failure: Failure) -> bytes:
    """For End.error and Applied.value."""
    return dumps(failure._asdict())


def read_failure(data: bytes | None) -> Failure:
    return Failure("", "") if data is None else _failure(_parsed(data, "a failure"))


def _failure(fields: Any) -> Failure:
    if not isinstance(fields, dict):
        raise SerializationError("a failure in the store is no object")
    return Failure(*(str(fields.get(name) or "") for name in Failure._fields))


def _object(data: bytes, what: str) -> dict[str, Any]:
    value = _parsed(data, what)
    if not isinstance(value, dict):
        raise SerializationError(f"{what} in the store is no object")
    return value


def _parsed(data: bytes, what: str) -> Any:
    try:
        return loads(data)
    except ValueError as error:
        raise SerializationError(f"{what} in the store is no JSON: {error}") from error


def _clean(text: str) -> str:
    """Without lone surrogates, which JSON can't hold."""
    return text.encode("utf-8", "replace").decode()
