"""Running the run of a dead-lettered record once more: what a store takes and answers.

The end of a failed run that is kept may hold its record and the journal that a further round begins with. A redrive
makes it a run in the store, like one that was handed over, but of no lane: it runs beside that of its key. Rules: of
two redrives at the same time one is refused; one that completed is never redriven; what was kept goes before what a
letter says; the run's metadata count its redrives.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from pyrula.workflows.store.refusals import RunNotFoundError, TransitionRefused

__all__ = [
    "KEPT_JOURNAL",
    "KEPT_RECORD",
    "Letter",
    "RedriveStore",
    "refused_redrive",
    "served_by_address",
]

KEPT_RECORD: Final = 64 * 1024
"""A record of more bytes isn't kept with the end of its run."""

KEPT_JOURNAL: Final = 1 << 20
"""Nor is a journal of about so many."""


class Letter(NamedTuple):
    """What a dead letter holds of its run: what it is executed from, and the journal that it goes on with."""

    params: bytes
    rows: Sequence[tuple[int, bytes]] = ()


class RedriveStore(Protocol):
    """The client's side."""

    async def redrive(self, run_id: str, letter: Letter | None = None) -> bool:
        """Queue the failed run of a record once more. Whether it goes on from a journal, else from its beginning.

        `letter` stands in for what the store hasn't kept. TransitionRefused for a run that isn't failed or cancelled,
        or of which too little is kept; RunNotFoundError if nothing is."""


def served_by_address(address: str) -> str:
    """The name under which runs of an address are claimed from the store."""
    return f"@{address.rpartition('-')[0]}"


def refused_redrive(run_id: str, verdict: str, status: str) -> Exception:
    """Why a redrive isn't done: `verdict` is "refused", "bare" or "missing"."""
    if verdict == "missing":
        return RunNotFoundError(
            run_id, "nothing is kept of its end: redrive its dead letter instead (pyrula redrive, client.redrive)"
        )
    text = f"is {status}; only a failed or cancelled run can be retried"
    if verdict == "bare":
        text = (
            f"is {status}, but its record isn't kept: redrive its dead letter instead (pyrula redrive, client.redrive)"
        )
    elif status == "completed":
        text = "is completed, so there is nothing to redrive"
    return TransitionRefused(run_id, status, text)
