"""What backfills need of a store: a request, how far each of its parts has come, and who is at which.

A backfill is cut into numbered *parts* (where Kafka has partitions). A part is held by one worker at a time, under a
token that grows with every take; what it saves carries the token and is refused with LeaseLost once another has taken
the part. A holder's saves are numbered, and a number that stands still for a lease tells the others that it is dead:
whoever saw that takes the part by naming the hold it saw. Rules every implementation keeps, held to them by
``tests/conformance/test_backfills.py``:

- *Atomic and idempotent.* A call takes effect whole or not at all; sent again, it changes nothing the second time.
- *Once.* The first plan counts; the first request of an id too, until it was refused.
- *Ends by itself.* With the save that leaves no part open the backfill is completed, or failed if a part is stuck.
- *Statuses* change as `BACKFILL_TRANSITIONS` says; anything else is refused, naming the present one.

Every method raises StoreUnavailable when the store can't be reached. Requests, plans and progress are opaque here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from pyrula.workflows.errors import StoreError

__all__ = [
    "BACKFILL_OVER",
    "BACKFILL_SECONDS",
    "BACKFILL_TRANSITIONS",
    "BackfillNotFoundError",
    "BackfillRefused",
    "BackfillStatus",
    "BackfillStore",
    "BackfillVerb",
    "Hold",
    "PartSave",
    "PartState",
    "StoredBackfill",
    "StoredPart",
    "Taken",
]

BACKFILL_SECONDS: Final = 30 * 24 * 3600
"""A backfill is kept for so long from its last write: as long as the journals of its runs."""


class BackfillStatus(StrEnum):
    """Where a backfill is. A member equals its text."""

    REQUESTED = "requested"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


BACKFILL_OVER: Final = frozenset({BackfillStatus.COMPLETED, BackfillStatus.FAILED, BackfillStatus.CANCELLED})

BACKFILL_TRANSITIONS: Final[dict[BackfillStatus, frozenset[BackfillStatus]]] = {
    # its range is found, or can't be; pause; cancel
    BackfillStatus.REQUESTED: frozenset(
        {BackfillStatus.RUNNING, BackfillStatus.FAILED, BackfillStatus.PAUSED, BackfillStatus.CANCELLED}
    ),
    # the last part ended; pause; cancel
    BackfillStatus.RUNNING: frozenset(
        {BackfillStatus.COMPLETED, BackfillStatus.FAILED, BackfillStatus.PAUSED, BackfillStatus.CANCELLED}
    ),
    # resume; cancel; what ran when it was paused ended the last part
    BackfillStatus.PAUSED: frozenset(
        {
            BackfillStatus.REQUESTED,
            BackfillStatus.RUNNING,
            BackfillStatus.CANCELLED,
            BackfillStatus.COMPLETED,
            BackfillStatus.FAILED,
        }
    ),
    BackfillStatus.COMPLETED: frozenset(),
    # resume: it tries again what was stuck
    BackfillStatus.FAILED: frozenset({BackfillStatus.REQUESTED, BackfillStatus.RUNNING}),
    BackfillStatus.CANCELLED: frozenset(),
}

BackfillVerb: TypeAlias = Literal["pause", "resume", "cancel"]
PartState: TypeAlias = Literal["open", "done", "stuck"]


class BackfillNotFoundError(StoreError):
    """No backfill has this id, or it was forgotten 30 days after its last sign of life."""

    def __init__(self, backfill_id: str) -> None:
        self.backfill_id = backfill_id
        super().__init__(f"no backfill has the id {backfill_id!r:.100}")

    def __reduce__(self) -> tuple[type["BackfillNotFoundError"], tuple[str]]:
        return type(self), (self.backfill_id,)


class BackfillRefused(StoreError):
    """A backfill can't be started or changed like that; the text says why, and what can be done."""


class Hold(NamedTuple):
    """Who has a part: the token of its take, and the number of its last save."""

    worker: str
    token: int
    beat: int


class PartSave(NamedTuple):
    """What a part's holder saves. One that is `done` or `stuck` (for `problem`), or `release`d, is held by nobody."""

    progress: bytes
    state: PartState = "open"
    problem: str = ""
    release: bool = False


@dataclass(frozen=True, slots=True)
class StoredPart:
    """`hold` is None if nobody has the part. `problem` says why it is stuck. `progress` is empty unless asked for."""

    number: int
    state: PartState = "open"
    hold: Hold | None = None
    problem: str = ""
    progress: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredBackfill:
    """A backfill as the store keeps it; times are seconds since 1970 by the store's clock. No parts before the plan.
    `wish`: the worker that last asked for a part which another has, until somebody takes one."""

    id: str
    request: bytes
    pace: bytes
    plan: bytes
    status: BackfillStatus
    problem: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    parts: tuple[StoredPart, ...] = ()
    wish: str = ""


class Taken(NamedTuple):
    """A part that was taken: the token its saves carry, and what the holder before saved."""

    token: int
    progress: bytes


@runtime_checkable
class BackfillStore(Protocol):
    """Requests and progress of backfills."""

    async def create_backfill(self, backfill_id: str, request: bytes, pace: bytes) -> StoredBackfill:
        """Keep the request, unless there is one: the answer is what stands, without progress. The same request again
        sets the pace of one that isn't over; it takes the place of one that was refused before it had a plan."""

    async def plan_backfill(self, backfill_id: str, plan: bytes, parts: Mapping[int, bytes]) -> bool:
        """Requested becomes running with these parts, or completed if there are none. False if it isn't requested."""

    async def refuse_backfill(self, backfill_id: str, problem: str) -> bool:
        """Requested becomes failed: nothing can be planned. False if it isn't requested."""

    async def read_backfill(self, backfill_id: str, *, progress: bool = False) -> StoredBackfill:
        """BackfillNotFoundError."""

    async def backfills(self, *, active: bool = False) -> list[StoredBackfill]:
        """All that are kept, the oldest first, without progress; `active`: those that aren't over."""

    async def turn_backfill(self, backfill_id: str, verb: BackfillVerb) -> BackfillStatus:
        """The status it led to. Nothing changes where it is so already; BackfillRefused where it can't be,
        BackfillNotFoundError. `resume` opens stuck parts again."""

    async def take_part(
        self, backfill_id: str, part: int, worker: str, *, replaces: Hold | None = None
    ) -> Taken | None:
        """Hold an open part of a running backfill that nobody holds, or that `replaces`, as it was seen, holds. None
        if that isn't so any more: if another has it, the worker's wish is kept. A worker that has it takes it anew."""

    async def save_part(self, backfill_id: str, part: int, hold: Hold, save: PartSave) -> BackfillStatus:
        """Write what the holder has done; `hold.beat` grows with each save. The backfill's status after it;
        LeaseLost."""
