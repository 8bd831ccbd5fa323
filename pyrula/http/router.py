"""`workflow_router`: the routes of runs and schedules, for an app of one's own."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer

from pyrula.http.access import Access, Authenticate
from pyrula.http.api import Api
from pyrula.http.backfills import BackfillRoutes
from pyrula.http.bodies import MAX_BODY
from pyrula.http.explaining import ExplainRoutes
from pyrula.http.routing import make_router
from pyrula.http.runs import RunRoutes
from pyrula.http.schedules import ScheduleRoutes
from pyrula.http.streams import StreamRoutes
from pyrula.http.talking import add_talking
from pyrula.http.tokens import Tokens
from pyrula.http.triggers import TriggerRoutes
from pyrula.http.waiting import Closing
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.definition import WorkflowDefinition

__all__ = ["bare_router", "run_routes", "workflow_router"]


def workflow_router(
    client: WorkflowClient,
    *,
    tokens: Tokens | None = None,
    authenticate: Authenticate | None = None,
    allow_anonymous: bool = False,
    allowed_hosts: Iterable[str] | None = None,
    workflows: Sequence[WorkflowDefinition[Any, Any]] | None = None,
    max_body: int = MAX_BODY,
) -> APIRouter:
    """Everything that the client can do, as routes to include: `app.include_router(workflow_router(client))`.

    `tokens` or `authenticate` say who may do what. With neither, only requests on a loopback address under a loopback
    name are answered, unless `allow_anonymous`. `workflows` are the only ones that this API has; None: any name.
    `max_body` is in bytes. ConfigurationError for what contradicts itself.
    """
    access = Access(
        tokens=tokens, authenticate=authenticate, allow_anonymous=allow_anonymous, allowed_hosts=allowed_hosts
    )
    api = Api(client, workflows, Closing())
    router = bare_router(access, api, max_body)
    run_routes(router, api)
    return router


def bare_router(access: Access, api: Api, max_body: int) -> APIRouter:
    """Without routes yet."""
    bearer = HTTPBearer(scheme_name="bearer", auto_error=False, description="made by `pyrula token`, or a JWT")
    return make_router(access, api, max_body=max_body, dependencies=[Depends(bearer)] if access.authenticated else ())


def run_routes(router: APIRouter, api: Api, *, on_stream: Callable[[int], None] | None = None) -> None:
    runs = RunRoutes(api)
    runs.add_to(router)
    add_talking(router)
    TriggerRoutes(api).add_to(router)
    ExplainRoutes(api).add_to(router)
    StreamRoutes(api, runs, on_open=on_stream).add_to(router)
    ScheduleRoutes(api).add_to(router)
    BackfillRoutes(api).add_to(router)
