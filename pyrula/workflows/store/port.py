"""What the runtime needs of a store: the journals of *sources*, fenced by tokens.

A source is anything whose records are numbered: its id is 16 opaque bytes, its records have positions (where
Kafka has a partition and offsets). A journal is the rows of a source, each at (position, index).

Rules every implementation keeps, held to them by ``tests/conformance``:

- *Fenced.* Whoever claims a source gets its token; every write carries it and is refused with LeaseLost once
  another claim has replaced it. Tokens are compared for equality, never for order.
- *Atomic.* One call for one source (a batch, for rows) takes effect whole or not at all.
- *Idempotent.* A call whose answer was lost is sent again by the store itself; a late copy of the first sending
  changes nothing.
- *Last write wins* in a batch: its rows take effect in the order given; empty data deletes the row.

The port knows nothing of Kafka, of what is in a row, or of what a witness means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyrula.workflows.store.record_changes import RecordChange

# Positions are compared as doubles inside the server's scripts.
MAX_POSITION = 2**53 - 1


class Token(NamedTuple):
    """The fence of a source: the group's generation, and how often the group was found made again from scratch."""

    incarnation: int
    generation: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.generation}"

    @classmethod
    def parse(cls, text: str) -> "Token":
        incarnation, _, generation = text.partition(".")
        return cls(int(incarnation), int(generation))


class Row(NamedTuple):
    """One journal row; empty ``data`` deletes it."""

    position: int
    index: int  # type: ignore[assignment]  # tuple.index() is of no use here
    data: bytes


class Batch(NamedTuple):
    """Rows of one source that become durable together.

    ``rows`` may hold plain ``(position, index, data)`` tuples. ``high`` is the highest position the journal is to be
    read to, ``witness`` identifies the log the positions belong to (None or empty: as it was). No rows at all: the
    journal's life is extended. A ``change`` of a record's run comes without rows: it has its own.
    """

    source: bytes
    token: Token
    rows: Sequence[tuple[int, int, bytes]]
    high: int
    witness: bytes | None = None
    change: RecordChange | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim found: ``rows`` at positions >= ``below``, by position, then index.

    ``below`` is the committed position of the last prune (None: never pruned), ``crashes`` how many claims in a row
    were followed by another one without a release or a prune that moved on in between. ``crashed``: this one found the
    source still held by another process, which died, or has gone on without knowing.
    """

    token: Token
    below: int | None = None
    high: int | None = None
    witness: bytes | None = None
    crashes: int = 0
    crashed: bool = False
    rows: list[Row] = field(default_factory=list)


class SourceStore(Protocol):
    """Journals of sources. Every method raises StoreUnavailable when the store can't be reached for ``retry_for``."""

    @property
    def instance_id(self) -> str:
        """Made once per store and namespace, known after open(); an emptied store has another."""

    @property
    def durable(self) -> bool:
        """Whether rows outlive this process."""

    def shard_of(self, source: bytes) -> int:
        """The shard that all keys of this source lie on."""

    async def open(self) -> None:
        """Connect and check the server; ConfigurationError for what only a person can put right. Idempotent."""

    async def close(self) -> None:
        """Let go of the connections. The journals stay."""

    async def claim_source(self, source: bytes, generation: int, *, replaces: Token | None = None) -> Claim:
        """Take the source over and read its journal.

        Raises StaleToken, naming the stored token, if that one has a higher generation, or the same one held by
        another process, unless ``replaces`` equals it: then the incarnation is raised.
        """

    async def append_rows(self, batches: Sequence[Batch]) -> list[Exception | None]:
        """Write each batch atomically, in order; the answers stand in the same order, LeaseLost where the token has
        been replaced. At most 2,000 rows or 1 MiB a batch: the caller splits."""

    async def prune_source(self, source: bytes, token: Token, below: int, witness: bytes | None) -> None:
        """Positions under ``below`` are committed and their rows go. Never moves back."""

    async def lower_source(self, source: bytes, token: Token, below: int, *, forget: bool = False) -> None:
        """Positions were reset by hand: ``below`` moves back (or stays). ``forget``: they belong to another log now,
        so rows, high mark and witness go, and ``below`` is set as it is."""

    async def refresh_source(self, source: bytes, token: Token) -> None:
        """Extend the life of an idle source's journal."""

    async def release_source(self, source: bytes, token: Token) -> None:
        """A clean let-go; clears the crash count."""
