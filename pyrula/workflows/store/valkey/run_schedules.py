"""Schedules on Valkey."""

from dataclasses import replace

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.store.ids import digest
from pyrula.workflows.store.runs import Schedule
from pyrula.workflows.store.valkey.run_keys import schedule_keys
from pyrula.workflows.store.valkey.run_link import RunLink
from pyrula.workflows.store.valkey.run_scripts import run_script
from pyrula.workflows.store.valkey.run_wire import microseconds

_DUE_AT_ONCE = b"100"


class ValkeySchedules:
    """ScheduleStore on Valkey."""

    _runs: RunLink

    async def put_schedule(self, schedule: Schedule, *, expected: int | None = None) -> bool:
        stored = replace(schedule, revision=0)
        data = dumps([stored.id, stored.name, stored.spec.decode(), stored.due, stored.paused, stored.last_run])
        due = b"" if schedule.paused else microseconds(schedule.due)
        return await self._write_schedule(schedule.id, expected, due, data)

    async def _write_schedule(self, schedule_id: str, expected: int | None, due: bytes, data: bytes) -> bool:
        revision = b"" if expected is None else b"%d" % expected
        arguments = [digest("schedule", schedule_id), revision, due, data]
        return bool(await self._runs.funnel.run(run_script("schedule"), schedule_keys(self._runs.namespace), arguments))

    async def read_schedule(self, schedule_id: str) -> Schedule | None:
        key, _ = schedule_keys(self._runs.namespace)
        stored = await self._runs.funnel.ask(b"HGET", key, digest("schedule", schedule_id))
        return None if stored is None else _read(stored)

    async def delete_schedule(self, schedule_id: str) -> bool:
        return await self._write_schedule(schedule_id, None, b"", b"")

    async def schedules(self) -> list[Schedule]:
        key, _ = schedule_keys(self._runs.namespace)
        stored = await self._runs.funnel.ask(b"HVALS", key)
        return sorted(map(_read, stored), key=lambda schedule: schedule.id)

    async def due_schedules(self) -> list[Schedule]:
        key, due = schedule_keys(self._runs.namespace)
        now = self._runs.now()
        found = await self._runs.funnel.ask(
            b"ZRANGE", due, b"-inf", microseconds(now), b"BYSCORE", b"LIMIT", b"0", _DUE_AT_ONCE
        )
        if not found:
            return []
        stored = await self._runs.funnel.ask(b"HMGET", key, *found)
        schedules = [_read(data) for data in stored if data is not None]
        # another worker may have fired one, or somebody paused it, between the two calls
        still = [one for one in schedules if one.due is not None and one.due <= now and not one.paused]
        return sorted(still, key=lambda schedule: schedule.id)


def _read(stored: bytes) -> Schedule:
    revision, _, data = stored.partition(b" ")
    schedule_id, name, spec, due, paused, last_run = loads(data)
    return Schedule(schedule_id, name, spec.encode(), due, paused, last_run, int(revision))
