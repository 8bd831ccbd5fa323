"""What triggers need of a store: buffers of events by workflow, key and owner, and batches that are to become runs.

A batch is *open* while events join it, then *sealed*: by the event that fills it, by time, or by an event that would
make its params too large. A sealed batch becomes a run in three calls, by whoever has it: `plan_batch` says once and
for all which run (its id, version and gates), that run is submitted, `drop_batch` takes the batch off. Anyone may do
any of these again, so a batch becomes exactly one run whoever dies in between; sealed batches of a buffer are handed
out oldest first, so their runs are queued in the order of their events.

Rules every implementation keeps:

- *Whole.* An event is in exactly one batch, in the order in which the store took the events of its buffer. No batch
  has more than `max_events`, or params over the limit.
- *Known again.* An event whose id is known gets its first answer. An id counts within its buffer.
- *One owner.* Events of different owners share no batch, so nobody is told of a run that isn't his.
- *By the store's clock.* An event that comes when its batch is due opens the next one, fired or not.
- *Nothing left.* A dropped batch leaves the ids of its events, for their time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from pyrula.workflows.batching import TriggerEvent

__all__ = ["LEASE_SECONDS", "OWN_ID_SECONDS", "BatchStore", "Buffer", "Due", "EventBatch", "Fed", "OpenBatch", "Reason"]

LEASE_SECONDS: Final = 0.3
"""So long whoever was given a sealed batch has it to itself; then others get it, too."""

OWN_ID_SECONDS: Final = 120.0
"""So long an event is known that isn't lasting: longer than a request of a store's is sent again."""

Reason: TypeAlias = Literal["max_events", "window", "max_wait", "size"]
"""Why a batch was sealed. `window` is the quiet time of a Debounce, too; `size`: its params would be too large."""


class Buffer(NamedTuple):
    """Where the events of one workflow, key and owner are. `digest` stands for all three."""

    name: str
    shard: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A sealed batch. `params` is the JSON of its run's. `event` stands for the event that filled it, b"" if none did.
    `plan` is what `plan_batch` was given first, b"" if nothing yet. `owner` is that of all its events."""

    buffer: Buffer
    id: str
    key: str
    params: bytes
    count: int
    reason: Reason
    opened_at: float
    event: bytes = b""
    plan: bytes = b""
    owner: str = ""


class Fed(NamedTuple):
    """The answer to an event. `batch` is the one that it filled, "" if none; `run_id` that batch's run if it is known.

    `head` is the first batch that is to become a run, if this event sealed one.
    """

    batch: str = ""
    run_id: str = ""
    head: EventBatch | None = None


class Due(NamedTuple):
    """`buffers` have something for `take_batch`; the next one will at `next_due` (None: nothing is known of one)."""

    buffers: tuple[Buffer, ...]
    next_due: float | None = None


class OpenBatch(NamedTuple):
    """A batch that events join: how many have, since when, and when it is due, in seconds since 1970."""

    key: str
    events: int
    opened_at: float
    due_at: float
    owner: str = ""


class BatchStore(Protocol):
    """Triggers."""

    async def feed(self, event: TriggerEvent) -> Fed:
        """Put an event into its batch, unless its id is known. A lasting one is known for the retention, or until
        `forget_event`; any other for OWN_ID_SECONDS."""

    def forget_event(self, event: TriggerEvent) -> None:
        """The answer to an event has been written down: it won't be fed again. Only a hint."""

    async def due_batches(self, names: Sequence[str]) -> Due:
        """What is due, of these workflows."""

    async def take_batch(self, buffer: Buffer) -> EventBatch | None:
        """Seal what is due there; its first sealed batch, unless somebody has it (LEASE_SECONDS)."""

    async def plan_batch(self, batch: EventBatch, plan: bytes) -> bytes:
        """The plan that stands: the first one given. b"" if the batch has been dropped."""

    async def drop_batch(self, batch: EventBatch, run_id: str) -> EventBatch | None:
        """The batch has become this run: take it off. The next one of its buffer."""

    async def open_batches(self, name: str) -> list[OpenBatch]:
        """What is gathered for this workflow, by key and owner; at most 1,000 a shard."""
