"""Routes that talk to a run: signals, queries, updates, answers to interrupts; cancel, pause, unpause, retry."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.models import (
    MAX_WAIT,
    PauseRequest,
    QueryRequest,
    ResumeRequest,
    RunId,
    RunState,
    SignalRequest,
    Updated,
    UpdateRequest,
    Value,
)
from pyrula.http.routing import Caller, also, errors, needs
from pyrula.http.runs import Name, RunIdPath
from pyrula.http.tokens import Role
from pyrula.http.views import answer
from pyrula.http.waiting import while_connected
from pyrula.workflows.client import RunHandle
from pyrula.workflows.codec import Fragment, encode_message
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus

__all__ = ["TalkRoutes"]


class TalkRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route(
            "/{name}/runs/{run_id}/signal",
            self.signal,
            methods=["POST"],
            summary="Wake ctx.wait_for_signal, or be kept until the body waits",
            status_code=202,
            response_model=RunId,
            responses=errors(404, 409, 429),
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/query",
            self.query,
            methods=["POST"],
            summary="Read state through ctx.on_query; writes nothing",
            response_model=Value,
            responses=errors(404, 504),
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/update",
            self.update,
            methods=["POST"],
            summary="Apply ctx.on_update and return its value",
            response_model=Updated,
            responses=errors(404, 409, 429, 504),
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/resume",
            self.resume,
            methods=["POST"],
            summary="Answer ctx.interrupt",
            status_code=202,
            response_model=RunId,
            responses=errors(404, 409, 429),
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/stream/{run_id}",
            self.cancel,
            methods=["DELETE"],
            summary="Stop a run at its next step",
            response_model=RunState,
            responses={**also(202, "Asked for; the body is still at it", RunState), **errors(404)},
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/pause",
            self.pause,
            methods=["POST"],
            summary="Stop a run before its next operation, until unpause",
            response_model=RunState,
            responses={**also(202, "Asked for; a step is still at it", RunState), **errors(404, 409)},
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/unpause",
            self.unpause,
            methods=["POST"],
            summary="Let a paused run go on",
            response_model=RunState,
            responses=errors(404, 409),
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/{name}/runs/{run_id}/retry",
            self.retry,
            methods=["POST"],
            summary="Run a failed or cancelled run again; steps that succeeded keep their results",
            response_model=RunState,
            responses=errors(404, 409),
            openapi_extra=needs(Role.OPERATE),
        )

    async def signal(self, name: Name, run_id: RunIdPath, body: SignalRequest, caller: Caller) -> Response:
        run = await self._api.run(name, run_id, caller)
        await run.signal(body.signal, body.payload, signal_id=body.signal_id)
        return answer({"run_id": run.run_id}, 202)

    async def query(
        self, request: Request, name: Name, run_id: RunIdPath, body: QueryRequest, caller: Caller
    ) -> Response:
        run = await self._api.run(name, run_id, caller)
        work = run.query(body.query, *body.args, **body.kwargs)
        value = await while_connected(request.receive, self._api.closing, work)
        return answer({"value": _as_json(value)})

    async def update(
        self, request: Request, name: Name, run_id: RunIdPath, body: UpdateRequest, caller: Caller
    ) -> Response:
        run = await self._api.run(name, run_id, caller)
        update_id = body.update_id or secrets.token_hex(16)
        work = run.update(body.update, body.payload, update_id=update_id, timeout=body.timeout)
        value = await while_connected(request.receive, self._api.closing, work)
        return answer({"update_id": update_id, "value": _as_json(value)})

    async def resume(self, name: Name, run_id: RunIdPath, body: ResumeRequest, caller: Caller) -> Response:
        run = await self._api.run(name, run_id, caller)
        await run.resume(body.action, body.value, wait_id=body.wait_id)
        return answer({"run_id": run.run_id}, 202)

    async def cancel(
        self,
        request: Request,
        name: Name,
        run_id: RunIdPath,
        caller: Caller,
        timeout: Annotated[float, Query(ge=0, le=MAX_WAIT, allow_inf_nan=False)] = 10.0,
    ) -> Response:
        run = await self._api.run(name, run_id, caller)
        status = await while_connected(request.receive, self._api.closing, run.cancel(timeout))
        return _state(run, status, 200 if status in TERMINAL else 202)

    async def pause(
        self, request: Request, name: Name, run_id: RunIdPath, caller: Caller, body: PauseRequest | None = None
    ) -> Response:
        asked = body or PauseRequest()
        run = await self._api.run(name, run_id, caller)
        work = run.pause(asked.reason, timeout=asked.timeout)
        status = await while_connected(request.receive, self._api.closing, work)
        return _state(run, status, 200 if status in TERMINAL or status is RunStatus.PAUSED else 202)

    async def unpause(self, name: Name, run_id: RunIdPath, caller: Caller) -> Response:
        run = await self._api.run(name, run_id, caller)
        return _state(run, await run.unpause(), 200)

    async def retry(self, name: Name, run_id: RunIdPath, caller: Caller) -> Response:
        run = await self._api.run(name, run_id, caller)
        return _state(run, await run.retry(), 200)


def _state(run: RunHandle[object], status: RunStatus, code: int) -> Response:
    return answer({"run_id": run.run_id, "status": status.value}, code)


def _as_json(value: object) -> Fragment:
    return Fragment(encode_message(value, "the answer"))
