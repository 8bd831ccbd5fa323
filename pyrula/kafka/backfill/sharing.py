"""Who gives one of its partitions to a worker of the same backfill that has fewer: what one worker knows and decides.

Pure: what stands in the store and the time come in. Rules: a worker asks if nothing is free and another has two more
than it, so that both have as many afterwards or nearly; whoever has the most (by name, where several have as many)
gives its last one. What was given is left alone by its giver until somebody has taken something, and by others that
have more than who asked; for a lease only, since whoever asked may have died.
"""

from collections.abc import Collection
from math import inf

from pyrula.workflows.store.backfills import StoredBackfill, StoredPart

__all__ = ["Sharing"]


class Sharing:
    """What a worker gives, asks for and leaves alone; times are monotonic seconds."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._given = -1
        self._gave = -inf
        self._failed = -inf
        self._wish = ""
        self._wished = -inf
        self.lease = 0.0

    def to_give(self, stored: StoredBackfill, mine: Collection[int], now: float) -> int | None:
        """The partition of `mine` that is to be let go, if any."""
        self._see(stored, now)
        if stored.wish in ("", self._worker) or now - self._gave <= self.lease:
            return None
        if any(part.hold is None and part.state == "open" for part in stored.parts):
            return None  # that is there for who asked
        spare = _to_spare(stored, stored.wish)
        return spare.number if spare is not None and spare.number in mine else None

    def to_ask_for(self, stored: StoredBackfill, now: float) -> int | None:
        """A partition that another worker may spare. Not soon after one couldn't be opened here."""
        spare = _to_spare(stored, self._worker)
        return spare.number if spare is not None and now - self._failed > self.lease else None

    def may_take(self, stored: StoredBackfill, now: float) -> bool:
        """Whether a partition that nobody has isn't meant for somebody else."""
        self._see(stored, now)
        if now - self._gave <= self.lease:
            return False
        held = _held(stored)
        poorer = len(held.get(stored.wish, ())) < len(held.get(self._worker, ()))
        return not (stored.wish and poorer) or now - self._wished > self.lease

    def _see(self, stored: StoredBackfill, now: float) -> None:
        if stored.wish != self._wish:
            self._wish, self._wished = stored.wish, now
        others = (part.number for part in stored.parts if part.hold is not None and part.hold.worker != self._worker)
        if not stored.wish or self._given in others:
            self._gave = -inf

    def on_given(self, number: int, now: float) -> None:
        """That partition was let go."""
        self._given, self._gave = number, now

    def on_failed(self, now: float) -> None:
        """A partition couldn't be opened here."""
        self._failed = now


def _held(stored: StoredBackfill) -> dict[str, list[StoredPart]]:
    """What each worker has still to do."""
    held: dict[str, list[StoredPart]] = {}
    for part in stored.parts:
        if part.hold is not None and part.state == "open":
            held.setdefault(part.hold.worker, []).append(part)
    return held


def _to_spare(stored: StoredBackfill, asking: str) -> StoredPart | None:
    held = _held(stored)
    has = len(held.pop(asking, ()))
    worker = max(held, key=lambda worker: (len(held[worker]), worker), default=None)
    return held[worker][-1] if worker is not None and len(held[worker]) >= has + 2 else None
