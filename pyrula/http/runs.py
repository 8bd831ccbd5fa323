"""Routes of runs: starting them, looking at them, waiting for what becomes of them."""

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from pyrula.http.api import Api, scoped
from pyrula.http.models import (
    MAX_WAIT,
    Counts,
    EventRow,
    Page,
    RunDetail,
    SubmitRequest,
    Submitted,
    Value,
)
from pyrula.http.problems import Refusal
from pyrula.http.routing import Caller, also, errors, needs
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import answer, detail_of, event_of, page_of
from pyrula.http.waiting import while_connected
from pyrula.workflows.client import RunHandle
from pyrula.workflows.codec import Fragment
from pyrula.workflows.errors import DurableInvocationTimeout
from pyrula.workflows.params import ParamsError
from pyrula.workflows.store.listing import MAX_LIMIT
from pyrula.workflows.store.runs import Submitted as Submission

__all__ = ["IdempotencyKey", "Name", "RunIdPath", "RunRoutes", "invalid"]

Name = Annotated[str, Path(description="a workflow's name")]
RunIdPath = Annotated[str, Path(description="of a run, or of any run of its continue_as_new chain")]
IdempotencyKey = Annotated[str | None, Header(min_length=1, description="or the field of the body")]

_STATUSES: Final = "a status, or parked, finished, unfinished; several times for several"


class RunRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._client = api.client

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route(
            "/{name}/runs",
            self.submit,
            methods=["POST"],
            summary="Start a run",
            status_code=201,
            response_model=Submitted,
            responses={**also(200, "The idempotency key had a run already", Submitted), **errors(404, 409, 429)},
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/runs",
            self.list_of_name,
            methods=["GET"],
            summary="List runs of a workflow, the newest first",
            response_model=Page,
            responses=errors(404),
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/runs",
            self.list_of_all,
            methods=["GET"],
            summary="List runs, the newest first",
            response_model=Page,
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/counts",
            self.counts,
            methods=["GET"],
            summary="Count runs by status",
            response_model=Counts,
            openapi_extra=needs(Role.READ, all_owners=True),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}",
            self.detail,
            methods=["GET"],
            summary="A run's status and all else that can be told of it",
            response_model=RunDetail,
            responses=errors(404),
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/events",
            self.events,
            methods=["GET"],
            summary="What happened to a run, oldest first",
            response_model=list[EventRow],
            responses=errors(404),
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/result",
            self.result,
            methods=["GET"],
            summary="Wait for a run to finish",
            response_model=Value,
            responses=errors(202, 404, 409),
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/history",
            self.history,
            methods=["GET"],
            summary="A run's journal, as `pyrula replay` reads it",
            response_model=dict[str, Any],
            responses=errors(404),
            openapi_extra=needs(Role.ADMIN, all_owners=True),
        )

    async def submit(
        self, name: Name, body: SubmitRequest, caller: Caller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        handle, submitted = await self.started(name, body, caller, idempotency_key)
        note = None
        if name not in self._api.definitions():
            note = f"the server hasn't imported workflow {name!r}: params unchecked, no version, no flow control"
        content = {
            "run_id": handle.run_id,
            "created": submitted.created,
            "same_params": submitted.same_params,
            "note": note,
        }
        return answer(content, 201 if submitted.created else 200, {"Location": f"runs/{handle.run_id}"})

    async def started(
        self, name: str, body: SubmitRequest, caller: Principal, header: str | None
    ) -> tuple[RunHandle[Any], Submission]:
        self._api.check_name(name)
        header = None if header is None else _as_utf8(header)
        key = header if body.idempotency_key is None else body.idempotency_key
        if header is not None and header != key:
            raise invalid("idempotency_key", "differs from the header Idempotency-Key")
        owner = self._api.owner(body.owner, caller)
        key = None if key is None else scoped(key, caller)
        try:
            if body.signal is None:
                handle = await self._client.submit(
                    name,
                    body.params,
                    idempotency_key=key,
                    owner=owner,
                    metadata=body.metadata,
                    priority=body.priority,
                )
            else:
                if key is None:
                    raise invalid("idempotency_key", "must be given with a signal: it says which run gets it")
                handle = await self._client.signal_with_start(
                    name,
                    body.params,
                    body.signal.signal,
                    body.signal.payload,
                    idempotency_key=key,
                    signal_id=body.signal.signal_id,
                    owner=owner,
                    metadata=body.metadata,
                    priority=body.priority,
                )
        except ParamsError:
            raise
        except ValueError as error:
            # the key of a policy failed for these params
            raise invalid("params", str(error)) from error
        assert handle.submitted is not None
        return handle, handle.submitted

    async def list_of_name(
        self,
        name: Name,
        caller: Caller,
        status: Annotated[list[str] | None, Query(description=_STATUSES)] = None,
        owner: str | None = None,
        since: datetime | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
        cursor: str | None = None,
    ) -> Response:
        self._api.check_name(name)
        return await self._page(name, caller, status, owner, since, limit, cursor)

    async def list_of_all(
        self,
        caller: Caller,
        name: Annotated[str | None, Query(min_length=1)] = None,
        status: Annotated[list[str] | None, Query(description=_STATUSES)] = None,
        owner: str | None = None,
        since: datetime | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
        cursor: str | None = None,
    ) -> Response:
        return await self._page(name, caller, status, owner, since, limit, cursor)

    async def _page(
        self,
        name: str | None,
        caller: Principal,
        status: list[str] | None,
        owner: str | None,
        since: datetime | None,
        limit: int,
        cursor: str | None,
    ) -> Response:
        if since is not None and since.tzinfo is None:
            raise invalid("since", "needs a time zone, as in 2026-01-31T12:00:00Z")
        try:
            page = await self._client.list(
                name=name,
                status=status or None,
                owner=self._api.owner_filter(owner, caller),
                since=since,
                limit=limit,
                cursor=cursor,
            )
        except ValueError as error:
            text = str(error)
            raise invalid("cursor" if text.startswith("cursor") else "status", text) from error
        return answer(page_of(page, caller))

    async def counts(self, caller: Caller, name: Annotated[str | None, Query(min_length=1)] = None) -> Response:
        counts = await self._client.counts(name)
        oldest = counts.oldest_queued
        return answer(
            {
                "by_status": {status.value: number for status, number in counts.by_status.items()},
                "oldest_queued_seconds": None if oldest is None else oldest.total_seconds(),
            }
        )

    async def detail(self, name: Name, run_id: RunIdPath, caller: Caller) -> Response:
        run = await self._api.run(name, run_id, caller)
        return answer(detail_of(await run.detail(), caller))

    async def events(self, name: Name, run_id: RunIdPath, caller: Caller) -> Response:
        run = await self._api.run(name, run_id, caller)
        return answer([event_of(event, caller) for event in await run.events()])

    async def result(
        self,
        request: Request,
        name: Name,
        run_id: RunIdPath,
        caller: Caller,
        timeout: Annotated[float, Query(ge=0, le=MAX_WAIT, allow_inf_nan=False)] = 30.0,
    ) -> Response:
        run = await self._api.run(name, run_id, caller)
        await while_connected(request.receive, self._api.closing, run.result(timeout=timeout))
        # as it is in the store: what the definition makes of it needn't have the same form in JSON
        found = await self._client.store.result(run_id)
        if found is None:
            # it was retried just now
            raise DurableInvocationTimeout(run_id, "", timeout)
        return answer({"value": Fragment(found.value)})

    async def history(
        self, name: Name, run_id: RunIdPath, caller: Caller, link: Annotated[int | None, Query(ge=1, le=10**8)] = None
    ) -> Response:
        run = await self._api.run(name, run_id, caller)
        return Response((await run.history(link=link)).to_json(), media_type="application/json")


def _as_utf8(header: str) -> str:
    """A header's bytes come as Latin-1, and are meant as UTF-8 where they are that."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def invalid(field: str, message: str) -> Refusal:
    return Refusal("InvalidRequest", f"{field}: {message}", errors=[(field, message)])
