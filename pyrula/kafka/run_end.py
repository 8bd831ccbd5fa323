"""How the run of one record ended: what is written of it, and what is kept with that.

Rules: the binding's `keep` says which ends are kept. What a redrive goes on with, or queries are answered from, is kept
with them up to a size: the record with the journal. Children that are to end with the run are told once its end is
durable.
"""

import asyncio
import logging
from contextvars import Context
from typing import Any, Final

from pyrula.kafka.attending import AttendingStore
from pyrula.kafka.company import Ending
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.stored_record import encode_record
from pyrula.workflows.engine.retry import rows_for_retry
from pyrula.workflows.errors import SerializationError, StoreError
from pyrula.workflows.execution import Outcome
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.payloads import Failure, encode_failure, failure_of
from pyrula.workflows.store.record_changes import RecordEnd, RecordId
from pyrula.workflows.store.redrive import KEPT_JOURNAL, KEPT_RECORD
from pyrula.workflows.store.runs import RETENTION_SECONDS
from pyrula.workflows.worker.patience import ask_until_answered

__all__ = ["RunEnd"]

log = logging.getLogger("pyrula.kafka")

_ENDS: Final[dict[RunStatus, Ending]] = {RunStatus.FAILED: "failed", RunStatus.CANCELLED: "cancelled"}


class RunEnd:
    """The end of one run. `status` is how it ended, once that is known here."""

    def __init__(self, partition: Partition, run_id: RecordId, store: AttendingStore) -> None:
        self._partition = partition
        self._run_id = run_id
        self._store = store
        self.status: Ending | None = None
        self._outcome: Outcome | None = None
        self._last: RecordRun | None = None
        self._failure: Failure | None = None
        self._params = b""
        self._rows: list[tuple[int, bytes]] = []

    def on_outcome(self, run: RecordRun, outcome: Outcome) -> None:
        """Its body has ended, or was cut."""
        if self._partition.binding.keep == "all":
            self._last = run
        self._outcome = outcome

    def on_failure(self, record: RawRecord, error: BaseException, run: RecordRun | None) -> None:
        """What it failed with, once and for all; no run: it wasn't made one."""
        self._failure = failure_of(error)
        params = encode_record(record, self._partition.tp)
        self._params = params if len(params) <= KEPT_RECORD else b""
        if run is not None and run.journal is not None and run.journal.size <= KEPT_JOURNAL:
            self._rows = rows_for_retry(run.journal, error)

    @property
    def was_paused(self) -> bool:
        """Whether its body ended so."""
        return self._outcome is not None and self._outcome.status == "paused"

    def reason(self, text: str) -> bytes:
        """Why it is held; `text` where nothing else says it."""
        outcome = self._outcome
        if outcome is not None and outcome.status == "paused" and outcome.error is None:
            reason: bytes = outcome.value
            return reason
        return encode_failure(self._failure or Failure("", text))

    def told(self, status: Ending) -> dict[str, Any]:
        """Fields of the event that tells of the end."""
        return {"error": self._failure._asdict()} if status == "failed" and self._failure is not None else {}

    def of(self, status: Ending) -> RecordEnd:
        """It ends so: what is written."""
        self.status = status
        keep = self._partition.binding.keep
        kept = keep == "all" or (keep == "failed" and status == "failed")
        value, error = b"null", None
        if status == "completed" and self._outcome is not None:
            value = self._encoded(self._outcome.value)
        if status == "failed":
            error = encode_failure(self._failure or Failure("", "failed"))
        params, rows = (self._params, self._rows) if status == "failed" else self._journal(status)
        return RecordEnd(status, value, error, int(RETENTION_SECONDS) if kept else 0, params, rows)

    def _journal(self, status: Ending) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What a query of it is answered from when it has ended so: its record with its journal, or neither."""
        run, outcome, self._last = self._last, self._outcome, None
        if run is None or outcome is None or outcome.status != status:
            return b"", []
        params, journal = encode_record(run.origin, self._partition.tp), run.journal
        if len(params) > KEPT_RECORD or (journal is not None and journal.size > KEPT_JOURNAL):
            return b"", []
        return params, [] if journal is None else journal.rows()

    def _encoded(self, value: Any) -> bytes:
        workflow = self._partition.binding.workflow
        try:
            return workflow.return_codec.encode(value, f"the result of run {self._run_id}")[0]
        except SerializationError as error:
            log.warning("run %s: its result isn't kept: %s", self._run_id, error)
            return b"null"

    async def read(self) -> Ending:
        """How it ended, here or in a former holder's hands."""
        if self.status is None:
            state = await ask_until_answered(lambda: self._store.read_record(self._run_id, 0))
            # the end of one that isn't kept is forgotten after a while
            self.status = "completed" if state is None else _ENDS.get(state.status, "completed")
        return self.status

    def tell_children(self, error: Exception | None) -> None:
        """The end is durable, or there was an error."""
        if error is None:
            loop = asyncio.get_running_loop()
            task = Context().run(loop.create_task, self._relay(), name="cancel children")
            self._partition.background.add(task)
            task.add_done_callback(self._partition.background.discard)

    async def _relay(self) -> None:
        try:
            await self._store.relay()
        except StoreError as error:
            log.warning("run %s: its children are not told yet: %s", self._run_id, error)
