"""Server-sent events: a run's events as they happen, and its end; resumed by Last-Event-ID without gap or repeat.

Rules: an event's id is the position behind it. The last event, `end`, has the run's status with its value or error; a
client that comes back after it gets 204, which tells an EventSource to stop. The stream holds nothing but memory: it
ends when its reader leaves or his token is taken back, and its run goes on. A comment goes out when nothing else does,
so that proxies keep it.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from time import monotonic
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.following import Ended, Happened, Position, follow
from pyrula.http.models import SubmitRequest
from pyrula.http.named import Caller, Holds, IdempotencyKey, Name, Run
from pyrula.http.pieces import Pieces
from pyrula.http.problems import invalid
from pyrula.http.routing import Routes, also, errors
from pyrula.http.runs import RunRoutes
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import event_of
from pyrula.workflows.codec import Fragment, dumps
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.payloads import read_failure

__all__ = ["StreamRoutes"]

MEDIA_TYPE: Final = "text/event-stream"
_KEEP_ALIVE_SECONDS: Final = 15.0
_HOLDS_SECONDS: Final = 1.0
"""Between looks at whether the reader's token still holds: a stream may last as long as its run."""
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
        routes = Routes(router)
        routes.add(
            "GET /{name}/stream/{run_id}",
            self.follow,
            "Follow a run",
            Role.READ,
            others={200: _STREAM, **also(204, "The run has ended and all was told"), **errors(404)},
            response_class=_Streamed,
        )
        routes.add(
            "POST /{name}/stream",
            self.submit,
            "Start a run and follow it",
            Role.OPERATE,
            status=201,
            others={200: _STREAM, 201: _STREAM, **errors(404, 409, 429)},
            response_class=_Streamed,
        )

    async def follow(
        self,
        run: Run,
        caller: Caller,
        holds: Holds,
        last_event_id: Annotated[str | None, Header(description="an event's id: go on behind it")] = None,
        after: Annotated[str | None, Query(description="the same, for who can't set headers")] = None,
    ) -> Response:
        told = last_event_id or after
        position = Position(RunId.parse(run.run_id).link) if told is None else Position.parse(told)
        if position is None:
            raise invalid("last-event-id" if last_event_id else "after", "is no id of an event of this stream")
        items = follow(self._api.client, run.name, run.run_id, position)
        if position.ended and await anext(items, _OVER) is _OVER:
            return Response(status_code=204)
        if position.ended:
            # it was retried; what was just read is read again
            await items.aclose()
            items = follow(self._api.client, run.name, run.run_id, position)
        return self._stream(items, caller, holds)

    async def submit(
        self,
        name: Name,
        body: SubmitRequest,
        caller: Caller,
        holds: Holds,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        run, submitted = await self._runs.started(name, body, caller, idempotency_key)
        items = follow(self._api.client, name, run.run_id, Position(1))
        status = 201 if submitted.created else 200
        return self._stream(items, caller, holds, status, {"Location": f"stream/{run.run_id}"})

    def _stream(
        self,
        items: _Items,
        caller: Principal,
        holds: Callable[[], bool],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        unbuffered = {"X-Accel-Buffering": "no", **(headers or {})}
        return _Streamed(_lines(items, caller, holds), self._api.closing, status, unbuffered, self._on_open)


class _Streamed(Pieces):
    media_type = MEDIA_TYPE


async def _lines(items: _Items, caller: Principal, holds: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    yield b"retry: %d\n\n" % _RETRY_MILLISECONDS
    said = asked = monotonic()
    try:
        async for item in items:
            if monotonic() - asked >= _HOLDS_SECONDS:
                if not holds():
                    return
                asked = monotonic()
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
