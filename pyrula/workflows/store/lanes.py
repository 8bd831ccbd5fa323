"""Lanes of which a record was handed over: what a store knows of them, and what it is told and asked.

A lane is *away* while its head, one run that was handed over, hasn't ended, else *home*. Its *floor* is the highest
position that was ever handed over: everything of the lane at or under it is in the store or done, and never runs from
its source again. Only the source's holder moves a lane to the store and back; the store moves none by itself. Nothing
behind a head is ever queued in the store (a bound of 0): it waits in its holder's memory. A lane of which nothing was
handed over is unknown here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from pyrula.workflows.store.messages import Unread, Wait
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import Registration

__all__ = ["HANDED_OVER", "WHOLE", "HandedOver", "HandingOver", "Homecoming", "LaneState", "LaneStore", "lane_of"]

HANDED_OVER: Final = -2
"""On a board, in a run's place: it was handed over."""

WHOLE: Final = b"*"
"""The lane of a source that has but one."""

Homecoming: TypeAlias = Literal["taken", "away", "home"]

_LONGEST: Final = 64


class LaneState(NamedTuple):
    """`head` is the id of the run that was handed over last."""

    floor: int
    away: bool
    head: str = ""


def lane_of(key: bytes) -> bytes:
    """The name of a key's lane: the key itself, or what stands for a long one."""
    return b"k" + key if len(key) <= _LONGEST else b"d" + blake2b(key, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class HandingOver:
    """A run that stands still, with all that another holder needs. `lane` None: it has no order.

    `served` is the name under which it is claimed, `params` what it is executed from, `seen` the highest number of a
    message that it has, `rows` its whole journal, durable already.
    """

    run_id: RecordId
    lane: bytes | None
    served: str
    params: bytes
    attempt: int
    seen: int
    waits: Sequence[Wait]
    rows: Sequence[tuple[int, bytes]]


class HandedOver(NamedTuple):
    """`taken`: the store has it, and the record is complete. Else the messages that came in between."""

    taken: bool
    messages: tuple[Unread, ...] = ()


class LaneStore(Protocol):
    """The holder's side of lanes that leave and come home."""

    @property
    def hands_over(self) -> bool:
        """Whether what was handed over is on disk once that is answered; else nothing should be."""

    async def lanes(self, source: bytes, address: str) -> dict[bytes, LaneState]:
        """Of a source; its holder reads them after it has registered it."""

    async def hand_over(self, registration: Registration, token: Token, run: HandingOver) -> HandedOver:
        """Take the run over. Sent again, it is taken once. Raises LeaseLost."""

    async def come_home(
        self, registration: Registration, token: Token, asked: Sequence[tuple[bytes, int]]
    ) -> list[Homecoming]:
        """Of each lane with the position of its next record: whether that one may run from the source now. Raises
        LeaseLost."""
