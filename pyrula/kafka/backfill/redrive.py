"""Running a backfill's failed records once more, from their dead letters: which they are, and from where they go on.

A redrive is a backfill over the dead-letter topic. It runs the letters that carry the other backfill's header, each
from the journal that lies in it: steps that had succeeded aren't executed again, and the one that failed is.
"""

from collections.abc import Callable

from pyrula.kafka.backfill.marked import HEADER
from pyrula.kafka.dead_letter import PREFIX, decode_journal
from pyrula.kafka.record import RawRecord, fingerprint
from pyrula.workflows.errors import SerializationError
from pyrula.workflows.replay.journal import decode_row, encode_row

__all__ = ["is_letter_of", "journal_in"]


def is_letter_of(backfill_id: str) -> Callable[[RawRecord, tuple[str, int]], bool]:
    """Whether a record is a dead letter of that backfill."""
    wanted = backfill_id.encode()

    def matches(record: RawRecord, place: tuple[str, int]) -> bool:
        return any(name == HEADER and value == wanted for name, value in record.headers) and any(
            name == f"{PREFIX}reason" for name, _ in record.headers
        )

    return matches


def journal_in(letter: RawRecord) -> list[tuple[int, bytes]]:
    """The rows from which its run goes on, as rows of the letter; none if it has no journal that can be read.

    Without the error that ended the run, if that is the last it was given, and with its attempts to be counted anew."""
    headers = [value for name, value in letter.headers if name == f"{PREFIX}journal"]
    if not headers:
        return []
    try:
        entries = [(index, decode_row(data)[0]) for index, data in decode_journal(headers[-1])]
    except (ValueError, SerializationError):
        return []
    delivered = [(index, entry) for index, entry in entries if entry.clock is not None]
    end = delivered[-1][0] if delivered and delivered[-1][1].kind == "error" else None
    failed = {entry.op for index, entry in delivered if index == end}
    print_ = fingerprint(letter)
    return [
        (index, encode_row(entry, print_))
        for index, entry in entries
        if not (end is not None and index >= end)
        and not (entry.kind == "attempt" and (not entry.op or entry.op in failed))
        and entry.kind != "failed"
    ]
