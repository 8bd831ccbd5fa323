"""Routes of events: what feeds the Collect or Debounce of a workflow, and what is gathered there.

Rules: events of different owners share no batch, and the ids of events are each owner's own. So a tenant is told of a
run only if its batch was gathered from that tenant's events.
"""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.models import OpenBatch, Triggered, TriggerRequest
from pyrula.http.named import Caller, IdempotencyKey, Name, one_key
from pyrula.http.problems import Refusal, invalid
from pyrula.http.routing import Routes, errors
from pyrula.http.tokens import Role
from pyrula.http.views import answer, batch_of
from pyrula.workflows.batching import triggered
from pyrula.workflows.errors import ConfigurationError

__all__ = ["TriggerRoutes"]


class TriggerRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, router: APIRouter) -> None:
        routes = Routes(router)
        fed = "Feed a trigger: the run of the batch that this event completes, or null"
        may_be: Any = Triggered | None
        routes.add("POST /{name}/events", self.trigger, fed, Role.OPERATE, may_be, others=errors(404, 429))
        waiting = "The batches of a trigger that are open, and when each is due"
        routes.add("GET /{name}/events", self.buffered, waiting, Role.READ, list[OpenBatch], others=errors(404))

    async def buffered(self, name: Name, caller: Caller) -> Response:
        self._api.check_name(name)
        found = [each for each in await self._api.client.buffered(name) if caller.sees(each.owner)]
        return answer([batch_of(each) for each in found])

    async def trigger(
        self, name: Name, body: TriggerRequest, caller: Caller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        self._api.check_name(name)
        try:
            definition = triggered(name)
        except ConfigurationError as error:
            raise Refusal("NotFound", str(error)) from error
        owner = self._api.owner(body.owner, caller)
        event_id = one_key(body.event_id, idempotency_key, "event_id")
        try:
            run = await self._api.client.trigger(definition, body.event, event_id=event_id, owner=owner)
        except ValueError as error:
            raise invalid("event", str(error)) from error
        return answer(None if run is None else {"run_id": run.run_id})
