"""What the guarantees are checked with: the lines that a counting worker's steps leave outside the store."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One start or end of a step. `offset` and `partition` are of the run's record."""

    run: str
    partition: int
    offset: int
    key: str
    step: int
    pid: int
    what: str
    at: float


def read_lines(log: Path) -> list[Line]:
    """All lines in the order they were written; a line that a kill cut short is left out."""
    lines = []
    for text in log.read_text().splitlines() if log.exists() else ():
        fields = text.split(" ")
        if len(fields) != 6:
            continue
        run, key, number, pid, what, at = fields
        _, _, partition, offset = run.split(".")[0].rsplit("-", 3)
        lines.append(Line(run, int(partition), int(offset), key, int(number), int(pid), what, float(at)))
    return lines


def completed(lines: Iterable[Line], last_step: int = 3) -> set[tuple[int, int]]:
    """The records (partition, offset) whose last step ended."""
    return {(line.partition, line.offset) for line in lines if line.step == last_step and line.what == "end"}


def repeated_steps(lines: Iterable[Line]) -> dict[tuple[str, int], int]:
    """How often each step (run, number) was started beyond the first time."""
    starts: dict[tuple[str, int], int] = defaultdict(int)
    for line in lines:
        if line.what == "start":
            starts[line.run, line.step] += 1
    return {name: count - 1 for name, count in starts.items() if count > 1}


def out_of_order(lines: Iterable[Line], last_step: int = 3) -> list[str]:
    """Keys of which a record first completed before an earlier one had."""
    firsts: dict[tuple[int, int], str] = {}
    order: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        record = (line.partition, line.offset)
        if line.step == last_step and line.what == "end" and record not in firsts:
            firsts[record] = line.key
            order[line.key].append(line.offset)
    return [key for key, offsets in order.items() if offsets != sorted(offsets)]


def overlapping(lines: Iterable[Line]) -> list[str]:
    """Keys of which two steps of different records were in progress at once in one process."""
    busy: dict[tuple[int, str], Line] = {}
    found = []
    for line in lines:
        name = (line.pid, line.key)
        if line.what == "start":
            if name in busy and busy[name].run != line.run:
                found.append(line.key)
            busy[name] = line
        elif name in busy:
            del busy[name]
    return found


def done(lines: Iterable[Line]) -> dict[tuple[int, int], int]:
    """How often each record's body came to its end."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for line in lines:
        if line.what.startswith("done/"):
            counts[line.partition, line.offset] += 1
    return dict(counts)


def skipped(lines: Iterable[Line]) -> list[tuple[int, int, int]]:
    """(process, partition, offset) of the first body after an assignment, where one before it was unfinished."""
    ended: dict[int, set[int]] = defaultdict(set)
    lowest: dict[int, int] = defaultdict(int)
    fresh: set[tuple[int, int]] = set()
    found = []
    for line in lines:
        partition, offset = line.partition, line.offset
        if line.what.startswith("assigned/"):
            fresh = {one for one in fresh if one[0] != line.pid}
        elif line.what == "begin" and (line.pid, partition) not in fresh:
            fresh.add((line.pid, partition))
            if offset > lowest[partition]:
                found.append((line.pid, partition, offset))
        elif line.what.startswith("done/"):
            ended[partition].add(offset)
            while lowest[partition] in ended[partition]:
                ended[partition].remove(lowest[partition])
                lowest[partition] += 1
    return found


def overlaps(lines: Iterable[Line]) -> dict[str, int]:
    """The most steps of a key that were ever in progress at once, whatever the process; keys with one are left out."""
    now: dict[str, int] = defaultdict(int)
    most: dict[str, int] = {}
    for line in _steps(lines):
        if line.what == "start":
            now[line.key] += 1
            if now[line.key] > 1:
                most[line.key] = max(most.get(line.key, 0), now[line.key])
        elif line.what in ("end", "cut"):
            now[line.key] -= 1
    return most


def _steps(lines: Iterable[Line]) -> Iterator[Line]:
    return (line for line in lines if line.step > 0)
