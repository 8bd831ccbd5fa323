"""The route that tells why a run isn't running.

Rules: a gate may be shared by owners. Of the runs that hold its slots a caller is named only those that he may see; how
many they are is no secret. Which worker runs it is for trusted principals.
"""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.models import Explanation
from pyrula.http.named import Caller, Run
from pyrula.http.routing import Routes, errors
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import answer
from pyrula.workflows.client import RunExplanation, RunHandle
from pyrula.workflows.client.explain import explained
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["ExplainRoutes"]


class ExplainRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, router: APIRouter) -> None:
        route, why = "GET /{name}/runs/{run_id}/explain", "Why a run isn't running"
        Routes(router).add(route, self.explain, why, Role.READ, Explanation, others=errors(404))

    async def explain(self, run: Run, caller: Caller) -> Response:
        told = await run.explain()
        if caller.owner is not None and told.limit is not None:
            told = await self._without_others(run, told, caller)
        return answer(_shown(told, caller))

    async def _without_others(self, run: RunHandle[Any], told: RunExplanation, caller: Principal) -> RunExplanation:
        """The same of a moment later, made without the names of runs that the caller may not see."""
        store = self._api.client.store
        detail, outlook = await store.detail(run.run_id), await store.outlook(run.run_id)
        seen = [holder for holder in outlook.holders if await self._sees(holder, caller)]
        return explained(detail, replace(outlook, holders=tuple(seen)), told.served)

    async def _sees(self, run_id: str, caller: Principal) -> bool:
        try:
            return caller.sees((await self._api.client.origin("", run_id)).owner)
        except RunNotFoundError:
            return False


def _shown(told: RunExplanation, caller: Principal) -> dict[str, Any]:
    text, worker = told.text, told.worker
    if worker is not None and not caller.trusted:
        text, worker = text.replace(f" on worker {worker}", ""), None
    limit, rate = told.limit, told.rate
    return {
        "run_id": told.run_id,
        "workflow": told.workflow,
        "version": told.version,
        "status": told.status.value,
        "text": text,
        "since": None if told.since is None else told.since.isoformat(),
        "worker": worker,
        "waits": [wait._asdict() for wait in told.waits],
        "served": told.served,
        "limit": None if limit is None else limit._asdict(),
        "slots_used": told.slots_used,
        "slot_holders": list(told.slot_holders),
        "rate": None if rate is None else rate._asdict(),
        "next_start": None if told.next_start is None else told.next_start.isoformat(),
        "waits_at": told.waits_at,
        "before": told.before,
        "owners_before": told.owners_before,
    }
