"""For tests of workflows that are bound to topics: saved histories of records' runs against today's code.

Rules: the record is read as the binding reads it, by its workflow's annotations and its value_serde; the rest is as for
the histories of submitted runs (`pyrula.workflows.testing.replay`). No broker and no store takes part.
"""

from datetime import timedelta
from typing import Final

from pyrula.kafka.binding import Binding
from pyrula.kafka.record import Record
from pyrula.kafka.stored_record import StoredRecord
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.replaying import check_fit, check_history
from pyrula.workflows.store.history import History
from pyrula.workflows.store.record_changes import RecordId

__all__ = ["replay_record_run"]

_NOTHING: Final = b"{}"


async def replay_record_run(binding: Binding, history: History, *, timeout: float | timedelta = 10.0) -> None:
    """Run the saved history of a record's run against today's code: `await handle.history()`, or `History.load(file)`.

    Raises NonDeterminismError if they don't fit, RecordError if the binding doesn't read the record any more,
    ValueError if the history has no record: only those of runs that wait in the store, and of ended ones that `keep`
    keeps, have it. No step is executed. `timeout` is for a body that never comes to rest.
    """
    if not isinstance(binding, Binding):
        raise TypeError(
            f"replay_record_run() takes the Binding that reads the record, not {binding!r:.100}; a workflow, with the "
            "history of a submitted run, is for pyrula.workflows.testing.replay(workflow, history)"
        )
    check_history(binding.workflow, history, "replay_record_run()")
    if RecordId.parse(history.run_id) is None:
        raise ValueError(
            f"run {history.run_id} is no record's: write "
            "`await pyrula.workflows.testing.replay(workflow, history)` instead of replay_record_run()"
        )
    if history.params == _NOTHING:
        raise ValueError(
            f"the history of run {history.run_id} ({history.status}) lacks its record: it was saved while the record "
            "was in a worker's hands, or the end is kept without it. Save it while the run waits in the store, or, of "
            'a binding with keep="all", after its end (records of up to 64 KiB)'
        )
    seconds = to_seconds(timeout, "replay_record_run(timeout=)", zero=False)
    stored = StoredRecord.decode(history.params)
    args, kwargs = binding.arguments(stored, stored.place)
    record = Record.of(stored, stored.value, stored.place)
    await check_fit(binding.workflow, history, kwargs, args=args, record=record, seconds=seconds)
