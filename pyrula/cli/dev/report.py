"""What a dev session prints while it runs: a line a record where they are few, else a progress bar.

Needs no library: the bar is drawn where standard output is a terminal; elsewhere it is a line every tenth.
"""

import sys
from typing import TextIO

from pyrula.cli.drawn import bar
from pyrula.kafka.events import RecordEvent

__all__ = ["MANY", "Bar", "line_of", "short", "text_of"]

# From this many records on, a bar instead of a line each.
MANY = 100

_WIDTH = 30
_MARKS = {
    "completed": "completed",
    "dead_lettered": "dead-lettered",
    "skipped": "skipped",
    "cancelled": "cancelled",
    "retrying": "tried again",
    "stopped": "STOPPED",
    "blocked": "BLOCKED",
    "paused": "PAUSED",
    "lost": "LOST",
}


def short(text: str, limit: int = 100) -> str:
    """The text on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def text_of(key: bytes | None) -> str:
    """A record's key, or nothing."""
    return "" if key is None else key.decode("utf-8", "replace")


def line_of(event: RecordEvent, several: bool) -> str:
    """What became of one record, on one line. `several` bindings: says which."""
    where = f"{event.topic}/{event.partition}@{event.offset}"
    parts = [f"{where:<18} {short(text_of(event.key), 24):<16} {_MARKS[event.kind]:<14}"]
    if several:
        parts.insert(0, f"{event.binding:<20}")
    if event.error:
        parts.append(short(event.error, 110))
    elif event.kind == "completed":
        parts.append(f"{event.seconds * 1000:7.1f} ms" + (f"  attempt {event.attempt}" if event.attempt > 1 else ""))
    return " ".join(parts).rstrip()


class Bar:
    """Progress over a number of records that may still grow."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._drawn = self._stream.isatty()
        self._tenth = 0
        self._length = 0

    def show(self, done: int, total: int, rate: float) -> None:
        """Draw `done` of `total`, at `rate` records a second."""
        share = done / total if total else 0.0
        if not self._drawn:
            tenth = int(share * 10)
            if tenth > self._tenth:
                self._tenth = tenth
                print(
                    f"{done:,} of {total:,} records ({int(share * 100)}%), {rate:,.0f}/s", file=self._stream, flush=True
                )
            return
        text = f"{bar(share, _WIDTH, self._stream)} {done:,} of {total:,} ({int(share * 100)}%)  {rate:,.0f}/s"
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)

    def end(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._drawn and self._length:
            self._stream.write("\n")
            self._stream.flush()
            self._length = 0
