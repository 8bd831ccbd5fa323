"""A run's history: all that a read-only replay needs, and the file it is kept in.

The file is JSON and public (docs/formats-runs.md), with a journal row a line, so that it can be read and compared. It
is written for tests that outlive releases: a later release reads the versions of earlier ones, an earlier one refuses.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyrula.workflows.codec import Fragment, JSONDecodeError, dumps, loads
from pyrula.workflows.errors import SerializationError
from pyrula.workflows.replay.journal import decode_row
from pyrula.workflows.store.lifecycle import RunStatus

__all__ = ["FILE_VERSION", "History"]

FILE_VERSION: Final = 1

_MARK: Final = "pyrula.history"
_PIECE: Final = 64 * 1024


class History(NamedTuple):
    """A run's journal with its params and version; of exactly the link asked for.

    `dump` writes it to a file, `History.load` reads that again.
    """

    run_id: str
    name: str
    version: str | None
    status: RunStatus
    params: bytes
    rows: tuple[tuple[int, bytes], ...]
    attempt: int
    owner: str
    metadata: bytes

    def to_json(self) -> str:
        """The text of its file."""
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """The text of its file, for who sends or writes a long one: whole rows, about 64 KiB at once unless one is
        larger."""
        head = {
            "format": [_MARK, FILE_VERSION],
            "run_id": self.run_id,
            "name": self.name,
            "version": self.version,
            "status": self.status.value,
            "attempt": self.attempt,
            "owner": self.owner,
            "metadata": Fragment(self.metadata),
            "params": Fragment(self.params),
        }
        lines = [f"{dumps(key).decode()}: {dumps(value).decode()}," for key, value in head.items()]
        yield "{\n" + "\n".join(lines) + '\n"journal": [\n'
        piece: list[str] = []
        before, size = "", 0
        for index, row in self.rows:
            line = f"{before}  {dumps([index, Fragment(row)]).decode()}"
            before = ",\n"
            if size and size + len(line) > _PIECE:
                yield "".join(piece)
                piece, size = [], 0
            piece.append(line)
            size += len(line)
        yield "".join(piece) + "\n]\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes, what: str = "the history") -> "History":
        """SerializationError naming `what` if it is none, or if a later release of Pyrula wrote it."""
        try:
            fields: Any = loads(text)
        except JSONDecodeError as error:
            raise SerializationError(f"{what} is no JSON: {error}") from error
        mark = fields.get("format") if isinstance(fields, dict) else None
        if not isinstance(mark, list) or len(mark) != 2 or mark[0] != _MARK:
            raise SerializationError(f"{what} is no history of a run; `pyrula history` and History.dump write one")
        if mark[1] != FILE_VERSION:
            raise SerializationError(
                f"{what} has version {mark[1]!r} of its format, this release of Pyrula reads version {FILE_VERSION}"
            )
        try:
            history = cls(
                run_id=str(fields["run_id"]),
                name=str(fields["name"]),
                version=fields["version"],
                status=RunStatus(fields["status"]),
                params=dumps(fields["params"]),
                rows=tuple((int(index), dumps(row)) for index, row in fields["journal"]),
                attempt=int(fields["attempt"]),
                owner=str(fields["owner"]),
                metadata=dumps(fields["metadata"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SerializationError(f"{what} is damaged: {type(error).__name__}: {error}") from error
        for _, row in history.rows:
            decode_row(row)
        return history

    def dump(self, path: str | Path) -> None:
        """Write it to a file, over one that is there."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(self.pieces())

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read it from a file. SerializationError for what is no history, OSError for what can't be read."""
        return cls.from_json(Path(path).read_bytes(), str(path))
