"""Routes of schedules. Those of a caller who has an owner are under ids of that owner's own (see api.py)."""

from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.responses import Response

from pyrula.http.api import Api, scoped, unscoped
from pyrula.http.models import CronTrigger, NewSchedule, RunId, ScheduleRow
from pyrula.http.routing import Caller, errors, needs
from pyrula.http.runs import invalid
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import answer, schedule_of
from pyrula.workflows.client import ScheduleInfo
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.schedules import Cron, Every, Trigger

__all__ = ["ScheduleRoutes"]

ScheduleId = Annotated[str, Path(description="a schedule's id")]

TAKEN: Final = "runs"
"""No schedule has this id over HTTP: GET /schedules/runs lists the runs of a workflow called schedules."""


class ScheduleRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._schedules = api.client.schedules

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route(
            "/schedules",
            self.list_all,
            methods=["GET"],
            summary="List schedules",
            response_model=list[ScheduleRow],
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/schedules/{schedule_id}",
            self.get,
            methods=["GET"],
            summary="A schedule",
            response_model=ScheduleRow,
            responses=errors(404),
            openapi_extra=needs(Role.READ),
        )
        router.add_api_route(
            "/schedules/{schedule_id}",
            self.put,
            methods=["PUT"],
            summary="Start a workflow by the clock; replaces the schedule of this id",
            response_model=ScheduleRow,
            responses=errors(404),
            openapi_extra=needs(Role.ADMIN),
        )
        router.add_api_route(
            "/schedules/{schedule_id}",
            self.delete,
            methods=["DELETE"],
            summary="Delete a schedule; its runs go on",
            status_code=204,
            responses=errors(404),
            openapi_extra=needs(Role.ADMIN),
        )
        router.add_api_route(
            "/schedules/{schedule_id}/pause",
            self.pause,
            methods=["POST"],
            summary="Fire no more until unpause",
            response_model=ScheduleRow,
            responses=errors(404),
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/schedules/{schedule_id}/unpause",
            self.unpause,
            methods=["POST"],
            summary="Fire again from now on",
            response_model=ScheduleRow,
            responses=errors(404),
            openapi_extra=needs(Role.OPERATE),
        )
        router.add_api_route(
            "/schedules/{schedule_id}/trigger",
            self.trigger,
            methods=["POST"],
            summary="Start one run now; the fire times stay as they are",
            status_code=201,
            response_model=RunId,
            responses=errors(404, 429),
            openapi_extra=needs(Role.OPERATE),
        )

    async def list_all(self, caller: Caller) -> Response:
        found = [each for each in await self._schedules.list() if caller.sees(each.owner)]
        return answer([_shown(each, caller) for each in found])

    async def get(self, schedule_id: ScheduleId, caller: Caller) -> Response:
        return answer(_shown(await self._api.schedule(schedule_id, caller), caller))

    async def put(self, schedule_id: ScheduleId, body: NewSchedule, caller: Caller) -> Response:
        self._api.check_name(body.workflow)
        if schedule_id == TAKEN:
            raise invalid("schedule_id", f"can't be {TAKEN!r}")
        made = await self._schedules.create(
            scoped(schedule_id, caller),
            body.workflow,
            body.params,
            trigger=_trigger(body),
            catch_up=body.catch_up,
            window=body.window,
            overlap=body.overlap,
            owner=self._api.owner(body.owner, caller),
            metadata=body.metadata,
            paused=body.paused,
        )
        return answer(_shown(made, caller))

    async def delete(self, schedule_id: ScheduleId, caller: Caller) -> Response:
        found = await self._api.schedule(schedule_id, caller)
        await self._schedules.delete(found.id)
        return Response(status_code=204)

    async def pause(self, schedule_id: ScheduleId, caller: Caller) -> Response:
        found = await self._api.schedule(schedule_id, caller)
        await self._schedules.pause(found.id)
        return answer(_shown(await self._schedules.get(found.id), caller))

    async def unpause(self, schedule_id: ScheduleId, caller: Caller) -> Response:
        found = await self._api.schedule(schedule_id, caller)
        await self._schedules.unpause(found.id)
        return answer(_shown(await self._schedules.get(found.id), caller))

    async def trigger(self, schedule_id: ScheduleId, caller: Caller) -> Response:
        found = await self._api.schedule(schedule_id, caller)
        run = await self._schedules.trigger_now(found.id)
        return answer({"run_id": run.run_id}, 201)


def _shown(schedule: ScheduleInfo, caller: Principal) -> dict[str, object]:
    return schedule_of(schedule, unscoped(schedule.id, caller))


def _trigger(body: NewSchedule) -> Trigger:
    asked = body.trigger
    try:
        if isinstance(asked, CronTrigger):
            return Cron(asked.cron, tz=asked.tz)
        return Every(asked.every)
    except ConfigurationError as error:
        raise invalid("trigger", str(error)) from error
