"""Routes of backfills: started here, run by workers that are bound to the topic. They aren't for tenants.

Rules: a filter (`where`) names code that workers import, so none is taken from a request: start such a backfill by the
client or `pyrula backfill`.
"""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.models import Backfill, NewBackfill
from pyrula.http.routing import also, errors, needs
from pyrula.http.runs import invalid
from pyrula.http.tokens import Role
from pyrula.http.views import answer
from pyrula.workflows.errors import ConfigurationError

__all__ = ["BackfillRoutes"]

BackfillId = Annotated[str, Path(description="a backfill's id")]

TAKEN: Final = "runs"
"""No backfill has this id over HTTP: GET /backfills/runs lists the runs of a workflow called backfills."""


class BackfillRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._backfills = api.client.backfills

    def add_to(self, router: APIRouter) -> None:
        look: dict[str, Any] = {"response_model": Backfill, "openapi_extra": needs(Role.READ, all_owners=True)}
        turn: dict[str, Any] = {
            "methods": ["POST"],
            "response_model": Backfill,
            "responses": errors(404, 409),
            "openapi_extra": needs(Role.ADMIN, all_owners=True),
        }
        router.add_api_route(
            "/backfills",
            self.list_all,
            methods=["GET"],
            summary="List backfills",
            **look | {"response_model": list[Backfill]},
        )
        router.add_api_route(
            "/backfills",
            self.start,
            summary="Run a range of a topic's records through a workflow; the same id goes on with it",
            **turn | {"responses": {**also(200, "Asked for", Backfill), **errors(409)}},
        )
        router.add_api_route(
            "/backfills/{backfill_id}",
            self.status,
            methods=["GET"],
            summary="How far a backfill is",
            responses=errors(404),
            **look,
        )
        for verb, function, summary in (
            ("pause", self.pause, "Start no more records until resume"),
            ("resume", self.resume, "Go on after a pause or a failure"),
            ("cancel", self.cancel, "Start no more records, for good"),
        ):
            router.add_api_route(f"/backfills/{{backfill_id}}/{verb}", function, summary=summary, **turn)

    async def list_all(self) -> Response:
        return answer([report.to_dict() for report in await self._backfills.list()])

    async def start(self, body: NewBackfill) -> Response:
        self._api.check_name(body.workflow)
        if body.backfill_id == TAKEN:
            raise invalid("backfill_id", f"can't be {TAKEN!r}")
        try:
            report = await self._backfills.start(
                body.workflow,
                body.topic,
                backfill_id=body.backfill_id,
                group=body.group,
                cluster=body.cluster,
                partitions=body.partitions,
                start=body.start,
                end=body.end,
                output=body.output,
                dead_letter_topic=body.dead_letter_topic,
                max_concurrency=body.max_concurrency,
                rate=body.rate,
            )
        except (ConfigurationError, ValueError) as error:
            raise invalid("backfill", str(error)) from error
        return answer(report.to_dict())

    async def status(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.status(backfill_id)).to_dict())

    async def pause(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.pause(backfill_id)).to_dict())

    async def resume(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.resume(backfill_id)).to_dict())

    async def cancel(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.cancel(backfill_id)).to_dict())
