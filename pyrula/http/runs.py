"""Routes of runs: starting them, looking at them, waiting for what becomes of them."""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from pyrula.http.api import Api, scoped
from pyrula.http.following import told
from pyrula.http.models import (
    AllRuns,
    Counts,
    EventRow,
    Page,
    RunDetail,
    RunsOfName,
    SubmitRequest,
    Submitted,
    Value,
)
from pyrula.http.named import Caller, IdempotencyKey, Name, Run, Timeout, Wait, one_key
from pyrula.http.pieces import Pieces
from pyrula.http.problems import invalid
from pyrula.http.routing import Routes, also, errors
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import answer, detail_of, event_of, page_of
from pyrula.workflows.backfills import Bound
from pyrula.workflows.client import RunHandle
from pyrula.workflows.codec import Fragment, dumps
from pyrula.workflows.errors import ConfigurationError, DurableInvocationTimeout
from pyrula.workflows.params import ParamsError
from pyrula.workflows.store.events import Event
from pyrula.workflows.store.history import History
from pyrula.workflows.store.runs import Submitted as Submission

__all__ = ["RunRoutes"]


class RunRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._client = api.client

    def add_to(self, router: APIRouter) -> None:
        routes, run, read = Routes(router), "/{name}/runs/{run_id}", Role.READ
        had = also(200, "The idempotency key had a run already", Submitted)
        begun = had | errors(404, 409, 429)
        routes.add("POST /{name}/runs", self.submit, "Start a run", Role.OPERATE, Submitted, status=201, others=begun)
        listed = "List runs of a workflow, the newest first"
        routes.add("GET /{name}/runs", self.list_of_name, listed, read, Page, others=errors(404))
        routes.add("GET /runs", self.list_of_all, "List runs, the newest first", read, Page)
        routes.add("GET /counts", self.counts, "Count runs by status", read, Counts, all_owners=True)
        whole = "A run's status and all else that can be told of it"
        routes.add(f"GET {run}", self.detail, whole, read, RunDetail, others=errors(404))
        past = "What happened to a run, oldest first"
        routes.add(f"GET {run}/events", self.events, past, read, list[EventRow], others=errors(404))
        end = "Wait for a run to finish"
        routes.add(f"GET {run}/result", self.result, end, read, Value, others=errors(202, 404, 409))
        journal = "A run's journal, as `pyrula replay` reads it"
        all_of_it: Any = dict[str, Any]
        routes.add(
            f"GET {run}/history", self.history, journal, Role.ADMIN, all_of_it, others=errors(404), all_owners=True
        )

    async def submit(
        self, name: Name, body: SubmitRequest, caller: Caller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        handle, submitted = await self.started(name, body, caller, idempotency_key)
        note = self._api.note_on(name)
        if not submitted.same_params:
            note = "the idempotency key had this run already, started with other params"
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
        key = one_key(body.idempotency_key, header, "idempotency_key")
        owner = self._api.owner(body.owner, caller)
        key = None if key is None else scoped(key, owner)
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

    async def list_of_name(self, name: Name, asked: Annotated[RunsOfName, Query()], caller: Caller) -> Response:
        self._api.check_name(name)
        return await self._page(name, asked, caller)

    async def list_of_all(self, asked: Annotated[AllRuns, Query()], caller: Caller) -> Response:
        return await self._page(asked.name, asked, caller)

    async def _page(self, name: str | None, asked: RunsOfName, caller: Principal) -> Response:
        owner, since = self._api.owner_filter(asked.owner, caller), _since(asked.since)
        try:
            page = await self._client.list(
                name=name, status=asked.status or None, owner=owner, since=since, limit=asked.limit, cursor=asked.cursor
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

    async def detail(self, run: Run, caller: Caller) -> Response:
        return answer(detail_of(await run.detail(), caller))

    async def events(self, run: Run, caller: Caller) -> Response:
        pages = told(self._client, run.name, run.run_id)
        # while there is still a status to say what is wrong
        first = await anext(pages)
        return _Rows(_array(first, pages, caller), self._api.closing)

    async def result(self, run: Run, wait: Wait, timeout: Timeout = 30.0) -> Response:
        await wait(run.result(timeout=timeout))
        # as it is in the store: what the definition makes of it needn't have the same form in JSON
        found = await self._client.store.result(run.run_id)
        if found is None:
            # it was retried just now
            raise DurableInvocationTimeout(run.run_id, "", timeout)
        return answer({"value": Fragment(found.value)})

    async def history(self, run: Run, link: Annotated[int | None, Query(ge=1, le=10**8)] = None) -> Response:
        return _Rows(_encoded(await run.history(link=link)), self._api.closing)


class _Rows(Pieces):
    media_type = "application/json"


async def _array(
    first: list[Event], pages: AsyncGenerator[list[Event], None], caller: Principal
) -> AsyncGenerator[bytes, None]:
    """A list in JSON. Cut short it is no JSON, so that nobody takes it for the whole."""
    page: list[Event] | None = first
    before = b"["
    try:
        while page is not None:
            if page:
                yield before + b",".join(dumps(event_of(event, caller)) for event in page)
                before = b","
            page = await anext(pages, None)
    finally:
        await pages.aclose()
    yield b"]" if before == b"," else b"[]"


async def _encoded(history: History) -> AsyncGenerator[bytes, None]:
    for piece in history.pieces():
        yield piece.encode()


def _since(text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    try:
        bound = Bound.parse(text, "since")
        if bound.kind == "ago":
            return timedelta(seconds=bound.value)
        if bound.kind == "time":
            return datetime.fromisoformat(text.strip())
    except ConfigurationError:
        pass
    raise invalid("since", 'needs a time with its zone, as 2026-01-31T12:00:00Z, or how long ago, as "24h" or "7d"')
