"""Blame for deaths: which record may have killed the processes that ran it.

A process killed by a record can't be told from one killed by hand, so blame needs evidence. It is gathered in *marks*,
rows of the partition's journal that say which records were in progress. The rules:

- After `CAREFUL_AFTER` claims in a row that found the partition still held, with no commit that moved on in between, it
  is *careful*: at most `CAREFUL_AT_ONCE` of its records are in progress, each only once its mark is durable.
- A death is charged to the marked records alone, and all charges are dropped when the record's journal has grown since
  its mark: it gets further.
- A record charged with `ALONE_AFTER` deaths runs with nothing beside it in the process, and its mark says so. Only
  deaths while alone condemn it, `CONDEMNED_AFTER` of them: one may be a kill that happened to come then.

Pure: no I/O, no clock.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.replay.journal import Entry, decode_row, encode_row
from pyrula.workflows.store.port import Claim, Row

CAREFUL_AFTER = 2
CAREFUL_AT_ONCE = 16
ALONE_AFTER = 3
CONDEMNED_AFTER = 2

# The index of a mark's row: below those of the run's own rows, which it is no part of.
MARK_INDEX = -1

Running = Literal["", "beside", "alone"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What one record is charged with. `running`: it is in progress, so a death of the process would be charged to it;
    `journaled` is the index of its next journal row then."""

    deaths: int = 0
    alone: int = 0
    running: Running = ""
    journaled: int = 0

    @property
    def needs_solitude(self) -> bool:
        return self.deaths >= ALONE_AFTER

    @property
    def condemned(self) -> bool:
        return self.alone >= CONDEMNED_AFTER

    def charged(self, journaled: int) -> "Mark":
        """After the process that it was in progress in has died; `journaled` as its journal stands now."""
        if not self.running:
            return self
        if journaled > self.journaled:
            return Mark()
        if self.running == "alone":
            return replace(self, alone=self.alone + 1, running="")
        return replace(self, deaths=self.deaths + 1, running="")

    def row(self, fingerprint: str | None) -> bytes:
        """As it is stored; nothing where there is nothing to say."""
        if self == Mark():
            return b""
        value = dumps([self.deaths, self.alone, self.running, self.journaled])
        return encode_row(Entry("mark", "", "", "", None, None, value), fingerprint)


def read_mark(data: bytes) -> tuple[Mark, str | None]:
    """A stored mark, and the fingerprint of the record it is of."""
    entry, fingerprint = decode_row(data)
    deaths, alone, running, journaled = loads(entry.value or b"")
    return Mark(deaths, alone, running, journaled), fingerprint


class Marks:
    """The marks of one partition during one assignment. `changed` are rows to be written at its start: what the claim
    has charged, and that nothing is in progress."""

    __slots__ = ("_charged", "careful", "changed")

    def __init__(self, *, careful: bool, charged: Mapping[int, tuple[Mark, str | None]], changed: list[Row]) -> None:
        self.careful = careful
        self.changed = changed
        self._charged = dict(charged)

    def room(self, in_flight: int) -> int:
        """How many more records may start."""
        return max(0, CAREFUL_AT_ONCE - in_flight) if self.careful else sys.maxsize

    def of(self, offset: int, fingerprint: str) -> Mark:
        """What the record is charged with; a mark of another log's record at this offset doesn't count."""
        mark, of = self._charged.get(offset, (Mark(), fingerprint))
        return mark if of == fingerprint else Mark()

    def concerns(self, offset: int) -> bool:
        """Whether the record starts only after its mark is written."""
        return self.careful or offset in self._charged

    @property
    def charged(self) -> int:
        """How many records are charged with anything."""
        return len(self._charged)

    def moved_on(self, below: int) -> "Marks | None":
        """A commit moved on to `below`, so the partition isn't careful any more; None when nobody is charged either."""
        self.careful = False
        for offset in [offset for offset in self._charged if offset < below]:
            del self._charged[offset]
        return self if self._charged else None


def read_marks(claim: Claim) -> tuple[Marks | None, list[Row]]:
    """The marks that a claim found, charged if the former holder died, and the rows that are the runs' own."""
    marked = {row.position: row.data for row in claim.rows if row.index == MARK_INDEX}
    careful = claim.crashes >= CAREFUL_AFTER
    if not marked:
        return (Marks(careful=True, charged={}, changed=[]) if careful else None), claim.rows
    rows = [row for row in claim.rows if row.index != MARK_INDEX]
    journaled = _journaled(rows)
    charged: dict[int, tuple[Mark, str | None]] = {}
    changed: list[Row] = []
    for position, data in marked.items():
        before, fingerprint = read_mark(data)
        mark = before.charged(journaled.get(position, 0)) if claim.crashed else replace(before, running="")
        if mark.deaths or mark.alone:
            charged[position] = mark, fingerprint
        if mark != before:
            kept = mark if position in charged else Mark()
            changed.append(Row(position, MARK_INDEX, kept.row(fingerprint)))
    return Marks(careful=careful, charged=charged, changed=changed), rows


def _journaled(rows: Iterable[Row]) -> dict[int, int]:
    """The index of each position's next row."""
    following: dict[int, int] = {}
    for row in rows:
        following[row.position] = max(following.get(row.position, 0), row.index + 1)
    return following
