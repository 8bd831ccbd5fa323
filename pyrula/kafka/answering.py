"""A query of a record's run whose body isn't in memory: answered from the record and the journal that the store has.

The run is replayed read-only, as a submitted one is: nothing is written, nothing executes, nothing is sent.
"""

from pyrula.kafka.binding import Binding
from pyrula.kafka.record import Record
from pyrula.kafka.stored_record import StoredRecord
from pyrula.workflows.clock import Clock
from pyrula.workflows.replaying import replayed
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.payloads import Failure, encode_refusal
from pyrula.workflows.store.runs import Query

__all__ = ["answered"]

_NOTHING = b"{}"


async def answered(binding: Binding, history: History, query: Query, clock: Clock) -> bytes:
    """The answer as it is stored. Raises what the replay or the query's handler raises."""
    workflow = binding.workflow
    if history.params == _NOTHING or (history.status is RunStatus.FAILED and not history.rows):
        # one that failed may be kept without its journal, which doesn't answer for where it failed
        text = 'the run has ended, and its journal is not kept: Binding(keep="all") keeps those of all, up to 1 MiB'
        return encode_refusal(Failure("", text))
    if history.version not in (None, workflow.version):
        text = f"workflow {workflow.name!r}, version {history.version!r}, isn't served here any more"
        return encode_refusal(Failure("", text))
    stored = StoredRecord.decode(history.params)
    args, kwargs = binding.arguments(stored, stored.place)
    record = Record.of(stored, stored.value, stored.place)
    async with replayed(
        workflow, query.run_id, kwargs, history.rows, args=args, clock=clock, attempt=history.attempt, record=record
    ) as run:
        return await run.query(query.name, query.payload)
