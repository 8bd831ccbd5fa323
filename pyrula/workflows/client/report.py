"""All that can be told of a run, for people and programs: the store's record of it with its JSON read."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyrula.workflows.codec import loads
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.payloads import Failure, read_failure
from pyrula.workflows.store.runs import RunDetail

__all__ = ["RunReport", "UnreadMessage", "WaitingInterrupt", "report_of"]


class WaitingInterrupt(NamedTuple):
    wait_id: str
    payload: Any


class UnreadMessage(NamedTuple):
    """A message that the body hasn't read; `name` is that of the signal or update."""

    kind: str
    id: str
    name: str
    payload: Any
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run as it is. `run_id` is its live link's; `deaths` counts workers that died with it in flight.

    `error` says why it failed or is paused. `worker` is who executes it.
    """

    run_id: str
    name: str
    status: RunStatus
    version: str | None
    owner: str
    metadata: Any
    params: dict[str, Any]
    attempt: int
    created_at: datetime
    finished_at: datetime | None
    parent: str | None
    waits: tuple[Wait, ...]
    interrupts: tuple[WaitingInterrupt, ...]
    unread: tuple[UnreadMessage, ...]
    worker: str | None
    deaths: int
    cancel_requested: bool
    value: Any
    error: Failure | None

    @property
    def finished(self) -> bool:
        return self.status in TERMINAL


def report_of(detail: RunDetail) -> RunReport:
    return RunReport(
        run_id=detail.run_id,
        name=detail.name,
        status=detail.status,
        version=detail.version,
        owner=detail.owner,
        metadata=loads(detail.metadata),
        params=loads(detail.params),
        attempt=detail.attempt,
        created_at=_time(detail.created_at),
        finished_at=None if detail.finished_at is None else _time(detail.finished_at),
        parent=None if detail.parent is None else detail.parent.run_id,
        waits=detail.waits,
        interrupts=tuple(WaitingInterrupt(each.wait_id, loads(each.payload)) for each in detail.interrupts),
        unread=tuple(
            UnreadMessage(message.kind, message.id, message.name, loads(message.payload), _time(at))
            for _, message, at in detail.unread
        ),
        worker=detail.worker,
        deaths=detail.deaths,
        cancel_requested=detail.cancel_requested,
        value=loads(detail.value),
        error=None if detail.error is None else read_failure(detail.error),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
