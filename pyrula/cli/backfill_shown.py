"""What `pyrula backfill` prints: a bar for each partition while it runs, and the report in the end.

Needs no library: bars are drawn where the stream is a terminal; elsewhere it is a line now and then. The rate and the
time left are this process's own reckoning, from how far the reports have come since it began to look.
"""

import sys
from collections import deque
from time import monotonic
from typing import TextIO

from pyrula.cli.dev.report import short
from pyrula.cli.drawn import bar
from pyrula.workflows import BackfillReport, PartitionReport

__all__ = ["Bars", "Speed", "line_of_status", "lines_of", "time_text"]

_WIDTH = 24
# More bars than this don't fit on a screen: the rest is told in one line.
MOST_BARS = 24
# The rate is that of the last so many seconds.
SPAN_SECONDS = 10.0
PLAIN_SECONDS = 5.0


class Speed:
    """How fast something that only grows has grown lately, in units a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, count: int, now: float) -> float:
        """With what it is now."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[1][0] >= SPAN_SECONDS:
            self._seen.popleft()
        began, first = self._seen[0]
        return (count - first) / (now - began) if now > began else 0.0


def time_text(seconds: float) -> str:
    """A duration for people.

    >>> time_text(75), time_text(7_400)
    ('1m15s', '2h03m')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


class Bars:
    """Draws reports as they come."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._drawn = self._stream.isatty()
        self._speeds: dict[int, Speed] = {}
        self._total = Speed()
        self._lines = 0
        self._told = float("-inf")

    def show(self, report: BackfillReport, now: float | None = None) -> None:
        """Draw how far it is; `now` is monotonic seconds."""
        at = monotonic() if now is None else now
        rates = {
            one.partition: self._speeds.setdefault(one.partition, Speed()).rate(one.position, at)
            for one in report.partitions
        }
        total = self._total.rate(report.read, at)
        summary = _summary(report, total, _left(report, rates))
        if not self._drawn:
            if at - self._told >= PLAIN_SECONDS or report.over:
                self._told = at
                print(summary, file=self._stream, flush=True)
            return
        lines = [self._bar(one, rates[one.partition]) for one in report.partitions[:MOST_BARS]]
        if len(report.partitions) > MOST_BARS:
            rest = report.partitions[MOST_BARS:]
            lines.append(f"  and {len(rest)} more, {sum(one.state == 'done' for one in rest)} of them done")
        self._draw([*lines, summary])

    def _bar(self, one: PartitionReport, rate: float) -> str:
        size = one.end - one.start
        share = 1.0 if not size else (one.position - one.start) / size
        left = one.end - one.position
        if one.state == "running":
            state = f"{rate:>9,.0f}/s  {time_text(left / rate) + ' left' if rate > 0 and left else ''}"
        else:
            state = f"{one.state:>11}"
        drawn = bar(share, _WIDTH, self._stream)
        return f"{one.partition:>5} {drawn} {int(share * 100):>3}%  {one.position:,} of {one.end:,}  {state}".rstrip()

    def step_aside(self) -> None:
        """Somebody else is about to write a line: wipe the bars, which are drawn anew below it."""
        if self._lines:
            self._stream.write(f"\x1b[{self._lines}A\x1b[J")
            self._stream.flush()
            self._lines = 0

    def _draw(self, lines: list[str]) -> None:
        """Over what was drawn last."""
        if self._lines:
            self._stream.write(f"\x1b[{self._lines}A")
        for line in lines:
            self._stream.write(f"\r\x1b[2K{line}\n")
        # a report never has fewer lines than the one before, but a first one has no partitions
        self._lines = len(lines)
        self._stream.flush()


def _left(report: BackfillReport, rates: dict[int, float]) -> float | None:
    """Seconds until the last partition is through, at the pace of now; None if it can't be told."""
    left = sum(one.end - one.position for one in report.partitions)
    rate = sum(rates.values())
    return left / rate if rate > 0 and left else None


