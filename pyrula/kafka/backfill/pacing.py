"""How fast a backfill's records may start: so many a second, in small portions. Time comes in as an argument."""

__all__ = ["Pacer"]

# What was not used is forgotten after so long, so that a pause is not followed by a flood.
BURST_SECONDS = 0.1


class Pacer:
    """A rate kept as the time when the next record is due. Without a rate nothing ever waits.

    >>> pacer = Pacer(10.0)
    >>> pacer.spend(2, now=0.0), pacer.spend(1, now=0.0)
    (0.1, 0.2)
    """

    __slots__ = ("_due", "rate")

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._due = float("-inf")

    def portion(self, most: int) -> int:
        """How many records to start at once: up to a tenth of a second's, at least one."""
        return most if self.rate is None else max(1, min(most, int(self.rate * BURST_SECONDS)))

    def spend(self, count: int, now: float) -> float:
        """So many start now. Seconds until the next may."""
        if self.rate is None or not count:
            return 0.0
        self._due = max(self._due, now - BURST_SECONDS) + count / self.rate
        return max(0.0, self._due - now)
