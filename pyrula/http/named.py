"""What a route's function may ask for by a parameter: who calls, what the path names, how to wait.

Rules: a run or a schedule in a path is looked up for its caller, so that no route forgets whose it is.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Header, Path, Query
from starlette.requests import Request

from pyrula.http.access import Access
from pyrula.http.api import Api
from pyrula.http.models import MAX_WAIT
from pyrula.http.problems import invalid
from pyrula.http.tokens import Principal
from pyrula.http.waiting import while_connected
from pyrula.workflows.client import RunHandle, ScheduleInfo

__all__ = [
    "Caller",
    "Holds",
    "IdempotencyKey",
    "Name",
    "Run",
    "RunIdPath",
    "Schedule",
    "ScheduleId",
    "Timeout",
    "Wait",
    "one_key",
]

T = TypeVar("T")

Name = Annotated[str, Path(description="a workflow's name")]
RunIdPath = Annotated[str, Path(description="of a run, or of any run of its continue_as_new chain")]
ScheduleId = Annotated[str, Path(description="a schedule's id")]
IdempotencyKey = Annotated[str | None, Header(min_length=1, description="or the field of the body")]
Timeout = Annotated[float, Query(ge=0, le=MAX_WAIT, allow_inf_nan=False, description="seconds")]


def one_key(field: str | None, header: str | None, name: str) -> str | None:
    """What makes a request safe to send again: a field of the body, or the header Idempotency-Key."""
    told = None if header is None else _as_utf8(header)
    if field is not None and told is not None and field != told:
        raise invalid(name, "differs from the header Idempotency-Key")
    return told if field is None else field


def _as_utf8(header: str) -> str:
    """A header's bytes come as Latin-1, and are meant as UTF-8 where they are that."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


class Waiting(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]: ...


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.pyrula_principal
    return principal


Caller = Annotated[Principal, Depends(_principal)]
"""Who calls."""


async def _run(request: Request, name: Name, run_id: RunIdPath, caller: Caller) -> RunHandle[Any]:
    api: Api = request.state.pyrula_api
    return await api.run(name, run_id, caller)


Run = Annotated[RunHandle[Any], Depends(_run)]
"""The run that the path names. RunNotFoundError for one that the caller may not see."""


async def _schedule(request: Request, schedule_id: ScheduleId, caller: Caller) -> ScheduleInfo:
    api: Api = request.state.pyrula_api
    return await api.schedule(schedule_id, caller)


Schedule = Annotated[ScheduleInfo, Depends(_schedule)]
"""The schedule that the path names. ScheduleNotFoundError for one that the caller may not see."""


def _holds(request: Request, caller: Caller) -> Callable[[], bool]:
    access: Access = request.state.pyrula_access
    return lambda: access.holds(request, caller)


Holds = Annotated[Callable[[], bool], Depends(_holds)]
"""Whether the caller would still be let in, for what goes on for long."""


def _wait(request: Request) -> Waiting:
    api: Api = request.state.pyrula_api

    async def wait(work: Coroutine[Any, Any, T]) -> T:
        return await while_connected(request.receive, api.closing, work)

    return wait


Wait = Annotated[Waiting, Depends(_wait)]
"""Waits for some work as long as the caller is there and the server stays."""
