"""Why a run isn't running: one sentence, and the facts that it is made of.

Rules: a queued run's obstacles are named in the order in which it meets them: a worker that serves it, its Limit, its
Rate, its owner's runs before it, other owners. What is said is true of one moment. Pure but for the two reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pyrula.workflows.stamps import LimitStamp, RateStamp
from pyrula.workflows.store.lifecycle import PARKED, TERMINAL, RunStatus
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.outlook import Outlook
from pyrula.workflows.store.payloads import read_failure
from pyrula.workflows.store.registry import WorkerEntry
from pyrula.workflows.store.runs import RunDetail

__all__ = ["RunExplanation", "bound_to", "explained", "served_by"]

_NAMED = 3
_LAST_SECOND = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()  # later ones are no datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExplanation:
    """Why a run is where it is; its `str()` is `text`, the sentence.

    `since`: when it came into this status (None once it has ended). `served`: whether a live worker serves its
    workflow and version; None if nobody asked. `limit`, `rate`: the policies it was submitted under, with `slots_used`
    of the Limit's key and some of the runs that hold them, and when the Rate's next start is due. `waits_at`: the gate
    where it waits. `before`: its owner's runs ahead of it there, up to about a hundred; `owners_before`: owners ahead
    of its own.
    """

    run_id: str
    workflow: str
    version: str | None
    status: RunStatus
    text: str
    since: datetime | None
    worker: str | None
    waits: tuple[Wait, ...]
    served: bool | None
    limit: LimitStamp | None
    slots_used: int
    slot_holders: tuple[str, ...]
    rate: RateStamp | None
    next_start: datetime | None
    waits_at: Literal["Limit", "Rate"] | None
    before: int
    owners_before: int

    def __str__(self) -> str:
        return self.text


def served_by(workers: Sequence[WorkerEntry], name: str, version: str | None, *, bound: bool = False) -> bool:
    """Whether any of them executes submitted runs of this workflow and version (None: of any), or of records if it is
    `bound`."""
    return any(
        each.name == name and (each.topic is not None) == bound and version in (None, each.version)
        for worker in workers
        for each in worker.served
    )


def bound_to(workers: Sequence[WorkerEntry], name: str, version: str | None) -> str:
    """A topic that one of them has this workflow and version bound to; "" if none has."""
    return next(
        (
            each.topic
            for worker in workers
            for each in worker.served
            if each.topic is not None and each.name == name and version in (None, each.version)
        ),
        "",
    )


def explained(detail: RunDetail, outlook: Outlook | None, served: bool | None, bound: str = "") -> RunExplanation:
    """`outlook` None: nothing is kept of how it waits (a record's run). `bound`: a topic whose records are all that
    live workers run by this workflow."""
    outlook = outlook or Outlook(None, detail.created_at)
    return RunExplanation(
        run_id=detail.run_id,
        workflow=detail.name,
        version=detail.version,
        status=detail.status,
        text=_sentence(detail, outlook, served, bound),
        since=_time(outlook.since),
        worker=detail.worker,
        waits=detail.waits,
        served=served,
        limit=outlook.limit,
        slots_used=outlook.used,
        slot_holders=outlook.holders,
        rate=outlook.rate,
        next_start=_time(outlook.next_start),
        waits_at=outlook.gate,
        before=outlook.before,
        owners_before=outlook.owners_before,
    )


def _sentence(detail: RunDetail, outlook: Outlook, served: bool | None, bound: str) -> str:
    status = detail.status
    if status is RunStatus.QUEUED:
        age = "" if outlook.since is None else f" {_duration(outlook.now - outlook.since)}"
        return f"queued{age}: {_obstacles(detail, outlook, served, bound)}"
    since = "" if outlook.since is None else f" since {_moment(outlook.since)}"
    if status is RunStatus.RUNNING:
        return f"running on worker {detail.worker}{since}"
    if status in PARKED and detail.waits:
        return f"waits for {' or '.join(map(_told, detail.waits))}{since}"
    if status is RunStatus.PAUSED:
        reason = "" if detail.error is None else f": {read_failure(detail.error).message}"
        return f"paused{since}{reason}"
    if status in TERMINAL and detail.finished_at is not None:
        failure = None if detail.error is None else read_failure(detail.error)
        reason = "" if failure is None else f": {failure.type}: {failure.message}"
        return f"{status} at {_moment(detail.finished_at)}{reason}"
    return f"{status}{since}"


def _obstacles(detail: RunDetail, outlook: Outlook, served: bool | None, bound: str) -> str:
    if outlook.behind is not None:
        return f"{_ordinal(outlook.before)} behind run {outlook.behind}, for which its lane waits"
    if served is False:
        version = "" if detail.version is None else f" version {detail.version}"
        only = f" but for the records of topic {bound}: start a WorkflowWorker with it" if bound else ""
        return f"no live worker serves {detail.name}{version}{only}"
    found = []
    limit, rate = outlook.limit, outlook.rate
    if limit is not None and (outlook.used >= limit.max or outlook.gate == "Limit"):
        held = f" held by {_names(outlook)}" if outlook.holders else ""
        found.append(f"Limit {limit.label}={limit.key} {outlook.used}/{limit.max}{held}")
    if rate is not None and outlook.next_start is not None:
        left = outlook.next_start - outlook.now
        # named again only if it isn't the Limit's key
        key = "" if limit is not None and limit[:2] == rate[:2] else f" {rate.label}={rate.key}"
        if left > 0:
            found.append(f"Rate{key}, next token in {_duration(left)}")
        elif outlook.gate == "Rate":
            found.append(f"Rate{key}, a token is there")
    if outlook.before:
        found.append(f"{_ordinal(outlook.before + 1)} of its owner")
    if outlook.owners_before:
        found.append(f"{outlook.owners_before} owner{'s' if outlook.owners_before > 1 else ''} before its own")
    return "; then ".join(found) or "next in turn, waits for a worker with a free place"


def _names(outlook: Outlook) -> str:
    named, more = outlook.holders[:_NAMED], outlook.used - _NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _told(wait: Wait) -> str:
    until = "" if wait.deadline is None else f" until {_moment(wait.deadline)}"
    if wait.kind == "sleep":
        return f"its sleep{until}"
    if wait.kind == "retry":
        return f"its next attempt{until}"
    kind = {"interrupt": "an answer to interrupt"}.get(wait.kind, wait.kind)
    return f"{kind} {wait.name}{until}"


def _duration(seconds: float) -> str:
    """
    >>> [_duration(seconds) for seconds in (0.04, 0.4, 41.3, 125, 7300, 180000)]
    ['0.1 s', '0.4 s', '41 s', '2 min 5 s', '2 h 1 min', '2 d 2 h']
    """
    if seconds < 10:
        return f"{max(0.1, seconds):.1f} s"
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole} s"


def _ordinal(number: int) -> str:
    """
    >>> [_ordinal(number) for number in (2, 3, 11, 21, 112)]
    ['2nd', '3rd', '11th', '21st', '112th']
    """
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC)


def _moment(seconds: float) -> str:
    if seconds > _LAST_SECOND:
        return "after the year 9999"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
