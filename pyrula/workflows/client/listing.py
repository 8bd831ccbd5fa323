"""`client.list` and `client.counts`: which runs there are, told from the store's index without a walk over its keys."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyrula.workflows.client.refs import checked_text
from pyrula.workflows.store.lifecycle import PARKED, TERMINAL, RunStatus
from pyrula.workflows.store.listing import MAX_LIMIT, Counts, Line, Page, RunLister, Wanted
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["RunCounts", "RunPage", "RunSummary", "Statuses", "count_runs", "list_runs"]

Statuses = str | Iterable[str] | None
"""A status, or several; "parked", "finished" and "unfinished" stand for what their names say."""

_GROUPS: Final[dict[str, frozenset[RunStatus]]] = {
    "parked": PARKED,
    "finished": TERMINAL,
    "unfinished": frozenset(RunStatus) - TERMINAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list. `run_id` is its live link's; `worker` is who executes it."""

    run_id: str
    name: str
    version: str | None
    owner: str
    status: RunStatus
    attempt: int
    created_at: datetime
    finished_at: datetime | None
    worker: str | None

    @property
    def finished(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, the newest first. `cursor` gets the next page, None: this is the last. A page that has one may be short."""

    runs: tuple[RunSummary, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[RunSummary]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs are in each status; all statuses are there. Finished ones count until their retention is over.

    `oldest_queued`: for how long the run has been queued that waits longest for a worker; None if none is queued.
    """

    by_status: Mapping[RunStatus, int]
    oldest_queued: timedelta | None

    @property
    def total(self) -> int:
        return sum(self.by_status.values())

    @property
    def unfinished(self) -> int:
        return sum(count for status, count in self.by_status.items() if status not in TERMINAL)


async def list_runs(
    store: RunLister,
    now: float,
    *,
    name: str | None,
    status: Statuses,
    owner: str | None,
    since: datetime | timedelta | None,
    limit: int,
    cursor: str | None,
) -> RunPage:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be a number from 1 to {MAX_LIMIT}, not {limit!r:.100}")
    wanted = Wanted(
        name=None if name is None else checked_text(name, "a workflow's name"),
        statuses=_statuses(status),
        owner=checked_text(owner, "owner") if owner else owner,
        since=_seconds(since, now),
        limit=limit,
        after=cursor,
    )
    try:
        page: Page = await store.list_runs(wanted)
    except RunNotFoundError:
        raise ValueError(f"cursor {cursor!r:.100} is none that a page has given") from None
    return RunPage(tuple(map(_summary, page.runs)), page.after)


async def count_runs(store: RunLister, now: float, *, name: str | None) -> RunCounts:
    counts: Counts = await store.count_runs(None if name is None else checked_text(name, "a workflow's name"))
    since = counts.queued_since
    return RunCounts(
        {status: counts.by_status.get(status, 0) for status in RunStatus},
        None if since is None else timedelta(seconds=max(0.0, now - since)),
    )


def _statuses(status: Statuses) -> frozenset[RunStatus] | None:
    if status is None:
        return None
    found: set[RunStatus] = set()
    for each in [status] if isinstance(status, str) else status:
        if each in _GROUPS:
            found |= _GROUPS[each]
            continue
        try:
            found.add(RunStatus(each))
        except ValueError:
            known = ", ".join([*RunStatus, *_GROUPS])
            raise ValueError(f"status {each!r:.100} is none of {known}") from None
    return frozenset(found)


def _seconds(since: datetime | timedelta | None, now: float) -> float | None:
    if since is None:
        return None
    if isinstance(since, timedelta):
        return now - since.total_seconds()
    if not isinstance(since, datetime) or since.tzinfo is None:
        raise ValueError(
            f"since must be a datetime with a time zone, or how long ago as a timedelta, not {since!r:.100}"
        )
    return since.timestamp()


def _summary(line: Line) -> RunSummary:
    return RunSummary(
        run_id=line.run_id,
        name=line.name,
        version=line.version,
        owner=line.owner,
        status=line.status,
        attempt=line.attempt,
        created_at=datetime.fromtimestamp(line.created_at, UTC),
        finished_at=None if line.finished_at is None else datetime.fromtimestamp(line.finished_at, UTC),
        worker=line.worker,
    )
