"""A run's journal: its rows, how one is written, and what can be looked up in it.

Two kinds of rows. A *delivery* (`value`, `error`, `update`, `cancel`, `abort`) is something the body was given;
deliveries replay in their order. A *note* is looked up by operation id and is never delivered. The index counts both,
and grows for the life of a run: an index that was deleted isn't used again, so that deletions and writes may travel in
any grouping.

The row format is public (docs/formats.md): a JSON array
`[format, kind, op, opkind, name, clock, message, value, fingerprint]`.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.errors import SerializationError

__all__ = ["FORMAT", "Entry", "Fields", "Journal", "decode_row", "encode_row", "row_end"]

FORMAT: Final = 1

DELIVERIES: Final = frozenset(("value", "error", "update", "cancel", "abort"))
"""The kinds that are given to the body."""

UNASKED: Final = frozenset(("update", "cancel", "abort"))
"""Deliveries that no operation waits for."""

NOTES: Final = frozenset(
    (
        "deadline",
        "attempt",
        "patch",
        "loose",
        "head",
        "interrupt",
        "child",
        "trigger",
        "applied",
        "answer",
        "message",
        "failed",
        "mark",
        "done",
    )
)
"""`attempt` of the operation "" is the run's own number of rounds; `loose`, `head` and `failed` belong to no operation
either. `applied` is an update that was answered; `mark` and `done` are about a partition's records and no rows of their
runs; `failed` says where a retry cuts the journal; `answer` and `message` are what a retry kept of it: a step or an
event that needn't be executed again, and a message to be delivered again."""

# What a row takes beside its value and name.
_ROW_OVERHEAD: Final = 64


class Entry(NamedTuple):
    """One row. `value` is JSON, encoded once; `clock` is how many operations had been asked for, None in a note."""

    kind: str
    op: str
    opkind: str
    name: str
    clock: int | None
    message: str | None
    value: bytes | None


Fields: TypeAlias = tuple[str, str, str, str, int | None, str | None, bytes | None]
"""An entry, or a plain tuple of its fields: an eighth of the cost, which every step pays."""


def encode_row(entry: Fields, fingerprint: str | None, end: bytes | None = None) -> bytes:
    """The bytes of a row. `fingerprint` says which record it belongs to; its `row_end` may be given if it is known."""
    return _row_begin(*entry[:6]) + (entry[6] or b"null") + (end or row_end(fingerprint))


@lru_cache(maxsize=4096)
def _row_begin(*fields: str | int | None) -> bytes:
    """What stands before the value. The first operations of a step's runs have it in common."""
    return dumps([FORMAT, *fields])[:-1] + b","


def row_end(fingerprint: str | None) -> bytes:
    """What stands behind the value."""
    return b",null]" if fingerprint is None else b',"%b"]' % fingerprint.encode()


def decode_row(data: bytes) -> tuple[Entry, str | None]:
    """The row's entry and fingerprint. SerializationError for another format, naming it, and for damaged bytes."""
    try:
        row = loads(data)
        version = row[0]
    except (ValueError, TypeError, LookupError) as error:
        raise SerializationError(f"a journal row is damaged: {data[:80]!r}") from error
    if version != FORMAT:
        raise SerializationError(
            f"a journal row has format {version!r}, this release of Pyrula reads format {FORMAT}; "
            "it was written by another release, so let one that knows the format finish the run"
        )
    try:
        _, kind, op, opkind, name, clock, message, value, fingerprint = row
    except ValueError as error:
        raise SerializationError(f"a journal row is damaged: {data[:80]!r}") from error
    if kind not in DELIVERIES and kind not in NOTES:
        raise SerializationError(f"a journal row is of the unknown kind {kind!r}; a later release of Pyrula wrote it")
    json = None if value is None and kind not in DELIVERIES else dumps(value)
    return Entry(kind, op, opkind, name, clock, message, json), fingerprint


class Journal:
    """The rows of one run, by index. `recorded` are the deliveries it was loaded with: what a replay has to meet.

    `notes` has the last note of each kind and operation, `size` is in bytes, about.
    """

    __slots__ = ("_rows", "keeps_messages", "loose_from", "next_index", "notes", "recorded", "size", "warned")

    def __init__(self) -> None:
        self._rows: list[tuple[int, Fields]] = []
        self.notes: dict[tuple[str, str], Entry] = {}
        self.recorded: Sequence[Entry] = ()
        self.next_index = 0
        self.size = 0
        self.loose_from: int | None = None
        self.warned = 0
        self.keeps_messages = False

    def __len__(self) -> int:
        return len(self._rows)

    @classmethod
    def load(cls, rows: Iterable[tuple[int, bytes]]) -> "Journal":
        """The journal of stored rows (index, bytes), in any order."""
        decoded = [(index, decode_row(data)[0]) for index, data in rows]
        decoded.sort(key=lambda row: row[0])
        return cls._of(decoded, decoded[-1][0] + 1 if decoded else 0)

    @classmethod
    def _of(cls, rows: list[tuple[int, Entry]], next_index: int) -> "Journal":
        journal = cls()
        journal.recorded = recorded = []
        for index, entry in rows:
            journal.next_index = index
            journal.append(entry)
            if entry.kind in DELIVERIES:
                recorded.append(entry)
            elif entry.kind == "loose" and journal.loose_from is None:
                journal.loose_from = len(recorded)
        journal.next_index = next_index
        return journal

    def append(self, entry: Fields) -> int:
        """Adds a row at the end and gives its index."""
        index = self.next_index
        self.next_index = index + 1
        self._rows.append((index, entry))
        self.size += _ROW_OVERHEAD + len(entry[3]) + len(entry[6] or b"")
        if entry[4] is None:
            self._note(Entry._make(entry))
        return index

    def clear(self) -> None:
        """As it was made."""
        self._rows = []
        self.next_index = self.size = self.warned = 0
        if self.notes:
            self.notes = {}
            self.keeps_messages = False

    def _note(self, entry: Entry) -> None:
        self.notes[entry.kind, entry.name if entry.kind == "patch" else entry.op] = entry
        self.keeps_messages = self.keeps_messages or entry.kind == "message"

    def note(self, kind: str, op: str) -> Entry | None:
        """The last note of that kind for an operation (for `patch`: for a change id)."""
        return self.notes.get((kind, op))

    def rows(self, fingerprint: str | None = None) -> list[tuple[int, bytes]]:
        """All rows as they are stored."""
        return [(index, encode_row(entry, fingerprint)) for index, entry in self._rows]

    def entries(self) -> list[tuple[int, Entry]]:
        """All rows, by index."""
        return [(index, Entry._make(entry)) for index, entry in self._rows]

    def without(self, indexes: set[int]) -> "Journal":
        """A journal to replay that lacks these rows. Their indexes stay used."""
        return self._of([row for row in self.entries() if row[0] not in indexes], self.next_index)
