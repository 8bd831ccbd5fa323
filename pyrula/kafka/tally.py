"""Log lines that tell of every kind of trouble and yet don't drown a log when everything is in trouble.

Reads no clock: the time is an argument.
"""

import logging

log = logging.getLogger("pyrula.kafka")

# So many lines a minute are written as they come; of what follows only the number, when the minute is over.
LINES = 10
MINUTE = 60.0


class Tally:
    """Warnings of one kind of one binding, such as its dead letters."""

    __slots__ = ("_count", "_last", "_started", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = float("-inf")
        self._count = 0
        self._last = ""

    def tell(self, text: str, now: float) -> None:
        """Warn of one case, or count it. `now` is monotonic seconds."""
        if now - self._started >= MINUTE:
            self.flush()
            self._started = now
        self._count += 1
        if self._count <= LINES:
            log.warning("%s", text)
        else:
            self._last = text

    def flush(self) -> None:
        """Warn of what was only counted."""
        if self._count > LINES:
            log.warning("%d more %s within a minute; the last: %s", self._count - LINES, self._what, self._last)
        self._count = 0
