"""`client.schedules`: what starts runs by the clock. The store keeps the schedules; workers of the workflow fire them.

Each fire time starts one run however many workers there are: the time is in the run's idempotency key.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from pydantic import BaseModel

from pyrula.workflows.client.handle import RunHandle
from pyrula.workflows.client.refs import checked_text
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import encode_message, loads
from pyrula.workflows.definition import WorkflowDefinition, find_definition
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.params import Params, encode_unchecked
from pyrula.workflows.schedules import DAY, CatchUp, Overlap, Plan, Trigger, first_fire
from pyrula.workflows.store.runs import Schedule, ScheduleStore

__all__ = ["ScheduleClient", "ScheduleInfo", "ScheduleNotFoundError"]

_ATTEMPTS: Final = 20


class SchedulingStore(ScheduleStore, Protocol):
    """What schedules need of a store."""

    def now(self) -> float: ...


class ScheduleNotFoundError(PyrulaError):
    """No schedule has this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule as it is. `due` is the next fire time; `last_run` the id of the run it started last; `window` is in
    seconds, and `metadata` what it was made with."""

    id: str
    workflow: str
    owner: str
    trigger: Trigger
    params: dict[str, Any]
    paused: bool
    due: datetime | None
    last_run: str | None
    catch_up: CatchUp
    window: float
    overlap: Overlap
    metadata: Any


class ScheduleClient:
    """Makes and changes schedules."""

    def __init__(
        self, store: "SchedulingStore", opened: Callable[[], Awaitable[None]], submit: Callable[..., Awaitable[Any]]
    ) -> None:
        self._store = store
        self._opened = opened
        self._submit = submit

    async def create(
        self,
        schedule_id: str,
        workflow: str | WorkflowDefinition[..., Any],
        params: Mapping[str, Any] | BaseModel | None = None,
        *,
        trigger: Trigger,
        catch_up: CatchUp = "one",
        window: float | timedelta = DAY,
        overlap: Overlap = "skip",
        owner: str = "",
        metadata: Any = None,
        paused: bool = False,
    ) -> ScheduleInfo:
        """Start this workflow by the clock from now on. One of the same id is replaced.

        Fires that were missed are caught up with as `catch_up` says ("one", "all" or "none") if they aren't longer ago
        than `window` seconds. `overlap` "skip" starts nothing while the run before hasn't ended."""
        checked_text(schedule_id, "a schedule's id")
        definition = workflow if isinstance(workflow, WorkflowDefinition) else find_definition(workflow)
        name = checked_text(workflow if isinstance(workflow, str) else workflow.name, "a workflow's name")
        data = encode_unchecked(name, params) if definition is None else Params.of(definition).encode(params)
        plan = Plan(
            workflow=name,
            trigger=trigger,
            params=data,
            owner=owner,
            metadata=encode_message(metadata, f"schedule {schedule_id!r}: metadata", MAX_VALUE),
            catch_up=catch_up,
            window=to_seconds(window, "schedules.create(window=)", zero=False),
            overlap=overlap,
        )
        await self._opened()
        due = first_fire(trigger, self._store.now())
        schedule = Schedule(schedule_id, name, plan.encode(), due, paused=paused)
        await self._store.put_schedule(schedule)
        return _info(schedule)

    async def get(self, schedule_id: str) -> ScheduleInfo:
        return _info(await self._read(schedule_id))

    async def list(self) -> "list[ScheduleInfo]":
        """All schedules, by id."""
        await self._opened()
        return [_info(schedule) for schedule in await self._store.schedules()]

    async def pause(self, schedule_id: str) -> None:
        """It fires no more until `unpause`."""
        await self._change(schedule_id, paused=True)

    async def unpause(self, schedule_id: str) -> None:
        """It fires again from now on; what was due meanwhile isn't caught up with."""
        await self._change(schedule_id, paused=False)

    async def delete(self, schedule_id: str) -> None:
        """Its runs go on."""
        await self._opened()
        if not await self._store.delete_schedule(schedule_id):
            raise ScheduleNotFoundError(f"no schedule has the id {schedule_id!r:.100}")

    async def trigger_now(self, schedule_id: str) -> RunHandle[Any]:
        """Start one run at once, whatever runs; the fire times stay as they are."""
        schedule = await self._read(schedule_id)
        plan = Plan.decode(schedule.spec)
        handle: RunHandle[Any] = await self._submit(
            plan.workflow,
            loads(plan.params),
            idempotency_key=f"schedule:{schedule_id}:{secrets.token_hex(16)}",
            owner=plan.owner,
            metadata=loads(plan.metadata),
        )
        return handle

    async def _read(self, schedule_id: str) -> Schedule:
        await self._opened()
        schedule = await self._store.read_schedule(schedule_id)
        if schedule is None:
            raise ScheduleNotFoundError(f"no schedule has the id {schedule_id!r:.100}")
        return schedule

    async def _change(self, schedule_id: str, *, paused: bool) -> None:
        for _ in range(_ATTEMPTS):
            schedule = await self._read(schedule_id)
            due = schedule.due
            if schedule.paused and not paused:
                due = first_fire(Plan.decode(schedule.spec).trigger, self._store.now())
            changed = replace(schedule, paused=paused, due=due)
            if await self._store.put_schedule(changed, expected=schedule.revision):
                return
        raise PyrulaError(f"schedule {schedule_id!r:.100} is changed by others all the time")


def _info(schedule: Schedule) -> ScheduleInfo:
    plan = Plan.decode(schedule.spec)
    return ScheduleInfo(
        id=schedule.id,
        workflow=plan.workflow,
        owner=plan.owner,
        trigger=plan.trigger,
        params=loads(plan.params),
        paused=schedule.paused,
        due=None if schedule.due is None else datetime.fromtimestamp(schedule.due, UTC),
        last_run=schedule.last_run,
        catch_up=plan.catch_up,
        window=plan.window,
        overlap=plan.overlap,
        metadata=loads(plan.metadata),
    )
