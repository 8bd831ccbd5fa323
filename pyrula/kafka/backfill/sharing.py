"""Who gives one of its partitions to a worker of the same backfill that has none: what one worker knows and decides.

Pure: what stands in the store and the time come in. Rules: a worker asks only while it has none; whoever has the most
(by name, where several have as many) gives its last one, if it has another. What was given is left alone until somebody
has taken something, or for a lease, since whoever asked may have died.
"""

from collections.abc import Collection
from math import inf

from pyrula.workflows.store.backfills import StoredBackfill, StoredPart

__all__ = ["Sharing"]


class Sharing:
    """What a worker gives, asks for and leaves alone; times are monotonic seconds."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._gave = -inf
        self._failed = -inf
        self.lease = 0.0

    def to_give(self, stored: StoredBackfill, mine: Collection[int], now: float) -> int | None:
        """The partition of `mine` that is to be let go, if any."""
        if not stored.wish:
            self._gave = -inf
        if stored.wish in ("", self._worker) or not self.may_take(now):
            return None
        if any(part.hold is not None and part.hold.worker == stored.wish for part in stored.parts):
            return None
        rich = _richest(stored, stored.wish)
        return rich.number if rich is not None and rich.number in mine else None

    def to_ask_for(self, stored: StoredBackfill, now: float) -> int | None:
        """A partition that another worker may spare. Not soon after one couldn't be opened here."""
        rich = _richest(stored, self._worker)
        return rich.number if rich is not None and now - self._failed > self.lease else None

    def may_take(self, now: float) -> bool:
        """Whether a partition that nobody has isn't meant for somebody else."""
        return now - self._gave > self.lease

    def on_given(self, now: float) -> None:
        self._gave = now

    def on_failed(self, now: float) -> None:
        """A partition couldn't be opened here."""
        self._failed = now


def _richest(stored: StoredBackfill, asking: str) -> StoredPart | None:
    held: dict[str, list[StoredPart]] = {}
    for part in stored.parts:
        if part.hold is not None and part.state == "open" and part.hold.worker != asking:
            held.setdefault(part.hold.worker, []).append(part)
    worker = max(held, key=lambda worker: (len(held[worker]), worker), default=None)
    return held[worker][-1] if worker is not None and len(held[worker]) > 1 else None
