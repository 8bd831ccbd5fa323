"""A backfill's courtesy towards the live records it shares a loop with: it slows down when the loop is late.

How late the loop comes to what is due is what a live record waits at each of its turns, whatever the cause: bodies that
take processor time, or a machine that has none to spare. So it is measured, and while it is more than a little the
backfill rests between its portions, longer and longer; when it is less again, shorter and shorter.
"""

import asyncio

__all__ = ["Courtesy"]

TICK_SECONDS = 0.01
# The average lateness that live records may well put up with.
LATE_SECONDS = 0.0015
# Of the average: so much is the latest sample's, so that it tells of the last tenth of a second.
WEIGHT = 0.1
SHORTEST, LONGEST = 0.005, 0.5
SLOWER, FASTER = 1.3, 0.7
# Records handed over in one go: a live record waits for one portion at most.
PORTION = 50


class Courtesy:
    """Kept from `start` to `stop` in the running loop; what it would do without a loop is in `observe` and `rest`."""

    def __init__(self) -> None:
        self.late = 0.0
        self._rest = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure from now on."""
        self._tick(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self.observe(loop.time() - self._timer.when())
        self._timer = loop.call_later(TICK_SECONDS, self._tick, loop)

    def observe(self, late: float) -> None:
        """The loop was so many seconds late."""
        self.late += (late - self.late) * WEIGHT

    def rest(self) -> float:
        """After a portion: seconds until the next one."""
        if self.late > LATE_SECONDS:
            self._rest = min(LONGEST, max(SHORTEST, self._rest * SLOWER))
        else:
            self._rest *= FASTER
            if self._rest < SHORTEST / 2:
                self._rest = 0.0
        return self._rest
