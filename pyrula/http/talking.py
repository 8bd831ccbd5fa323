"""Routes that talk to a run: signals, queries, updates, answers to interrupts; cancel, pause, unpause, retry."""

import secrets

from fastapi import APIRouter
from starlette.responses import Response

from pyrula.http.models import (
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
from pyrula.http.named import IdempotencyKey, Run, Timeout, Wait, one_key
from pyrula.http.routing import Routes, also, errors
from pyrula.http.tokens import Role
from pyrula.http.views import answer
from pyrula.workflows.client import RunHandle
from pyrula.workflows.codec import Fragment, encode_message
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus

__all__ = ["add_talking"]


def add_talking(router: APIRouter) -> None:
    routes, run = Routes(router), "/{name}/runs/{run_id}"
    told, moved = errors(404, 409, 429), errors(404, 409)
    operate = Role.OPERATE
    kept = "Wake ctx.wait_for_signal, or be kept until the body waits"
    routes.add(f"POST {run}/signal", signal, kept, operate, RunId, status=202, others=told)
    read = "Read state through ctx.on_query; writes nothing"
    routes.add(f"POST {run}/query", query, read, Role.READ, Value, others=errors(404, 504))
    applied = "Apply ctx.on_update and return its value"
    routes.add(f"POST {run}/update", update, applied, operate, Updated, others=told | errors(504))
    routes.add(f"POST {run}/resume", resume, "Answer ctx.interrupt", operate, RunId, status=202, others=told)
    late = also(202, "Asked for; the body is still at it", RunState)
    stop = "Stop a run at its next step"
    routes.add("DELETE /{name}/stream/{run_id}", cancel, stop, operate, RunState, others=late | errors(404))
    late = also(202, "Asked for; a step is still at it", RunState)
    halt = "Stop a run before its next operation, until unpause"
    routes.add(f"POST {run}/pause", pause, halt, operate, RunState, others=late | moved)
    routes.add(f"POST {run}/unpause", unpause, "Let a paused run go on", operate, RunState, others=moved)
    again = "Run a failed or cancelled run again; steps that succeeded keep their results"
    routes.add(f"POST {run}/retry", retry, again, operate, RunState, others=moved)


async def signal(run: Run, body: SignalRequest, idempotency_key: IdempotencyKey = None) -> Response:
    await run.signal(body.signal, body.payload, signal_id=one_key(body.signal_id, idempotency_key, "signal_id"))
    return answer({"run_id": run.run_id}, 202)


async def query(run: Run, body: QueryRequest, wait: Wait) -> Response:
    return answer({"value": _as_json(await wait(run.query(body.query, *body.args, **body.kwargs)))})


async def update(run: Run, body: UpdateRequest, wait: Wait, idempotency_key: IdempotencyKey = None) -> Response:
    update_id = one_key(body.update_id, idempotency_key, "update_id") or secrets.token_hex(16)
    value = await wait(run.update(body.update, body.payload, update_id=update_id, timeout=body.timeout))
    return answer({"update_id": update_id, "value": _as_json(value)})


async def resume(run: Run, body: ResumeRequest) -> Response:
    await run.resume(body.action, body.value, wait_id=body.wait_id)
    return answer({"run_id": run.run_id}, 202)


async def cancel(run: Run, wait: Wait, timeout: Timeout = 10.0) -> Response:
    status = await wait(run.cancel(timeout))
    return _state(run, status, 200 if status in TERMINAL else 202)


async def pause(run: Run, wait: Wait, body: PauseRequest | None = None) -> Response:
    asked = body or PauseRequest()
    status = await wait(run.pause(asked.reason, timeout=asked.timeout))
    return _state(run, status, 200 if status in TERMINAL or status is RunStatus.PAUSED else 202)


async def unpause(run: Run) -> Response:
    return _state(run, await run.unpause(), 200)


async def retry(run: Run) -> Response:
    return _state(run, await run.retry(), 200)


def _state(run: RunHandle[object], status: RunStatus, code: int) -> Response:
    return answer({"run_id": run.run_id, "status": status.value}, code)


def _as_json(value: object) -> Fragment:
    return Fragment(encode_message(value, "the answer"))
