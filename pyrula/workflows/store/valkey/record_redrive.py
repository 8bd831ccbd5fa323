"""Redrives on Valkey, and `retry` of the runs of records, which is one once the run has failed."""

import secrets

from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.record_places import check_complete
from pyrula.workflows.store.redrive import Letter, refused_redrive, served_by_address
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.valkey.record_lanes import ValkeyLanes
from pyrula.workflows.store.valkey.record_scripts import record_script
from pyrula.workflows.store.valkey.record_wire import AddressKeys
from pyrula.workflows.store.valkey.run_keys import class_of, owner_of, structures

__all__ = ["ValkeyRedrive"]


class ValkeyRedrive(ValkeyLanes):
    """RedriveStore on Valkey."""

    async def retry(self, run_id: str) -> RunStatus:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().retry(run_id)
        found = await self._go_on(record, "retry")
        verdict, status = (b"elsewhere", await self.status(run_id)) if found is None else found
        if status in (RunStatus.FAILED, RunStatus.CANCELLED):
            await self.redrive(run_id)
            return RunStatus.QUEUED
        if found is None:
            return await super().retry(run_id)
        if verdict == b"refused":
            raise refused_redrive(run_id, "refused", status)
        return status

    async def redrive(self, run_id: str, letter: Letter | None = None) -> bool:
        verdict, status, resumed = await self._redrive(run_id, letter, complete=False)
        if verdict == "open":
            await check_complete(self, run_id)
            verdict, status, resumed = await self._redrive(run_id, letter, complete=True)
        if verdict != "ok":
            raise refused_redrive(run_id, verdict, status)
        return resumed

    async def _redrive(self, run_id: str, letter: Letter | None, *, complete: bool) -> tuple[str, str, bool]:
        record, runs = RecordId.parse(run_id), self._runs
        if record is None or record.shard >= runs.shards:
            raise RunNotFoundError(run_id)
        address = AddressKeys(runs.namespace, record.shard, record.address)
        (name,) = await self._about(record, b"name")
        of_run = runs.keys(RunId(record.shard, run_id, 1))
        names = [*structures(runs.namespace, record.shard), address.stream, address.board, address.lanes, *of_run.all()]
        now, rows = runs.now(), () if letter is None else letter.rows
        arguments = [
            runs.channel,
            run_id.encode(),
            b"%d" % record.position,
            b"%d" % record.incarnation,
            secrets.token_hex(8).encode(),
            class_of(served_by_address(record.address), None),
            owner_of(""),
            class_of(name.decode(), None),
            b"1" if complete else b"",
            encode_event("redriven", now, resumed=True),
            encode_event("redriven", now, resumed=False),
            b"" if letter is None else letter.params,
            b"%d" % len(rows),
            *(part for index, data in rows for part in (b"%d" % index, data)),
        ]
        verdict, status, *goes_on = await runs.funnel.run(record_script("redrive"), names, arguments)
        return verdict.decode(), status.decode(), goes_on == [1]
