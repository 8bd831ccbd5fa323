"""The id of a record's run, how it is found, and what its holder writes about it: plain data, beside `messages`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Applied, Child, Interrupt, Wait

__all__ = ["RecordChange", "RecordEnd", "RecordFinder", "RecordId"]

_ID: Final = re.compile(
    r"([0-9a-f]{2,4})-(k[0-9a-z]{10}-(?:0|[1-9]\d{0,9}))-(0|[1-9]\d{0,18})(?:\.([1-9]\d{0,18}))?", re.ASCII
)


class RecordId(NamedTuple):
    """The id of a record's run, taken apart."""

    shard: int
    address: str
    position: int
    incarnation: int

    @classmethod
    def parse(cls, text: str) -> "RecordId | None":
        """None for what isn't the id of a record's run."""
        match = _ID.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[4] == "1":
            return None
        return cls(int(match[1], 16), match[2], int(match[3]), int(match[4] or 1))

    def __str__(self) -> str:
        base = f"{self.shard:02x}-{self.address}-{self.position}"
        return base if self.incarnation == 1 else f"{base}.{self.incarnation}"


class RecordFinder(Protocol):
    """What it takes to know the id of a record's run."""

    def shard_of(self, source: bytes) -> int:
        """The shard that all keys of this source lie on."""

    async def incarnation(self, shard: int, address: str) -> int | None:
        """The incarnation of the address's present run ids. None if it was never registered."""


class RecordEnd(NamedTuple):
    """How a run ended. It is kept for `seconds`; with 0 only if a client has done something to it, which is to hear.

    `params` (what it is executed from) and `rows` (its journal) are kept with it, for a redrive and for queries."""

    status: Literal["completed", "failed", "cancelled"]
    value: bytes
    error: bytes | None
    seconds: int
    params: bytes = b""
    rows: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class RecordChange:
    """What a holder writes about a run, all or nothing.

    `number` counts the changes of one `holder` (any text that nobody else has) from 1: one that was written isn't
    written again. The rest is as in `messages.Change`. With `waits` the run is shown to wait for these. `error` says
    why it is paused.
    """

    run_id: RecordId
    holder: str
    number: int
    status: RunStatus = RunStatus.RUNNING
    waits: Sequence[Wait] = ()
    error: bytes | None = None
    attempt: int | None = None
    rows: Sequence[tuple[int, bytes]] = ()
    consumed: Sequence[int] = ()
    applied: Sequence[Applied] = ()
    opened: Sequence[Interrupt] = ()
    closed: Sequence[str] = ()
    children: Sequence[Child] = ()
    events: Sequence[bytes] = ()
    end: RecordEnd | None = None
