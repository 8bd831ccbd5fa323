"""What goes wrong, as problem details (RFC 9457): which exception has which status, and what of it goes out.

Rules: `code` is the exception's name, so that programs tell errors apart by it and not by their text. An exception that
isn't in the table, or is none of the caller's business, is logged and goes out without its text. docs/http.md has the
same table; a test compares them.
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from fastapi.exceptions import HTTPException, RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

from pyrula.workflows.client.schedules import ScheduleNotFoundError
from pyrula.workflows.codec import dumps
from pyrula.workflows.errors import (
    BackpressureRejected,
    ConfigurationError,
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    QueryError,
    QueryTimeout,
    SerializationError,
    StoreUnavailable,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
)
from pyrula.workflows.params import ParamsError
from pyrula.workflows.store.backfills import BackfillNotFoundError, BackfillRefused
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    TransitionRefused,
)

__all__ = ["MEDIA_TYPE", "REFUSALS", "SCHEMA", "TABLE", "Refusal", "Row", "invalid", "problem_of"]

log = logging.getLogger("pyrula.http")

MEDIA_TYPE: Final = "application/problem+json"

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "the exception's name"},
        "detail": {"type": "string"},
    },
}
"""Of a problem, in the OpenAPI document. Some have more, such as `run_id`, `update_id` or `errors`."""

_FIELDS: Final = ("run_id", "query", "update", "update_id", "error_type", "message", "workflow")
"""Of an exception, if it has them. `status` goes out as `run_status`, since a problem's own `status` is a number."""


class Row(NamedTuple):
    """How an exception is told. `told` None: by its text. `retry_after`: seconds."""

    status: int
    retry_after: int | None = None
    told: str | None = None


TABLE: Final[Mapping[type[Exception], Row]] = {
    RunNotFoundError: Row(404),
    ScheduleNotFoundError: Row(404),
    BackfillNotFoundError: Row(404),
    BackfillRefused: Row(409),
    RunFinishedError: Row(409),
    RunNotWaitingError: Row(409),
    TransitionRefused: Row(409),
    InboxFullError: Row(429, retry_after=1),
    QueryError: Row(404),
    QueryTimeout: Row(504),
    UpdateRejected: Row(422),
    UpdateError: Row(422),
    UpdateTimeout: Row(504),
    DurableInvocationError: Row(409),
    DurableInvocationCancelled: Row(409),
    DurableInvocationTimeout: Row(202),
    BackpressureRejected: Row(429, retry_after=1),
    ParamsError: Row(422),
    SerializationError: Row(422),
    StoreUnavailable: Row(
        503,
        retry_after=1,
        told="the store doesn't answer; whether the request had its effect isn't known, so repeat it with the same ids",
    ),
    ConfigurationError: Row(503, told="the server isn't configured as it must be; its log says how"),
}
"""By the nearest base. A QueryError whose handler raised is a 400: see `_row`."""

REFUSALS: Final[Mapping[str, int]] = {
    "InvalidJSON": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "RequestTimeout": 408,
    "BodyTooLarge": 413,
    "UnsupportedMediaType": 415,
    "HostNotAllowed": 421,
    "InvalidRequest": 422,
    "InternalError": 500,
    "ShuttingDown": 503,
}
"""What is refused before anything is asked of the client."""

_NAMES: Final = {404: "NotFound", 405: "MethodNotAllowed"}


class Refusal(HTTPException):
    """Raised where the API itself refuses a request; `code` is one of `REFUSALS`."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(REFUSALS[code], detail, dict(headers or {}))
        self.code = code
        self.errors = tuple(errors)


def invalid(field: str, message: str) -> Refusal:
    """Of a field that is missing, unknown or of the wrong kind."""
    return Refusal("InvalidRequest", f"{field}: {message}", errors=[(field, message)])


def problem_of(error: Exception, *, route: str) -> Response:
    """The answer to a request that ended with this exception. `route` is for the log."""
    if isinstance(error, Refusal):
        return _response(error.status_code, error.code, error.detail, error.headers, errors=_listed(error.errors))
    if isinstance(error, RequestValidationError):
        wrong = [(".".join(map(str, each["loc"][1:])) or str(each["loc"][0]), each["msg"]) for each in error.errors()]
        told = "; ".join(f"{field}: {message}" for field, message in wrong[:3])
        return _response(422, "InvalidRequest", told, errors=_listed(wrong))
    if isinstance(error, StarletteHTTPException):
        name = _NAMES.get(error.status_code, HTTPStatus(error.status_code).phrase.replace(" ", ""))
        return _response(error.status_code, name, error.detail, error.headers)
    row = _row(error)
    if row is None:
        log.error("%s failed", route, exc_info=error)
        return _response(500, "InternalError", "the server failed; its log says how")
    if row.status >= 500 and row.told is not None:
        log.error("%s: %s: %s", route, type(error).__name__, error)
    headers = {} if row.retry_after is None else {"Retry-After": str(row.retry_after)}
    return _response(row.status, _code(error), row.told or str(error), headers, **_extensions(error))


def _row(error: Exception) -> Row | None:
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is not None and type(error) is QueryError and error.error_type:
        # the query is there, so it isn't "not found"
        return row._replace(status=400)
    return row


def _code(error: Exception) -> str:
    """The name of the nearest base in the table: subclasses that a store has of its own aren't public."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind in TABLE)


def _extensions(error: Exception) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(error, name, None)
        if isinstance(value, str) and value:
            found[name] = value
    status = getattr(error, "status", None)
    if isinstance(status, str) and status:
        found["run_status"] = str(status)
    if isinstance(error, ParamsError):
        found["errors"] = _listed([(f"params.{field}" if field else "params", text) for field, text in error.problems])
    return found


def _listed(errors: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"field": field, "message": message} for field, message in errors]


def _response(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **extensions: Any
) -> Response:
    content = {
        "type": f"urn:pyrula:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": _clean(detail),
        **{name: value for name, value in extensions.items() if value},
    }
    return Response(_encoded(content), status, dict(headers or {}), MEDIA_TYPE)


def _encoded(content: dict[str, Any]) -> bytes:
    try:
        return dumps(content)
    except SerializationError:
        # a text of the request's own that isn't UTF-8
        cleaned = {name: _clean(value) if isinstance(value, str) else value for name, value in content.items()}
        cleaned["errors"] = []
        return dumps(cleaned)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
