"""Lanes of which a record was handed over: what a store knows of them, and what it is told and asked.

A lane is *away* while it has a head, one run that was handed over and hasn't ended, else *home*. Behind a head later
records of the lane may be queued, each a run of its own; the script that ends a head makes the next of them the head,
and ready. A lane's *floor* is the highest position that was ever handed over or queued: everything of the lane at or
under it is in the store or done, and never runs from its source again. Only the source's holder moves a lane to the
store and back; the store moves none by itself. A lane of which nothing was handed over is unknown here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, Protocol

from pyrula.workflows.store.messages import Unread, Wait
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import Registration

__all__ = [
    "HANDED_OVER",
    "NO_QUEUE",
    "WHOLE",
    "HandedOver",
    "HandingOver",
    "Homecoming",
    "LaneBounds",
    "LaneState",
    "LaneStore",
    "LinedUp",
    "LiningUp",
    "Persistence",
    "lane_of",
]

HANDED_OVER: Final = -2
"""On a board, in a run's place: it was handed over."""

WHOLE: Final = b"*"
"""The lane of a source that has but one."""

_LONGEST: Final = 64


class LaneState(NamedTuple):
    """`head` is the id of the run that an away lane waits for; behind it `queued` others with so many bytes."""

    floor: int
    away: bool
    head: str = ""
    queued: int = 0
    size: int = 0


class LaneBounds(NamedTuple):
    """How much may be queued behind one head, and in all lanes of a source together. Bytes are those of `params`."""

    records: int
    size: int
    size_in_all: int


NO_QUEUE: Final = LaneBounds(0, 0, 0)


def lane_of(key: bytes) -> bytes:
    """The name of a key's lane: the key itself, or what stands for a long one."""
    return b"k" + key if len(key) <= _LONGEST else b"d" + blake2b(key, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class HandingOver:
    """A run that stands still, with all that another holder needs. `lane` None: it has no order.

    `served` is the name under which it is claimed, `params` what it is executed from, `seen` the highest number of a
    message that it has, `rows` its whole journal, durable already. It waits for `waits`, or has failed with `failure`:
    then it is paused, and its lane is away until it is retried or cancelled.
    """

    run_id: RecordId
    lane: bytes | None
    served: str
    params: bytes
    attempt: int
    seen: int
    waits: Sequence[Wait]
    rows: Sequence[tuple[int, bytes]]
    failure: bytes | None = None


class HandedOver(NamedTuple):
    """`taken`: the store has it, and the record is complete. Else the messages that came in between."""

    taken: bool
    messages: tuple[Unread, ...] = ()


@dataclass(frozen=True, slots=True)
class LiningUp:
    """Records of a lane that wait behind its head, in order: ids of their runs, and what these are executed from."""

    lane: bytes
    records: Sequence[tuple[RecordId, bytes]]


class LinedUp(NamedTuple):
    """So many of them, from the first on, are in the store or done. Of the next one: it may run from its source since
    the lane is home, or there is no room for it."""

    taken: int
    rest: Literal["all", "home", "full"]


class Homecoming(NamedTuple):
    """How a lane stands, for its next record. "taken": that one is in the store, or done; "home": it may run from its
    source. Else the lane is away, with this head: "full" if nothing more can be queued; "busy" if the head is ready or
    runs, so that the lane may soon be home; "open" if it stands still."""

    where: Literal["taken", "home", "full", "busy", "open"]
    head: str = ""


class Persistence(NamedTuple):
    """How a server keeps its append-only file, as of now. `server` is another text each time that it starts. `mode`
    "always": what it has answered is on disk; "everysec": an fsync begins within a second, if it gets to its work; "":
    nothing is known of its disk. `pending`: an fsync is under way."""

    server: str
    mode: Literal["always", "everysec", ""]
    pending: bool


class LaneStore(Protocol):
    """The holder's side of lanes that leave and come home."""

    @property
    def hands_over(self) -> bool:
        """Whether what was handed over is on disk once that is answered or, if it `settles`, soon after; else nothing
        should be."""

    @property
    def settles(self) -> bool:
        """Whether it takes `persistence` to tell that what was answered is on disk."""

    async def persistence(self) -> Persistence:
        """Raises StoreUnavailable."""

    async def lanes(self, source: bytes, address: str) -> dict[bytes, LaneState]:
        """Of a source; its holder reads them after it has registered it."""

    async def hand_over(self, registration: Registration, token: Token, run: HandingOver) -> HandedOver:
        """Take the run over. Sent again, it is taken once. Raises LeaseLost."""

    async def line_up(
        self,
        registration: Registration,
        token: Token,
        served: str,
        lanes: Sequence[LiningUp],
        bounds: LaneBounds,
    ) -> list[LinedUp]:
        """Queue what waits behind heads. Nothing later of these lanes may be sent before this is answered; it may be
        sent again as it was. Raises LeaseLost."""

    async def come_home(
        self,
        registration: Registration,
        token: Token,
        asked: Sequence[tuple[bytes, int]],
        bounds: LaneBounds = NO_QUEUE,
    ) -> list[Homecoming]:
        """Of each lane with the position of its next record: how it stands. Raises LeaseLost."""
