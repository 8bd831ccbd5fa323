"""Which workers there are and what they serve, across processes; and what of it doesn't go together.

A workflow is bound to a topic, or has flow control, in all processes alike.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, runtime_checkable

__all__ = ["LIVE_SECONDS", "Enlisted", "Misfit", "Registry", "WorkerEntry", "misfits"]

LIVE_SECONDS: Final = 60.0
"""A worker that hasn't been heard of for so long isn't live."""


class Enlisted(NamedTuple):
    """A workflow of a worker's: bound to `topic`, or None if it executes submitted runs. `gated`: with flow control."""

    name: str
    version: str
    topic: str | None
    gated: bool


class WorkerEntry(NamedTuple):
    """A worker that was heard of within LIVE_SECONDS."""

    worker: str
    served: tuple[Enlisted, ...]


class Misfit(NamedTuple):
    """A workflow that is bound to a topic on one side and has flow control on the other."""

    same_version: bool
    text: str


def misfits(mine: Enlisted, entries: Iterable[WorkerEntry]) -> list[Misfit]:
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


def _told(served: Enlisted) -> str:
    what = "has flow control" if served.topic is None else f"is bound to topic {served.topic!r}"
    return f"{what} (version {served.version!r})"


@runtime_checkable
class Registry(Protocol):
    """Who serves what, across processes."""

    async def enlist(self, worker: str, served: tuple[Enlisted, ...]) -> None:
        """Say that this worker is live and serves these. Again with every heartbeat."""

    async def strike(self, worker: str) -> None:
        """The worker has ended."""

    async def enlisted(self) -> list[WorkerEntry]:
        """The live workers."""
