"""The replay machine: counts what a body asks for and says what its journal has for it. No I/O, no asyncio, no clock.

Its clock is the number of operations asked for. An entry carries the clock at which it was delivered, the operation's
id, kind and name; together with the order of the entries that is what a replay is checked against. While entries are
left, nothing may execute.

A body of one task asks `take_next`: the next entry must answer what it just asked for. With several tasks, operations
wait (`on_asked`, `on_gone`), and `due` says at each settled point which of them is to be delivered.
"""

from pyrula.workflows.errors import NonDeterminismError
from pyrula.workflows.replay.journal import UNASKED, Entry, Journal
from pyrula.workflows.replay.mismatch import CHANGED, PLAIN_AWAITS, describe, mismatch
from pyrula.workflows.replay.operation import Operation

__all__ = ["Machine"]


class Machine:
    """One body against one journal.

    `asked` is the clock, `cursor` the next recorded delivery, `left` how many there still are, `patches` what the body
    was told about changes. With several tasks, `waiting` has what was asked for and not delivered, in order of request.
    """

    __slots__ = ("_given_up", "_last", "asked", "cursor", "journal", "left", "patches", "waiting")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.asked = 0
        self.cursor = 0
        self.left = len(journal.recorded)
        self.patches: dict[str, bool] | None = None

    def begin_again(self) -> None:
        """Another body, against an empty journal. Not if there were entries to replay, or several tasks."""
        self.journal.clear()
        self.asked = 0
        self.patches = None

    waiting: dict[str, Operation]
    _given_up: set[str]
    _last: Operation | None

    def begin_waiting(self) -> None:
        """The body has several tasks from now on."""
        self.waiting = {}
        self._given_up = set()
        self._last = None

    def take_next(self, op: str, kind: str, name: str) -> Entry:
        """For a body of one task: the next entry, which must answer the operation just asked for."""
        entry = self.journal.recorded[self.cursor]
        if entry.op != op or entry.opkind != kind or entry.name != name or entry.clock != self.asked:
            raise self._differs(entry, op, kind, name)
        self.cursor += 1
        self.left -= 1
        return entry

    @property
    def loose(self) -> bool:
        """Whether the next entry may be delivered later than at its clock: plain awaits raced with operations."""
        loose_from = self.journal.loose_from
        return loose_from is not None and self.cursor >= loose_from

    def on_asked(self, operation: Operation) -> None:
        """An operation waits. It was counted in `asked` before."""
        self.waiting[operation.id] = operation
        self._last = operation

    def on_gone(self, operation: Operation) -> None:
        """The body gave the operation up: nothing will be delivered to it."""
        if self.waiting.pop(operation.id, None) is not None and self.left:
            self._given_up.add(operation.id)

    def due(self) -> tuple[Entry, Operation | None] | None:
        """At a settled point, with entries left: the next entry and who gets it, or None while the clock is short.

        Nobody in particular gets an update, a cancel or an abort.

        Raises NonDeterminismError when this body can no longer come to where the entry was delivered.
        """
        entry = self.journal.recorded[self.cursor]
        clock = entry.clock or 0
        if entry.kind in UNASKED:
            if self.asked == clock or (self.asked > clock and self.loose):
                return entry, None
            if self.asked < clock:
                return None
            raise self._error(entry, self._standing(), f"operations asked for {clock} -> {self.asked}", CHANGED)
        operation = self.waiting.get(entry.op)
        if operation is not None and (operation.kind != entry.opkind or operation.name != entry.name):
            raise self._differs(entry, operation.id, operation.kind, operation.name)
        if entry.op in self._given_up:
            raise self._error(
                entry, f"the body gave up waiting for {describe_op(entry)}", "it was given up", PLAIN_AWAITS
            )
        if self.asked == clock or (self.asked > clock and self.loose):
            if operation is not None:
                return entry, operation
            if self.loose:
                return None
        if self.asked < clock:
            return None
        raise self._surplus(entry)

    def take_due(self, operation: Operation | None) -> None:
        """The entry that was due is delivered."""
        if operation is not None:
            del self.waiting[operation.id]
        self.cursor += 1
        self.left -= 1

    def on_delivered(self, operation: Operation) -> None:
        """An operation completed live and is delivered."""
        del self.waiting[operation.id]

    def stuck(self) -> NonDeterminismError:
        """The error for a body that waits for nothing which could bring it to the next entry."""
        entry = self.journal.recorded[self.cursor]
        return self._error(
            entry,
            self._standing(),
            f"operations asked for {entry.clock} -> {self.asked}, and none will follow",
            CHANGED,
        )

    def returned_early(self) -> NonDeterminismError:
        """The error for a body that ended while entries are left."""
        entry = self.journal.recorded[self.cursor]
        attempted = f"the body ended after {self.asked} operations"
        return self._error(entry, attempted, f"{self.left} recorded entries were never asked for", CHANGED)

    def unreadable(self, entry: Entry, error: Exception) -> NonDeterminismError:
        """The error for a recorded value that doesn't fit the step's return annotation any more."""
        return mismatch(
            entry, self.cursor - 1, "the same, declared to return something else", str(error),
            "the step's return annotation was changed", self._python(),
        )  # fmt: skip

    def unheard(self, entry: Entry, reason: str) -> NonDeterminismError:
        """The error for an update, just taken, that the body doesn't take as it did."""
        self.cursor -= 1
        return self._error(entry, self._standing(), reason, CHANGED)

    def _surplus(self, entry: Entry) -> NonDeterminismError:
        difference = f"operations asked for {entry.clock} -> {self.asked}"
        if entry.op not in self.waiting:
            difference = f"{describe_op(entry)} isn't waiting; {difference}"
        return self._error(entry, self._standing(), difference, CHANGED)

    def _differs(self, entry: Entry, op: str, kind: str, name: str) -> NonDeterminismError:
        parts = []
        if entry.opkind != kind:
            parts.append(f"kind {entry.opkind!r} -> {kind!r}")
        if entry.name != name:
            parts.append(f"name {entry.name!r} -> {name!r}")
        if entry.op != op:
            parts.append(f"operation id {entry.op!r} -> {op!r}")
        if entry.clock != self.asked:
            parts.append(f"operations asked for {entry.clock} -> {self.asked}")
        return self._error(entry, describe(kind, name, op), ", ".join(parts), CHANGED)

    def _standing(self) -> str:
        new = [
            op for op in self.waiting.values() if not any(e.op == op.id for e in self.journal.recorded[self.cursor :])
        ]
        waits = ", ".join(str(operation) for operation in (new or list(self.waiting.values()))[:3])
        if waits:
            return waits
        return "no operation" if self._last is None else f"no further operation after {self._last}"

    def _error(self, entry: Entry, attempted: str, difference: str, cause: str) -> NonDeterminismError:
        return mismatch(entry, self.cursor, attempted, difference, cause, self._python())

    def _python(self) -> str | None:
        head = self.journal.note("head", "")
        return None if head is None else head.name


def describe_op(entry: Entry) -> str:
    return describe(entry.opkind, entry.name, entry.op)
