"""The replay machine: counts what a body asks for and says what its journal has for it. No I/O, no asyncio, no clock.

Its clock is the number of operations asked for. An entry carries the clock at which it was delivered, the operation's
id, kind and name; together with the order of the entries that is what a replay is checked against. While entries are
left, nothing may execute.
"""

from pyrula.workflows.errors import NonDeterminismError
from pyrula.workflows.replay.journal import Entry, Journal
from pyrula.workflows.replay.mismatch import describe, mismatch

__all__ = ["Machine"]

_CHANGED = "the workflow's code was changed, or what it does depends on something that isn't journaled"


class Machine:
    """One body against one journal.

    `asked` is the clock, `cursor` the next recorded delivery, `left` how many there still are.
    """

    __slots__ = ("asked", "cursor", "journal", "left")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.asked = 0
        self.cursor = 0
        self.left = len(journal.recorded)

    def take_next(self, op: str, kind: str, name: str) -> Entry:
        """For a body of one task: the next entry, which must answer the operation just asked for."""
        entry = self.journal.recorded[self.cursor]
        if entry.op != op or entry.opkind != kind or entry.name != name or entry.clock != self.asked:
            raise self.differs(entry, op, kind, name)
        self.cursor += 1
        self.left -= 1
        return entry

    def differs(self, entry: Entry, op: str, kind: str, name: str) -> NonDeterminismError:
        """The error for an operation asked for where the journal has another."""
        parts = []
        if entry.opkind != kind:
            parts.append(f"kind {entry.opkind!r} -> {kind!r}")
        if entry.name != name:
            parts.append(f"name {entry.name!r} -> {name!r}")
        if entry.op != op:
            parts.append(f"operation id {entry.op!r} -> {op!r}")
        if entry.clock != self.asked:
            parts.append(f"operations asked for {entry.clock} -> {self.asked}")
        return mismatch(entry, self.cursor, describe(kind, name, op), ", ".join(parts), _CHANGED)

    def returned_early(self) -> NonDeterminismError:
        """The error for a body that ended while entries are left."""
        entry = self.journal.recorded[self.cursor]
        return mismatch(
            entry,
            self.cursor,
            f"the body ended after {self.asked} operations",
            f"{self.left} recorded entries were never asked for",
            _CHANGED,
        )
