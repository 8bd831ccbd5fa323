"""How runs went out of a worker's hands: what its stats count, and what its health has to tell of them."""

from collections import Counter, deque
from typing import Final

__all__ = ["EndedRuns"]

# A run whose code doesn't fit its journal is told of for so long, in seconds.
_MISFIT_SECONDS: Final = 60.0


class EndedRuns:
    """Counts by the way out: a status that a run ended in, "parked", "paused", "released", "lost"."""

    def __init__(self) -> None:
        self.claimed = 0
        self.counts: Counter[str] = Counter()
        self._misfits: deque[tuple[float, str, str]] = deque(maxlen=1_000)

    def on_misfit(self, at: float, run_id: str, why: str) -> None:
        """A run was paused since the code here doesn't fit its journal. `at` is monotonic."""
        self._misfits.append((at, run_id, why))

    def misfits(self, now: float) -> str | None:
        """What is to be told of them."""
        while self._misfits and now - self._misfits[0][0] > _MISFIT_SECONDS:
            self._misfits.popleft()
        if not self._misfits:
            return None
        _, run_id, why = self._misfits[-1]
        return (
            f"runs paused in the last minute, since the code here doesn't fit their journals: {len(self._misfits)}; "
            f"the last is {run_id}: {why.partition(chr(10))[0]}"
        )
