"""Log lines that tell of every kind of trouble and yet don't drown a log when everything is in trouble.

Reads no clock: the time is an argument.
"""

import logging

log = logging.getLogger("pyrula.kafka")

# So many lines a minute are written as they come; of what follows only the number, when the minute is over.
LINES = 10
MINUTE = 60.0


class Tally:
    """Lines of one kind of one binding, such as its dead letters: warnings, unless `level` says otherwise."""

    __slots__ = ("_count", "_last", "_level", "_log", "_started", "_told", "_what")

    def __init__(self, what: str, level: int = logging.WARNING, logger: logging.Logger = log) -> None:
        self._what = what
        self._level = level
        self._log = logger
        self._started = float("-inf")
        self._count = 0
        self._last = ""
        self._told: set[str] = set()

    def tell(self, text: str, now: float, advice: str = "") -> None:
        """Write one case, or count it. `now` is monotonic seconds. The `advice` that follows the text is written once a
        minute."""
        if now - self._started >= MINUTE:
            self.flush()
            self._started = now
        self._count += 1
        if self._count > LINES:
            self._last = text
        elif advice and advice not in self._told:
            self._told.add(advice)
            self._log.log(self._level, "%s\n%s", text, advice)
        else:
            self._log.log(self._level, "%s", text)

    def flush(self) -> None:
        """Tell of what was only counted."""
        if self._count > LINES:
            self._log.log(
                self._level, "%d more %s within a minute; the last: %s", self._count - LINES, self._what, self._last
            )
        self._count = 0
        self._told.clear()
