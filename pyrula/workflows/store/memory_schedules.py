"""Schedules in memory."""

import asyncio
from dataclasses import replace

from pyrula.workflows.store.memory_board import Board
from pyrula.workflows.store.runs import Schedule


class MemorySchedules:
    """ScheduleStore in memory."""

    _board: Board

    async def put_schedule(self, schedule: Schedule, *, expected: int | None = None) -> bool:
        plans = self._board.plans
        present = plans.get(schedule.id)
        revision = 0 if present is None else present.revision
        if expected is None or expected == revision:
            plans[schedule.id] = replace(schedule, revision=revision + 1)
        await asyncio.sleep(0)
        # what was written by this very call before is answered as written
        return expected is None or plans.get(schedule.id) == replace(schedule, revision=expected + 1)

    async def read_schedule(self, schedule_id: str) -> Schedule | None:
        await asyncio.sleep(0)
        return self._board.plans.get(schedule_id)

    async def delete_schedule(self, schedule_id: str) -> bool:
        await asyncio.sleep(0)
        return self._board.plans.pop(schedule_id, None) is not None

    async def schedules(self) -> list[Schedule]:
        await asyncio.sleep(0)
        return sorted(self._board.plans.values(), key=lambda schedule: schedule.id)

    async def due_schedules(self) -> list[Schedule]:
        now = self._board.now()
        found = await self.schedules()
        return [plan for plan in found if plan.due is not None and plan.due <= now and not plan.paused]
