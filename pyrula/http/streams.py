"""Server-sent events: a run's events as they happen, and its end; resumed by Last-Event-ID without gap or repeat.

Rules: an event's id is the position behind it. The last event, `end`, has the run's status with its value or error; a
client that comes back after it gets 204, which tells an EventSource to stop. The stream holds nothing but memory: it
ends when its reader leaves, and its run goes on. A comment goes out when nothing else does, so that proxies keep it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from time import monotonic
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Header, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pyrula.http.api import Api
from pyrula.http.following import Ended, Happened, Position, follow
from pyrula.http.models import SubmitRequest
from pyrula.http.routing import Caller, also, errors, needs
from pyrula.http.runs import IdempotencyKey, Name, RunIdPath, RunRoutes, invalid
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import event_of
from pyrula.http.waiting import Closing, gone
from pyrula.workflows.codec import Fragment, dumps
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.payloads import read_failure

__all__ = ["StreamRoutes"]

log = logging.getLogger("pyrula.http")

MEDIA_TYPE: Final = "text/event-stream"
_KEEP_ALIVE_SECONDS: Final = 15.0
_RETRY_MILLISECONDS: Final = 1000
_OVER: Final = object()
_Items: TypeAlias = AsyncGenerator[Happened | Ended | None, None]
_FIELDS: Final = {name: {"type": "string"} for name in ("id", "event", "data")}
_STREAM: Final[dict[str, Any]] = {
    "description": "Server-sent events",
    "content": {MEDIA_TYPE: {"schema": {"type": "object", "properties": _FIELDS}}},
}


class StreamRoutes:
    def __init__(self, api: Api, runs: RunRoutes, *, on_open: Callable[[int], None] | None) -> None:
        self._api = api
        self._runs = runs
        self._on_open = on_open or (lambda _: None)

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route(
            "/{name}/stream/{run_id}",
            self.follow,
            methods=["GET"],
            summary="Follow a run",
            response_class=_Streamed,
            responses={200: _STREAM, **also(204, "The run has ended and all was told"), **errors(404)},
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/{name}/stream",
            self.submit,
            methods=["POST"],
            summary="Start a run and follow it",
            status_code=201,
            response_class=_Streamed,
            responses={201: _STREAM, 200: _STREAM, **errors(404, 409, 429)},
            openapi_extra=needs(Role.OPERATE),
        )

    async def follow(
        self,
        name: Name,
        run_id: RunIdPath,
        caller: Caller,
        last_event_id: Annotated[str | None, Header(description="an event's id: go on behind it")] = None,
        after: Annotated[str | None, Query(description="the same, for who can't set headers")] = None,
    ) -> Response:
        told = last_event_id or after
        position = Position(RunId.parse(run_id).link) if told is None else Position.parse(told)
        if position is None:
            raise invalid("last-event-id" if last_event_id else "after", "is no id of an event of this stream")
        await self._api.run(name, run_id, caller)
        items = follow(self._api.client, name, run_id, position)
        if position.ended and await anext(items, _OVER) is _OVER:
            return Response(status_code=204)
        if position.ended:
            # it was retried; what was just read is read again
            await items.aclose()
            items = follow(self._api.client, name, run_id, position)
        return self._stream(items, caller)

    async def submit(
        self, name: Name, body: SubmitRequest, caller: Caller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        run, submitted = await self._runs.started(name, body, caller, idempotency_key)
        items = follow(self._api.client, name, run.run_id, Position(1))
        status = 201 if submitted.created else 200
        return self._stream(items, caller, status, {"Location": f"stream/{run.run_id}"})

    def _stream(
        self,
        items: _Items,
        caller: Principal,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        return _EventStream(_lines(items, caller), self._api.closing, self._on_open, status, headers or {})


class _Streamed(Response):
    media_type = MEDIA_TYPE


class _EventStream(_Streamed):
    """Sends lines until there are no more, the reader leaves, or the server shuts down."""

    def __init__(
        self,
        lines: AsyncGenerator[bytes, None],
        closing: Closing,
        on_open: Callable[[int], None],
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(status_code=status, headers={"X-Accel-Buffering": "no", **headers})
        # the body's length isn't known
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._lines = lines
        self._closing = closing
        self._on_open = on_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._on_open(1)
        tasks = [asyncio.ensure_future(work) for work in (self._send(send), gone(receive), self._closing.wait())]
        sending, leaving, _ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._on_open(-1)
        if not leaving.done() or leaving.cancelled():
            with contextlib.suppress(asyncio.CancelledError):
                sending.result()
            await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for line in self._lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        finally:
            await self._lines.aclose()


async def _lines(items: _Items, caller: Principal) -> AsyncGenerator[bytes, None]:
    yield b"retry: %d\n\n" % _RETRY_MILLISECONDS
    said = monotonic()
    try:
        async for item in items:
            if item is None:
                if monotonic() - said < _KEEP_ALIVE_SECONDS:
                    continue
                yield b":\n\n"
            elif isinstance(item, Happened):
                shown = event_of(item.event, caller)
                yield _written(item.position, shown.pop("type"), {"run_id": item.run_id, **shown})
            else:
                yield _written(item.position, "end", _end(item, caller))
            said = monotonic()
    except PyrulaError as error:
        # too late for a status: the client comes back, and hears of it then
        log.warning("a stream is cut: %s", error)
    finally:
        await items.aclose()


def _written(position: Position, kind: str, content: dict[str, Any]) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (str(position).encode(), kind.encode(), dumps(content))


def _end(ended: Ended, caller: Principal) -> dict[str, Any]:
    result = ended.result
    failure = None if result.error is None else read_failure(result.error)._asdict()
    if failure is not None and not caller.trusted:
        failure.pop("trace")
    return {
        "run_id": result.run_id,
        "status": result.status.value,
        "value": Fragment(result.value),
        "error": failure,
    }
