"""What stands between a queued run and its start, and which workers there are: plain data for who explains runs.

A store tells facts of one moment; the words are made by the client.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from pyrula.workflows.stamps import LimitStamp, RateStamp

__all__ = ["HOLDERS_TOLD", "LIVE_SECONDS", "Misfit", "Registry", "Served", "Standing", "WorkerEntry", "misfits"]

LIVE_SECONDS: Final = 60.0
"""A worker that hasn't been heard of for so long isn't live."""

HOLDERS_TOLD: Final = 10


@dataclass(frozen=True, slots=True)
class Standing:
    """A run in the store. `since`: when it got its status, None for one that has ended. `now`: the store's time.

    `limit`, `rate`: its stamps; `used` slots of the Limit's key, `holders` some of the runs that have them;
    `next_start`: when the Rate's next token is due, None if it has had its own. `gate`: where it waits, if it does.
    `before`: runs of its owner ahead of it there, up to about a hundred; `owners_before`: owners ahead of its own.
    """

    since: float | None
    now: float
    limit: LimitStamp | None = None
    rate: RateStamp | None = None
    used: int = 0
    holders: tuple[str, ...] = ()
    next_start: float | None = None
    gate: Literal["Limit", "Rate"] | None = None
    before: int = 0
    owners_before: int = 0


class Served(NamedTuple):
    """A workflow of a worker's: bound to `topic`, or None if it executes submitted runs. `gated`: with flow control."""

    name: str
    version: str
    topic: str | None
    gated: bool


class WorkerEntry(NamedTuple):
    """A worker that was heard of within LIVE_SECONDS."""

    worker: str
    served: tuple[Served, ...]


class Misfit(NamedTuple):
    """A workflow that is bound to a topic on one side and has flow control on the other."""

    same_version: bool
    text: str


def misfits(mine: Served, entries: Iterable[WorkerEntry]) -> list[Misfit]:
    """What of the live workers' doesn't go with this."""
    found = []
    for entry in entries:
        for theirs in entry.served:
            bound, gated = (theirs, mine) if mine.topic is None else (mine, theirs)
            if theirs.name != mine.name or bound.topic is None or gated.topic is not None or not gated.gated:
                continue
            here, there = _told(mine), _told(theirs)
            same = mine.version == theirs.version
            way_out = (
                "records are processed as they are consumed: give one of the two another name or version"
                if same
                else "that is well while a deploy is under way"
            )
            text = f"workflow {mine.name!r} {here} here, and {there} in worker {entry.worker}; {way_out}"
            found.append(Misfit(same, text))
    return found


def _told(served: Served) -> str:
    what = "has flow control" if served.topic is None else f"is bound to topic {served.topic!r}"
    return f"{what} (version {served.version!r})"


@runtime_checkable
class Registry(Protocol):
    """Who serves what, across processes."""

    async def enlist(self, worker: str, served: tuple[Served, ...]) -> None:
        """Say that this worker is live and serves these. Again with every heartbeat."""

    async def strike(self, worker: str) -> None:
        """The worker has ended."""

    async def enlisted(self) -> list[WorkerEntry]:
        """The live workers."""
