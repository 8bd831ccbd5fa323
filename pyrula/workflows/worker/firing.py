"""Fires the schedules of the workflows that are served here.

Rules: first the run of a fire time is submitted, with the time in its idempotency key, then the next fire time is
written if nobody else was first. So a fire time starts one run, whoever dies in between. Where runs must not overlap,
the run's id is written before it is submitted: the next fire has to know of it even so.
"""

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyrula.workflows.codec import encode_message, loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.params import Params
from pyrula.workflows.schedules import Plan, fires_of, first_fire
from pyrula.workflows.stamps import stamp_of
from pyrula.workflows.store.lifecycle import TERMINAL
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import RunStore, Schedule, Submission
from pyrula.workflows.worker.served import Served

__all__ = ["Firing"]

log = logging.getLogger("pyrula.worker")


class Firing:
    """Looks for what is due. `unusable` are schedules, by id and revision, that can't be fired, and why."""

    def __init__(self, store: RunStore, served: Served, *, poll_interval: float) -> None:
        self._store = store
        self._served = served
        self._interval = poll_interval
        self.unusable: dict[tuple[str, int], str] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        declared = False
        while True:
            try:
                if not declared:
                    await self.declare()
                    declared = True
                await self.fire_due()
            except StoreUnavailable as error:
                log.debug("schedules can't be looked at: %s", error)
            await asyncio.sleep(self._interval)

    async def declare(self) -> None:
        """Keep the schedules that the served workflows declare, and drop those which they don't declare any more."""
        kept = {schedule.id: schedule for schedule in await self._store.schedules()}
        for name in {name for name, _ in self._served.pairs}:
            definition = self._served.find(name, None)
            assert definition is not None
            schedule_id = f"workflow:{name}"
            present = kept.get(schedule_id)
            if definition.schedule is None:
                if present is not None:
                    await self._store.delete_schedule(schedule_id)
                continue
            plan = Plan(workflow=name, trigger=definition.schedule).encode()
            if present is None or present.spec != plan:
                due = first_fire(definition.schedule, self._store.now())
                revision = 0 if present is None else present.revision
                # if another worker was first, it has written the same
                await self._store.put_schedule(Schedule(schedule_id, name, plan, due), expected=revision)

    async def fire_due(self) -> int:
        """How many runs were started."""
        started = 0
        due = await self._store.due_schedules()
        present = {(schedule.id, schedule.revision) for schedule in due}
        self.unusable = {key: why for key, why in self.unusable.items() if key in present}
        for schedule in due:
            definition = self._served.find(schedule.name, None)
            if definition is not None and (schedule.id, schedule.revision) not in self.unusable:
                started += await self._fire(schedule, definition)
        return started

    async def _fire(self, schedule: Schedule, definition: WorkflowDefinition[Any, Any]) -> int:
        try:
            plan = Plan.decode(schedule.spec)
            params = Params.of(definition).encode(loads(plan.params))
            stamp = stamp_of(definition, params)
        except (ConfigurationError, ValueError, LookupError, TypeError) as error:
            text = f"schedule {schedule.id!r} isn't fired: {error}"
            self.unusable[schedule.id, schedule.revision] = text
            log.error("%s", text)
            return 0
        assert schedule.due is not None
        fires = fires_of(plan, schedule.due, self._store.now())
        last, started, skipped = schedule.last_run, 0, fires.skipped
        for moment in fires.times:
            key = f"schedule:{schedule.id}:{_text(moment)}"
            run_id = self._store.new_run_id(name=definition.name, idempotency_key=key, stamp=stamp)
            if plan.overlap == "skip":
                if last is not None and not await self._ended(last):
                    skipped += 1
                    continue
                if not await self._store.put_schedule(replace(schedule, last_run=run_id), expected=schedule.revision):
                    return started  # others are at it
                schedule = replace(schedule, last_run=run_id, revision=schedule.revision + 1)
            submission = Submission(
                run_id,
                definition.name,
                params,
                version=definition.version,
                idempotency_key=key,
                owner=plan.owner,
                metadata=_metadata(schedule, plan, moment, skipped),
                stamp=stamp,
            )
            last = (await self._store.submit(submission)).run_id
            started, skipped = started + 1, 0
        if skipped:
            log.info("schedule %r: %d fires are left out", schedule.id, skipped)
        following = replace(schedule, due=fires.following, last_run=last)
        await self._store.put_schedule(following, expected=schedule.revision)
        return started

    async def _ended(self, run_id: str) -> bool:
        try:
            return await self._store.status(run_id) in TERMINAL
        except RunNotFoundError:
            return True


def _text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def _metadata(schedule: Schedule, plan: Plan, moment: float, skipped: int) -> bytes:
    told = {
        "schedule": schedule.id,
        "fire_time": _text(moment),
        "skipped": skipped,
        "metadata": loads(plan.metadata),
    }
    return encode_message(told, f"schedule {schedule.id!r}: metadata")
