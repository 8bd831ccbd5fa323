"""What a further round of a run keeps of its journal.

After a failure it is cut before the step error that made the run fail; after a cancellation, before that. Messages that
were delivered behind the cut are kept to be delivered again, and so is the value of a step that was under way when the
cancel came: it isn't executed twice.
"""

from collections.abc import Iterator
from typing import Final

from pyrula.workflows.codec import Fragment, dumps, loads
from pyrula.workflows.engine.desk import message_note
from pyrula.workflows.engine.letters import no_signal
from pyrula.workflows.errors import SerializationError, StepError
from pyrula.workflows.replay.journal import Entry, Journal, encode_row

__all__ = ["end_of_kept", "first", "kept_notes", "rows_for_retry", "rows_to_drop", "without_end"]

_LASTING: Final = frozenset(("applied", "message", "answer", "trigger"))
_FRESH: Final = frozenset(("timeout", "signal"))


def without_end(journal: Journal) -> tuple[Journal, list[tuple[int, bytes]]]:
    """The journal of a run that failed or was cancelled, for its next round, and the rows to be written for that.

    b"" deletes a row. To be done once, by whoever gets the run first.
    """
    rows = journal.entries()
    cancel = next(((index, entry) for index, entry in rows if entry.kind == "cancel"), None)
    failed = journal.note("failed", "")
    if cancel is not None:
        end, running = cancel[0], loads(cancel[1].value or b"[]")
    elif failed is not None:
        end, running = loads(failed.value or b"0"), []
    else:
        return journal, []
    dropped = _behind(rows, end)
    kept = kept_notes(rows, dropped, running)
    changed = journal.without(dropped)
    written = [(changed.append(entry), encode_row(entry, None)) for entry in kept]
    return changed.without(set()), [*((index, b"") for index in sorted(dropped)), *written]


def rows_for_retry(journal: Journal, failure: BaseException) -> list[tuple[int, bytes]]:
    """The rows that a further round of a run begins with that failed of this; the journal stays as it is."""
    rows = journal.entries()
    dropped = rows_to_drop(journal, failure)
    changed = journal.without(dropped)
    for note in kept_notes(rows, dropped, []):
        changed.append(note)
    return changed.rows()


def kept_notes(rows: list[tuple[int, Entry]], dropped: set[int], running: list[str]) -> list[Entry]:
    """Notes of what is dropped and still counts: messages, the values of steps that were `running` at a cancel, and
    the answers to events, which aren't fed again."""
    kept = []
    for index, entry in rows:
        if index not in dropped or entry.clock is None:
            continue
        note = message_note(entry)
        if note is not None:
            kept.append(note)
        elif entry.kind == "value" and (entry.opkind == "trigger" or (entry.opkind == "step" and entry.op in running)):
            answer = dumps([entry.kind, Fragment(entry.value or b"null")])
            kept.append(Entry("answer", entry.op, entry.opkind, entry.name, None, None, answer))
    return kept


def first(error: BaseException, kind: type[BaseException] | tuple[type[BaseException], ...]) -> BaseException | None:
    """The error if it is of that kind, or the first such member of a group."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := first(one, kind)) is not None), None)
    return None


def rows_to_drop(journal: Journal, failure: BaseException) -> set[int]:
    """From the entry of the step error that made the run fail on. What waited then gets new attempts and time-outs."""
    rows = journal.entries()
    return _behind(rows, end_of_kept(rows, failure))


def _behind(rows: list[tuple[int, Entry]], end: int) -> set[int]:
    delivered = {entry.op for index, entry in rows if index < end and entry.clock is not None}
    dropped = set()
    for index, entry in rows:
        if entry.kind in _LASTING:
            continue
        fresh = entry.kind == "attempt" or (entry.kind == "deadline" and entry.opkind in _FRESH)
        if index >= end or entry.kind == "failed" or (fresh and entry.op and entry.op not in delivered):
            dropped.add(index)
    return dropped


def end_of_kept(rows: list[tuple[int, Entry]], failure: BaseException) -> int:
    """Where a retry cuts the journal: the index of the error that the failure came from, else its end."""
    for error in _chain(failure):
        if isinstance(error, (StepError, SerializationError, TimeoutError)):
            for index, entry in reversed(rows):
                if entry.kind == "error" and _same(error, entry):
                    return index
    return rows[-1][0] + 1 if rows else 0


def _same(error: StepError | SerializationError | TimeoutError, entry: Entry) -> bool:
    fields = loads(entry.value or b"{}")
    if isinstance(error, TimeoutError):
        return entry.opkind == "signal" and str(error) == no_signal(entry.name, fields.get("timeout"))
    if entry.opkind != "step":
        return False
    if isinstance(error, SerializationError):
        return bool(fields.get("serialization") == str(error))
    return bool(
        entry.name == error.step
        and fields.get("type") == error.error_type
        and fields.get("message") == error.message
        and fields.get("trace") == error.trace
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or beside, and the members of groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        waiting.extend((one.__cause__, one.__context__))
