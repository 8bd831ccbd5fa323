"""How runs, events and schedules are written as JSON, and what of them is not for everybody.

Rules: values go out as the JSON that the store has. Hosts (`worker`) and stack traces are for trusted principals only.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from pyrula.http.tokens import Principal
from pyrula.workflows.client import RunReport, ScheduleInfo
from pyrula.workflows.client.listing import RunPage, RunSummary
from pyrula.workflows.codec import dumps
from pyrula.workflows.schedules import Cron
from pyrula.workflows.store.batches import OpenBatch
from pyrula.workflows.store.events import Event
from pyrula.workflows.store.payloads import read_failure

__all__ = ["answer", "batch_of", "detail_of", "event_of", "page_of", "schedule_of"]

_HIDDEN: Final = frozenset({"worker", "trace"})


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON; Fragments in it are written as they are."""
    return Response(dumps(content), status, dict(headers or {}), "application/json")


def page_of(page: RunPage, principal: Principal) -> dict[str, Any]:
    return {"runs": [_row(run, principal) for run in page], "cursor": page.cursor}


def detail_of(report: RunReport, principal: Principal) -> dict[str, Any]:
    error = None if report.error is None else report.error._asdict()
    return {
        **_row(report, principal),
        "metadata": report.metadata,
        "params": report.params,
        "parent": report.parent,
        "waits": [wait._asdict() for wait in report.waits],
        "interrupts": [interrupt._asdict() for interrupt in report.interrupts],
        "unread": [{**message._asdict(), "at": message.at.isoformat()} for message in report.unread],
        "deaths": report.deaths,
        "cancel_requested": report.cancel_requested,
        "value": report.value,
        "error": error if principal.trusted else _shown(error),
    }


def event_of(event: Event, principal: Principal) -> dict[str, Any]:
    data = event.data
    if not principal.trusted:
        data = _shown(data)
        if event.type == "paused" and "reason" in data:
            # a failure, as text
            data["reason"] = dumps(_shown(read_failure(str(data["reason"]).encode())._asdict())).decode()
    return {"type": event.type, "at": datetime.fromtimestamp(event.at, UTC).isoformat(), "data": data}


def schedule_of(schedule: ScheduleInfo, shown_id: str) -> dict[str, Any]:
    trigger = schedule.trigger
    told = {"cron": trigger.expression, "tz": trigger.tz} if isinstance(trigger, Cron) else {"every": trigger.interval}
    return {
        "id": shown_id,
        "workflow": schedule.workflow,
        "owner": schedule.owner,
        "trigger": told,
        "params": schedule.params,
        "paused": schedule.paused,
        "due": _time(schedule.due),
        "last_run": schedule.last_run,
        "catch_up": schedule.catch_up,
        "window": schedule.window,
        "overlap": schedule.overlap,
        "metadata": schedule.metadata,
    }


def batch_of(batch: OpenBatch) -> dict[str, Any]:
    opened, due = (datetime.fromtimestamp(at, UTC).isoformat() for at in (batch.opened_at, batch.due_at))
    return {"key": batch.key, "owner": batch.owner, "events": batch.events, "opened_at": opened, "due_at": due}


def _row(run: RunSummary | RunReport, principal: Principal) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status.value,
        "version": run.version,
        "owner": run.owner,
        "attempt": run.attempt,
        "created_at": run.created_at.isoformat(),
        "finished_at": _time(run.finished_at),
        "worker": run.worker if principal.trusted else None,
    }


def _shown(value: Any) -> Any:
    """Without what is hidden, however deep: a step's error is in an event's fields."""
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in value.items() if name not in _HIDDEN}
    return value


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