def _summary(report: BackfillReport, rate: float, left: float | None) -> str:
    done = sum(one.state == "done" for one in report.partitions)
    offsets = sum(one.end - one.start for one in report.partitions)
    passed = sum(one.position - one.start for one in report.partitions)
    share = f"{int(passed / offsets * 100)}%" if offsets else "0%"
    parts = [f"backfill {report.id}: {report.status}"]
    if report.partitions:
        ran = "matched" if report.dry_run else "completed"
        parts.append(f"{done} of {len(report.partitions)} partitions, {share}")
        parts.append(f"{report.read:,} read, {report.matched if report.dry_run else report.completed:,} {ran}")
        if report.failed:
            parts.append(f"{report.failed:,} failed")
        if report.status == "running":
            parts.append(f"{rate:,.0f} records/s" + (f", {time_text(left)} left" if left is not None else ""))
    if report.status == "paused":
        parts.append(f"pyrula backfill MODULE:WORKER resume {report.id} lets it go on")
    return "  ".join(parts)


_COLUMNS = ("partition", "range", "read", "matched", "completed", "failed", "skipped", "first", "last", "")


def lines_of(report: BackfillReport) -> list[str]:
    """The report, line by line."""
    rows = [_COLUMNS, *(_row(one) for one in report.partitions)] if report.partitions else []
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))] if rows else []
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    what = f"dry run of {report.workflow}" if report.dry_run else f"backfill {report.id}: {report.status}"
    took = ""
    if report.started_at is not None and report.finished_at is not None:
        took = f" after {time_text((report.finished_at - report.started_at).total_seconds())}"
    lines.append(f"{what}{took}: {_counts(report)}")
    if not report.read and not report.problem and report.over:
        lines.append(f"nothing in the range: {report.topic} has no records from {report.start} up to {report.end}")
    elif not report.matched and report.read and report.over and report.failed_of is not None:
        lines.append(f"nothing to redrive: {report.topic} has no dead letters of backfill {report.failed_of}")
    elif not report.matched and report.read and report.over:
        lines.append(f"nothing matched: where={report.where} let none of them through")
    if report.problem:
        lines.append(f"it failed: {report.problem}")
        lines.append(f"the same id goes on with it: --id {report.id}")
    lines += [f"partition {one.partition}: {short(one.note, 300)}" for one in report.partitions if one.note]
    if report.failed and not report.dry_run:
        lines.append(
            f"{report.failed:,} dead letters are in {report.dead_letter_topic}, with the header pyrula-backfill: "
            f"{report.id}; to run them once more: pyrula backfill MODULE:WORKER redrive {report.id}"
        )
    return lines


def _counts(report: BackfillReport) -> str:
    told = [f"{report.read:,} read", f"{report.matched:,} {'would run' if report.dry_run else 'matched'}"]
    if not report.dry_run:
        told += [f"{report.completed:,} completed", f"{report.failed:,} failed", f"{report.skipped:,} skipped"]
    if report.undecided:
        told.append(f"{report.undecided:,} not run, since where= could not tell")
    if report.lost:
        told.append(f"{report.lost:,} offsets lost")
    return ", ".join(told)


def _row(one: PartitionReport) -> tuple[str, ...]:
    def place(offset: int | None, at: object) -> str:
        return "-" if offset is None else f"{offset} {at or ''}".rstrip()

    first = None if one.first_time is None else one.first_time.isoformat(timespec="milliseconds")
    last = None if one.last_time is None else one.last_time.isoformat(timespec="milliseconds")
    counts = (one.read, one.matched, one.completed, one.failed, one.skipped)
    return (
        str(one.partition),
        f"{one.start} - {one.end}",
        *(f"{count:,}" for count in counts),
        place(one.first_offset, first),
        place(one.last_offset, last),
        one.state if one.state in ("stuck", "waiting", "running") else "",
    )


def line_of_status(report: BackfillReport) -> str:
    """One backfill among others."""
    created = "" if report.created_at is None else report.created_at.isoformat(timespec="seconds")
    return f"{created}  {report.id}  {report.status:<9}  {report.workflow} {report.topic}  {_counts(report)}"
