"""Listing submitted runs: what is asked, what is told. Plain data and pure rules; both stores answer alike.

Rules: runs are in the order of their ids, the newest first (an id begins with the millisecond in which it was made).
No listing walks the keyspace: a store keeps an index while runs change, and drops a run from it with its retention.
What the index can't tell apart is filtered afterwards, in bounded steps, so a page may be short and have a next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pyrula.workflows.store.ids import RunId, first_id
from pyrula.workflows.store.lifecycle import RunStatus

__all__ = ["MAX_EXAMINED", "MAX_LIMIT", "Counts", "Line", "Page", "RunLister", "Wanted", "order_after", "order_of"]

MAX_LIMIT: Final = 1000
MAX_EXAMINED: Final = 2000
"""How many runs one page looks at before it is given back as it is."""


class Line(NamedTuple):
    """What a listing tells of a run. `run_id` is the live link's."""

    run_id: str
    name: str
    version: str | None
    owner: str
    status: RunStatus
    attempt: int
    created_at: float
    finished_at: float | None
    worker: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs, and how many at most. None: whatever it is. `since`: ids made at that time or later, in seconds since
    1970. `after`: go on behind the run of this id."""

    name: str | None = None
    statuses: frozenset[RunStatus] | None = None
    owner: str | None = None
    since: float | None = None
    limit: int = 50
    after: str | None = None

    def fits(self, line: Line) -> bool:
        return (
            (self.name is None or line.name == self.name)
            and (self.statuses is None or line.status in self.statuses)
            and (self.owner is None or line.owner == self.owner)
        )

    @property
    def floor(self) -> str:
        """The lowest id wanted, without its shard."""
        return "" if self.since is None else first_id(self.since)


class Page(NamedTuple):
    """`after`: where the next page goes on; None if this is the last."""

    runs: tuple[Line, ...]
    after: str | None


class Counts(NamedTuple):
    """How many runs are in each status (those with none are missing), and since when the one has been queued that has
    been queued longest, in seconds since 1970."""

    by_status: Mapping[RunStatus, int]
    queued_since: float | None


class RunLister(Protocol):
    """Who can list runs."""

    async def list_runs(self, wanted: Wanted) -> Page:
        """The newest runs first. A run whose status changes meanwhile may be missing."""

    async def count_runs(self, name: str | None = None) -> Counts:
        """Of one workflow, or of all."""


def order_of(chain: str) -> tuple[str, int]:
    """Chains compare by this: by when the id was made, then by shard."""
    shard, _, rest = chain.partition("-")
    return rest, int(shard, 16)


def order_after(wanted: Wanted) -> tuple[str, int] | None:
    """What a run must be below. Raises RunNotFoundError if `after` is no id."""
    return None if wanted.after is None else order_of(RunId.parse(wanted.after).chain)
