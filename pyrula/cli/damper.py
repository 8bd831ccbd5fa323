"""Keeps a client's repeated complaints from burying what Pyrula says: in an outage aiokafka logs ten lines a second."""

import logging
import time
from collections.abc import Callable

__all__ = ["Damper"]

LINES = 3
SECONDS = 30.0


class Damper(logging.Filter):
    """For a handler: of the lines of one kind that aiokafka writes, some pass in each half minute.

    Lines are of one kind if they come from the same statement. Nothing else is touched, and at DEBUG nothing at all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("aiokafka") or logging.getLogger("aiokafka").isEnabledFor(logging.DEBUG):
            return True
        kind, now = (record.pathname, record.lineno), self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= SECONDS:
            if count > LINES:
                record.msg = f"{record.getMessage()} ({count - LINES} more like it in the last {now - since:.0f} s)"
                record.args = None
            since, count = now, 0
        self._kinds[kind] = since, count + 1
        return count < LINES
