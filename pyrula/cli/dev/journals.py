"""The store of a dev session: one in memory that also tells what runs journaled.

A worker's events speak of runs; that a step was tried again is only in the journal. And a journal is pruned as soon as
its record is committed, so the rows of the one record to be shown are copied as they pass.
"""

from collections.abc import Sequence

from pyrula.workflows import MemoryStore
from pyrula.workflows.codec import loads
from pyrula.workflows.errors import SerializationError
from pyrula.workflows.replay.journal import Entry, decode_row
from pyrula.workflows.store.port import Batch

__all__ = ["WatchedStore"]


class WatchedStore(MemoryStore):
    """A MemoryStore; `sources` are those whose records count, `watched` the source and position to copy."""

    def __init__(self, watched: tuple[frozenset[bytes], int] | None = None) -> None:
        super().__init__()
        self._watched = watched
        self._copied: dict[int, bytes] = {}
        self._retried: set[tuple[bytes, int]] = set()

    @property
    def retried(self) -> int:
        """Records of which a step or the whole run was tried again."""
        return len(self._retried)

    async def append_rows(self, batches: Sequence[Batch]) -> list[Exception | None]:
        answers = await super().append_rows(batches)
        for batch, refused in zip(batches, answers, strict=True):
            if refused is None:
                self._look(batch)
        return answers

    def _look(self, batch: Batch) -> None:
        for position, index, data in batch.rows:
            # The text is in few rows, so few need decoding.
            if b'"attempt"' in data and _kind(data) == "attempt":
                self._retried.add((batch.source, position))
            if self._watched is not None and position == self._watched[1] and batch.source in self._watched[0]:
                self._copied[index] = data

    def journal_lines(self) -> list[str]:
        """What the watched run journaled, one line a row."""
        entries = [decode_row(data)[0] for _, data in sorted(self._copied.items()) if data]
        names = {entry.op: f"{entry.opkind} {entry.name}".rstrip() for entry in entries if entry.opkind}
        return [_line(entry, names.get(entry.op) or entry.op or "run") for entry in entries]


def _kind(data: bytes) -> str:
    try:
        return decode_row(data)[0].kind
    except SerializationError:
        return ""


def _line(entry: Entry, what: str) -> str:
    value = (entry.value or b"").decode("utf-8", "replace")
    if entry.kind == "attempt":
        # A step's note is [attempts so far, when the next one is due, ...], a run's is their number.
        return f"{what:<24} attempt {loads(value)[0] if value.startswith('[') else value} failed"
    return f"{what:<24} {entry.kind}  {' '.join((entry.message or value).split())[:200]}".rstrip()
