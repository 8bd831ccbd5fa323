"""What becomes of a run whose body has ended, as the store is told: plain rules from an outcome to an `End`."""

from typing import Any, Final

from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import NonDeterminismError, PyrulaError, SerializationError
from pyrula.workflows.execution import ContinueAsNew, Execution, Outcome
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.messages import End
from pyrula.workflows.store.payloads import Failure, encode_failure, failure_of

__all__ = ["WORKER_DIED", "RunTimeout", "checked", "end_of", "event_of", "failed_end", "reason_of"]

WORKER_DIED: Final = Failure(
    "pyrula.WorkerDied",
    "worker died: each time this run was executed its worker process ended, the last time with nothing beside it",
)


class RunTimeout(PyrulaError):
    """A run took longer than its workflow's timeout."""


def checked(outcome: Outcome, execution: Execution) -> Outcome:
    """The outcome as it counts for a submitted run."""
    error: Exception | None
    if outcome.status == "completed":
        error = _unwritable(outcome, execution.definition, execution.run_id)
        return outcome if error is None else Outcome("failed", None, error)
    if outcome.status == "paused" and isinstance(outcome.error, NonDeterminismError) and execution.cancel_requested:
        return Outcome("cancelled")
    return outcome


def _unwritable(outcome: Outcome, definition: WorkflowDefinition[Any, Any], run_id: str) -> SerializationError | None:
    try:
        definition.return_codec.encode(outcome.value, f"the result of run {run_id}")
    except SerializationError as error:
        return error
    return None


def end_of(outcome: Outcome, definition: WorkflowDefinition[Any, Any], run_id: str) -> End:
    """For "completed", "failed", "cancelled" and "continued_as_new"."""
    if outcome.status == "completed":
        return End("completed", definition.return_codec.encode(outcome.value, f"the result of run {run_id}")[0])
    if outcome.status == "continued_as_new":
        following = outcome.value
        assert isinstance(following, ContinueAsNew)
        return End("continued_as_new", params=following.params, version=following.version)
    if outcome.status == "cancelled":
        return End("cancelled")
    assert outcome.error is not None
    return failed_end(failure_of(outcome.error))


def failed_end(failure: Failure) -> End:
    return End("failed", error=encode_failure(failure))


def event_of(outcome: Outcome, run_id: str) -> dict[str, Any]:
    """What the event of the ending tells."""
    if outcome.status == "continued_as_new":
        run = RunId.parse(run_id)
        return {"run_id": str(run._replace(link=run.link + 1))}
    if outcome.status == "failed":
        assert outcome.error is not None
        return {"error": failure_of(outcome.error)._asdict()}
    return {}


def reason_of(outcome: Outcome) -> bytes:
    """Why a run is paused: the client's payload, or the mismatch."""
    if outcome.error is not None:
        return encode_failure(failure_of(outcome.error))
    reason: bytes = outcome.value
    return reason
