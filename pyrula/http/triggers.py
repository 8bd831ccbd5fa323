"""The route of events: what feeds the Collect or Debounce of a workflow.

Rules: events of different owners share no batch, and the ids of events are each owner's own. So a tenant is told of a
run only if its batch was gathered from that tenant's events.
"""

from fastapi import APIRouter
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.models import Triggered, TriggerRequest
from pyrula.http.problems import Refusal
from pyrula.http.routing import Caller, errors, needs
from pyrula.http.runs import Name, invalid
from pyrula.http.tokens import Role
from pyrula.http.views import answer
from pyrula.workflows.batching import triggered
from pyrula.workflows.errors import ConfigurationError

__all__ = ["TriggerRoutes"]


class TriggerRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route(
            "/{name}/events",
            self.trigger,
            methods=["POST"],
            summary="Feed a trigger: the run of the batch that this event completes, or null",
            response_model=Triggered | None,
            responses=errors(404, 429),
            openapi_extra=needs(Role.OPERATE),
        )

    async def trigger(self, name: Name, body: TriggerRequest, caller: Caller) -> Response:
        self._api.check_name(name)
        try:
            definition = triggered(name)
        except ConfigurationError as error:
            raise Refusal("NotFound", str(error)) from error
        owner = self._api.owner(body.owner, caller)
        try:
            run = await self._api.client.trigger(definition, body.event, event_id=body.event_id, owner=owner)
        except ValueError as error:
            raise invalid("event", str(error)) from error
        return answer(None if run is None else {"run_id": run.run_id})
