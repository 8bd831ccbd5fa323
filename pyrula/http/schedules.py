"""Routes of schedules. Those of a caller who has an owner are under ids of that owner's own (see api.py)."""

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from pyrula.http.api import Api, scoped, unscoped
from pyrula.http.models import MadeSchedule, NewSchedule, NewTrigger, RunId, ScheduleRow
from pyrula.http.named import Caller, Schedule, ScheduleId
from pyrula.http.problems import invalid
from pyrula.http.routing import Routes, errors
from pyrula.http.tokens import Principal, Role
from pyrula.http.views import answer, schedule_of
from pyrula.workflows.client import ScheduleInfo
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.schedules import Cron, Every, Trigger

__all__ = ["ScheduleRoutes"]

TAKEN: Final = "runs"
"""No schedule has this id over HTTP: GET /schedules/runs lists the runs of a workflow called schedules."""


class ScheduleRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._schedules = api.client.schedules

    def add_to(self, router: APIRouter) -> None:
        routes, one = Routes(router), "/schedules/{schedule_id}"
        row, unknown = ScheduleRow, errors(404)
        routes.add("GET /schedules", self.list_all, "List schedules", Role.READ, list[ScheduleRow])
        routes.add(f"GET {one}", self.get, "A schedule", Role.READ, row, others=unknown)
        made = "Start a workflow by the clock; replaces the schedule of this id"
        routes.add(f"PUT {one}", self.put, made, Role.ADMIN, MadeSchedule, others=unknown)
        gone = "Delete a schedule; its runs go on"
        routes.add(f"DELETE {one}", self.delete, gone, Role.ADMIN, status=204, others=unknown)
        routes.add(f"POST {one}/pause", self.pause, "Fire no more until unpause", Role.OPERATE, row, others=unknown)
        routes.add(f"POST {one}/unpause", self.unpause, "Fire again from now on", Role.OPERATE, row, others=unknown)
        now = "Start one run now; the fire times stay as they are"
        routes.add(f"POST {one}/trigger", self.trigger, now, Role.OPERATE, RunId, status=201, others=errors(404, 429))

    async def list_all(self, caller: Caller) -> Response:
        found = [each for each in await self._schedules.list() if caller.sees(each.owner)]
        return answer([_shown(each, caller) for each in found])

    async def get(self, schedule: Schedule, caller: Caller) -> Response:
        return answer(_shown(schedule, caller))

    async def put(self, schedule_id: ScheduleId, body: NewSchedule, caller: Caller) -> Response:
        self._api.check_name(body.workflow)
        if schedule_id == TAKEN:
            raise invalid("schedule_id", f"can't be {TAKEN!r}")
        made = await self._schedules.create(
            scoped(schedule_id, caller.owner),
            body.workflow,
            body.params,
            trigger=_trigger(body.trigger),
            catch_up=body.catch_up,
            window=body.window,
            overlap=body.overlap,
            owner=self._api.owner(body.owner, caller),
            metadata=body.metadata,
            paused=body.paused,
        )
        return answer({**_shown(made, caller), "note": self._api.note_on(body.workflow)})

    async def delete(self, schedule: Schedule) -> Response:
        await self._schedules.delete(schedule.id)
        return Response(status_code=204)

    async def pause(self, schedule: Schedule, caller: Caller) -> Response:
        await self._schedules.pause(schedule.id)
        return answer(_shown(await self._schedules.get(schedule.id), caller))

    async def unpause(self, schedule: Schedule, caller: Caller) -> Response:
        await self._schedules.unpause(schedule.id)
        return answer(_shown(await self._schedules.get(schedule.id), caller))

    async def trigger(self, schedule: Schedule) -> Response:
        run = await self._schedules.trigger_now(schedule.id)
        return answer({"run_id": run.run_id}, 201)


def _shown(schedule: ScheduleInfo, caller: Principal) -> dict[str, object]:
    return schedule_of(schedule, unscoped(schedule.id, caller))


def _trigger(asked: NewTrigger) -> Trigger:
    try:
        if asked.cron is not None:
            return Cron(asked.cron, tz=asked.tz or "UTC")
        assert asked.every is not None
        return Every(asked.every)
    except ConfigurationError as error:
        raise invalid("trigger.cron" if asked.cron is not None else "trigger.every", str(error)) from error
