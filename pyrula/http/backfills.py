"""Routes of backfills: started here, run by workers that are bound to the topic. They aren't for tenants.

Rules: a filter (`where`) names code that workers import, so none is taken from a request: start such a backfill by the
client or `pyrula backfill`.
"""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.responses import Response

from pyrula.http.api import Api
from pyrula.http.models import Backfill, MadeBackfill, NewBackfill, RedriveRequest
from pyrula.http.problems import invalid
from pyrula.http.routing import Routes, errors
from pyrula.http.tokens import Role
from pyrula.http.views import answer
from pyrula.workflows.backfills import checked_backfill_id
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
        routes, one = Routes(router, all_owners=True), "/backfills/{backfill_id}"
        admin, moved = Role.ADMIN, errors(404, 409)
        routes.add("GET /backfills", self.list_all, "List backfills", Role.READ, list[Backfill])
        begun = "Run a range of a topic's records through a workflow; the same id goes on with it"
        routes.add("POST /backfills", self.start, begun, admin, MadeBackfill, others=errors(404, 409))
        routes.add(f"GET {one}", self.status, "How far a backfill is", Role.READ, Backfill, others=errors(404))
        routes.add(f"POST {one}/pause", self.pause, "Start no more records until resume", admin, Backfill, others=moved)
        after = "Go on after a pause or a failure"
        routes.add(f"POST {one}/resume", self.resume, after, admin, Backfill, others=moved)
        no_more = "Start no more records, for good"
        routes.add(f"POST {one}/cancel", self.cancel, no_more, admin, Backfill, others=moved)
        again = "Run the records that failed again, from their dead letters and journals"
        routes.add(f"POST {one}/redrive", self.redrive, again, admin, Backfill, others=moved)

    async def list_all(self) -> Response:
        return answer([report.to_dict() for report in await self._backfills.list()])

    async def start(self, body: NewBackfill) -> Response:
        self._api.check_name(body.workflow)
        _check_id(body.backfill_id, "backfill_id")
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
            raise invalid(_culprit(str(error)), str(error)) from error
        return answer({**report.to_dict(), "note": self._api.note_on(body.workflow)})

    async def status(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.status(backfill_id)).to_dict())

    async def pause(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.pause(backfill_id)).to_dict())

    async def resume(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.resume(backfill_id)).to_dict())

    async def cancel(self, backfill_id: BackfillId) -> Response:
        return answer((await self._backfills.cancel(backfill_id)).to_dict())

    async def redrive(self, backfill_id: BackfillId, body: RedriveRequest | None = None) -> Response:
        asked = body or RedriveRequest()
        _check_id(asked.new_id, "new_id")
        report = await self._backfills.redrive(
            backfill_id, new_id=asked.new_id, max_concurrency=asked.max_concurrency, rate=asked.rate
        )
        return answer(report.to_dict())


def _check_id(backfill_id: str | None, field: str) -> None:
    if backfill_id == TAKEN:
        raise invalid(field, f"can't be {TAKEN!r}")
    if backfill_id is not None:
        try:
            checked_backfill_id(backfill_id)
        except ConfigurationError as error:
            raise invalid(field, str(error)) from error


def _culprit(text: str) -> str:
    """The field that a refusal is about: it begins with its name, or names the workflow."""
    begin = re.match(r"(?:the )?(\w+)[= ]", text)
    if begin and begin[1] in NewBackfill.model_fields:
        return begin[1]
    return "backfill"
