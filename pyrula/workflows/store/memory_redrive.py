"""Redrives in memory."""

import asyncio

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.store.lanes import HANDED_OVER
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory_board import Chain, Known
from pyrula.workflows.store.memory_lanes import MemoryLanes
from pyrula.workflows.store.memory_record_runs import Address, Record
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.record_places import check_complete
from pyrula.workflows.store.redrive import Letter, refused_redrive, served_by_address
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["MemoryRedrive"]

_RETRIED = (RunStatus.FAILED, RunStatus.CANCELLED)


class MemoryRedrive(MemoryLanes):
    """RedriveStore in memory, and `retry` of the runs of records, which is one once the run has failed."""

    async def retry(self, run_id: str) -> RunStatus:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().retry(run_id)
        if self._records.is_elsewhere(record):
            status: str = self._board.chains[run_id].status
        else:
            run = self._records.see(record)
            status = "" if run is None else run.status
        if status not in _RETRIED:
            return await super().retry(run_id)
        await self.redrive(run_id)
        return RunStatus.QUEUED

    async def redrive(self, run_id: str, letter: Letter | None = None) -> bool:
        await asyncio.sleep(0)
        record = RecordId.parse(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        address = self._records.address_of(record)
        passed = record.incarnation != address.incarnation or record.position < address.below
        former = self._board.chains.get(run_id) if self._records.is_elsewhere(record) else None
        kept = self._kept_end(record, address, passed) if former is None else None
        status = former.status if former is not None else "" if kept is None else kept.status
        if status and status not in _RETRIED:
            raise refused_redrive(run_id, "refused", status)
        if not status and letter is None:
            raise refused_redrive(run_id, "missing", status)
        if not (status or passed):
            await check_complete(self, run_id)
            if self._records.is_elsewhere(record):
                return await self.redrive(run_id, letter)
        if kept is not None and not kept.params and letter is None:
            raise refused_redrive(run_id, "bare", status)
        chain = self._reset_end(former) if former is not None else self._made(record, address, kept, letter)
        if not chain.rows and letter is not None:
            chain.rows = dict(letter.rows)
        told = loads(chain.metadata)
        chain.metadata = dumps({**told, "redrive": told.get("redrive", 0) + 1})
        chain.version, chain.retried = None, True
        chain.attempt += 1
        chain.inbox = {
            number: unread for number, unread in chain.inbox.items() if unread.message.kind not in ("cancel", "pause")
        }
        if not passed:
            address.board[record.position] = HANDED_OVER
            address.news += 1
        resumed = bool(chain.rows)
        chain.events.append(self._board.event("redriven", resumed=resumed))
        self._board.enqueue(chain)
        return resumed

    def _kept_end(self, record: RecordId, address: Address, passed: bool) -> Record | None:
        """What is kept of its end; not of a former record of that position."""
        self._records.expire()
        kept = self._records.runs.get(record)
        return kept if kept is not None and (passed or record.position in address.board) else None

    @staticmethod
    def _reset_end(chain: Chain) -> Chain:
        chain.cancel = chain.alone = chain.doomed = False
        chain.deaths = 0
        chain.finished_at = chain.ended_by = chain.error = None
        chain.value = b"null"
        return chain

    def _made(self, record: RecordId, address: Address, kept: Record | None, letter: Letter | None) -> Chain:
        run = kept or Record(self._board.now(), attempt=0)
        params = run.params or (b"" if letter is None else letter.params)
        self._records.runs.pop(record, None)
        self._records.gone.pop(record, None)
        chain = self._board.chains[str(record)] = Chain(
            id=str(record),
            name=served_by_address(record.address),
            version=None,
            owner="",
            metadata=address.registration.metadata,
            params=params,
            submitted=b"",
            idempotency_key=None,
            parent=None,
            key=(128, self._board.queue.next_order()),
            created_at=run.created_at,
            epoch=1,
            attempt=run.attempt,
            counter=run.last,
            rows=dict(run.rows),
            inbox=run.inbox,
            known={key: Known(*known) for key, known in run.known.items()},
            events=run.events,
        )
        return chain
