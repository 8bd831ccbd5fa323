"""`create_app`: the API as an app that is ready to run, with health, metrics, bindings and safe headers.

Rules: no page of another site may read what it answers (no CORS headers), nothing is kept by caches, and no error page
shows what is inside.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyrula import __version__
from pyrula.http.access import Access, Authenticate
from pyrula.http.api import Api
from pyrula.http.bodies import MAX_BODY
from pyrula.http.fleet import FleetRoutes
from pyrula.http.health import HealthRoutes, Watched
from pyrula.http.metrics import Measured, Meters, MetricRoutes
from pyrula.http.openapi import describe_workflows
from pyrula.http.problems import problem_of
from pyrula.http.router import bare_router, run_routes
from pyrula.http.routing import Routes
from pyrula.http.tokens import Role, Tokens
from pyrula.http.waiting import Closing
from pyrula.kafka import KafkaWorker
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.worker import WorkflowWorker

__all__ = ["HttpApp", "create_app"]

log = logging.getLogger("pyrula.http")

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class HttpApp(FastAPI):
    """The app, and what its server and its host process tell it."""

    access: Access
    closing: Closing
    worker: KafkaWorker | WorkflowWorker | None = None
    """The worker that runs in this process, for /bindings, /worker and /metrics."""
    watched: Watched | None = None
    """The same, for /healthz and /readyz."""


def create_app(
    client: WorkflowClient,
    *,
    tokens: Tokens | None = None,
    authenticate: Authenticate | None = None,
    allow_anonymous: bool = False,
    allowed_hosts: Iterable[str] | None = None,
    workflows: Sequence[WorkflowDefinition[Any, Any]] | None = None,
    max_body: int = MAX_BODY,
) -> HttpApp:
    """The API as an app of its own; the arguments are those of `workflow_router`. `pyrula.http.serve` runs it.

    The client's store is opened when it is first used and stays open: it belongs to who made the client.
    """
    access = Access(
        tokens=tokens, authenticate=authenticate, allow_anonymous=allow_anonymous, allowed_hosts=allowed_hosts
    )
    closing, meters = Closing(), Meters()
    api = Api(client, workflows, closing)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        closing.begin()

    app = HttpApp(
        title="Pyrula",
        version=__version__,
        description="Starting runs of workflows and talking to them.",
        # its pages would load scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.access, app.closing = access, closing
    router = bare_router(access, api, max_body)
    run_routes(router, api, on_stream=meters.streams.inc)
    FleetRoutes(lambda: app.worker).add_to(router)
    HealthRoutes(api, lambda: app.watched).add_to(router)
    MetricRoutes(api, meters, lambda: app.worker).add_to(router)

    async def openapi() -> Response:
        return JSONResponse(app.openapi())

    Routes(router).add("GET /openapi.json", openapi, "This document", Role.READ, shown=False)
    app.include_router(router)
    describe_workflows(app, definitions=api.definitions)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(Exception, _unrouted)
    app.add_middleware(_Headers)
    app.add_middleware(Measured, meters=meters)
    return app


async def _unrouted(request: Request, error: Exception) -> Response:
    """What no route of ours has caught: an unknown path, a method that a path doesn't have."""
    return problem_of(error, route="no route")


class _Headers:
    """Puts the app's headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, adding if scope["type"] == "http" else send)
