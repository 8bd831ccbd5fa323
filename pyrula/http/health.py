"""/healthz, /readyz: whether this process works, and whether it should get requests.

Rules: neither asks for credentials, so neither says more than which part is how. `healthz` fails only for what a
restart would mend: a worker of this process that has ended. `readyz` fails while the store doesn't answer, while a
worker isn't healthy or degraded, and from the beginning of a shutdown on.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.routing import Routes, also
from pyrula.http.views import answer
from pyrula.workflows.errors import ConfigurationError, PyrulaError
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["HealthRoutes", "Watched"]

_STORE_SECONDS: Final = 2.0
_NO_RUN: Final = "00-00000000000000000000000000"
_WORKING: Final = ("healthy", "degraded")


class Watched(Protocol):
    """A worker of this process, as health sees it."""

    @property
    def ended(self) -> bool:
        """Whether it has ended, by an error or because it was stopped."""

    def state(self) -> str:
        """As KafkaWorker.health says."""


class Health(BaseModel):
    ok: bool
    parts: dict[str, str]


class HealthRoutes:
    def __init__(self, api: Api, watched: Callable[[], Watched | None]) -> None:
        self._api = api
        self._watched = watched

    def add_to(self, router: APIRouter) -> None:
        routes, not_so = Routes(router), also(503, "Not so", Health)
        routes.add("GET /healthz", self.healthz, "Whether this process works", None, Health, others=not_so)
        routes.add("GET /readyz", self.readyz, "Whether it should get requests", None, Health, others=not_so)

    async def healthz(self) -> Response:
        watched = self._watched()
        parts = {} if watched is None else {"worker": "ended" if watched.ended else "running"}
        return _said("ended" not in parts.values(), parts)

    async def readyz(self) -> Response:
        watched = self._watched()
        parts = {"store": await self._store()}
        if watched is not None:
            parts["worker"] = "ended" if watched.ended else watched.state()
        if self._api.closing.begun:
            parts["server"] = "stopping"
        return _said(all(state in _WORKING for state in parts.values()), parts)

    async def _store(self) -> str:
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                await self._api.client.origin("", _NO_RUN)
        except RunNotFoundError:
            return "healthy"
        except ConfigurationError:
            return "misconfigured"
        except (PyrulaError, TimeoutError):
            return "unreachable"
        return "healthy"


def _said(ok: bool, parts: dict[str, str]) -> Response:
    return answer({"ok": ok, "parts": parts}, 200 if ok else 503)
