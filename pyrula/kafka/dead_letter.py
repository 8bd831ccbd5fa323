"""A dead letter: the record as it was, and headers that say from where, why and after how many attempts.

Pure. The header names and the journal's form are public (docs/formats.md). A record that was dead-lettered, redriven
and failed again carries the headers of its last round only; the record's own headers stay in their order.
"""

from zlib import crc32

from pyrula.kafka.record import RawRecord
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.execution import Output

PREFIX = "pyrula-dlq-"

# A trace in a header is cut to this many bytes; a journal larger than this stays out of the letter.
MAX_TRACE = 8 * 1024
MAX_JOURNAL = 64 * 1024


def letter(
    topic: str,
    record: RawRecord,
    place: tuple[str, int],
    *,
    group: str,
    workflow: str,
    run_id: str,
    reason: str,
    message: str,
    attempts: int,
    trace: str = "",
    rows: list[tuple[int, bytes]] | None = None,
) -> Output:
    """The copy of a record, which was read at `place` (topic and partition), for the dead-letter topic `topic`.

    Its partition there is chosen by the key."""
    told = {
        "topic": place[0],
        "partition": str(place[1]),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "group": group,
        "workflow": workflow,
        "run-id": run_id,
        "reason": reason,
        "message": message[:2048],
        "attempts": str(attempts),
    }
    headers = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    headers += [(PREFIX + name, value.encode("utf-8", "replace")) for name, value in told.items()]
    if trace:
        headers.append((PREFIX + "trace", trace.encode("utf-8", "replace")[-MAX_TRACE:]))
    if rows:
        journal = encode_journal(rows)
        if len(journal) <= MAX_JOURNAL:
            headers.append((PREFIX + "journal", journal))
    return Output(
        topic=topic,
        value=record.value,
        key=record.key,
        headers=tuple(headers),
        partition=None,
        timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
    )


def without_extras(copy: Output) -> Output:
    """The same letter without journal and trace, for a topic that refused it as too large."""
    extras = (PREFIX + "trace", PREFIX + "journal")
    return copy._replace(headers=tuple(header for header in copy.headers if header[0] not in extras))


def encode_journal(rows: list[tuple[int, bytes]]) -> bytes:
    """A run's journal for a header: format, checksum, rows."""
    body = dumps([[index, data.decode()] for index, data in rows])
    return b"1:%08x:" % crc32(body) + body


def decode_journal(header: bytes) -> list[tuple[int, bytes]]:
    """What `encode_journal` wrote. ValueError for anything else."""
    form, checksum, body = header.split(b":", 2)
    if form != b"1" or int(checksum, 16) != crc32(body):
        raise ValueError("no journal of format 1")
    return [(index, data.encode()) for index, data in loads(body)]
