"""What a store keeps of the runs of records: how one is addressed, told something, and asked where it is.

The run of a record lives in the memory of whoever holds its source, and its journal with the source. A store has
something about it only once somebody has sent it a message, or its holder has written down what it waits for or how it
ended. Rules every implementation keeps, held to them by ``tests/conformance/records``:

- *Reachable.* Once a source was registered, a message to any position of it is kept for the run there.
- *Atomic, fenced, once.* A change of a run is written with its journal rows under the source's token, by its number.
- *Final.* A run that has ended stays so. One that needs nothing more and isn't kept leaves a mark: it isn't found.
- *Bounded.* A source has so many such runs and no more; what is there goes with its position or after its time.

The port knows nothing of Kafka: an *address* is a text for a source, given by its holder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Interrupt, Unread
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.runs import Query, Subscription

__all__ = [
    "ENDED",
    "GONE_SECONDS",
    "MAX_ADDRESSED",
    "TOLD_SECONDS",
    "WHERE",
    "RecordState",
    "RecordStore",
    "Registration",
]

MAX_ADDRESSED: Final = 10_000
"""Runs of one source that somebody may have addressed and that haven't ended."""

TOLD_SECONDS: Final = 3600
"""How long the end of a run is kept in any case, if a client has done something to it."""

GONE_SECONDS: Final = 3600
"""How long it is remembered that a run is not to be found any more."""

ENDED: Final = -1
"""On a board, in a run's place: it has ended."""

WHERE: Final = ""
"""The query that every run answers: where it is. No query of a body has this name."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a source's holder tells about its runs. `worker` is where it listens (`RecordStore.on_inbox`), `metadata`
    JSON that is shown of each of them. Nothing under `below` is to be found. `over` says what is known of runs that is
    of no use any more: those that ended, if their records are to be done again, or everything, if the log is another
    one."""

    source: bytes
    address: str
    name: str
    version: str
    worker: str
    metadata: bytes
    below: int
    over: Literal["nothing", "ended", "everything"] = "nothing"


class RecordState(NamedTuple):
    """A run as its holder needs it. `restarts` counts the times somebody asked for a held one to go on."""

    status: RunStatus
    restarts: int
    messages: tuple[Unread, ...]
    interrupts: tuple[Interrupt, ...]


class RecordStore(Protocol):
    """The holder's side. A `RecordChange` travels by `SourceStore.append_rows`; clients use `RunSender` as ever."""

    async def register_source(self, token: Token, registration: Registration) -> dict[int, int]:
        """From now on the source's runs can be reached. The board: by position of each run that somebody has addressed
        a count of what clients did to it, or ENDED. Raises LeaseLost."""

    async def news(self, shard: int, addresses: Sequence[str]) -> list[int]:
        """A number for each address that grows with everything its holder might want to look at."""

    async def board(self, shard: int, address: str) -> dict[int, int]: ...

    async def read_record(self, run_id: RecordId, seen: int) -> RecordState | None:
        """None if there is nothing about it. Messages numbered above `seen`."""

    async def forget_record(self, registration: Registration, token: Token, run_id: RecordId) -> None:
        """The run needs nothing more and isn't kept: it is not found from now on. Raises LeaseLost."""

    async def pass_records(
        self, registration: Registration, token: Token, below: int, positions: Sequence[int]
    ) -> list[bytes]:
        """Everything under `below` is over; `positions` go from the board. Answers the lanes that are forgotten with
        it: they are home, and their floor is under `below`. Raises LeaseLost."""

    async def take_questions(self, shard: int, address: str) -> tuple[Query, ...]:
        """Questions to runs of that source, which nobody else gets now."""

    async def answer(self, query: Query, answer: bytes) -> None: ...

    async def relay(self) -> int:
        """Send on what ended runs had for their children."""

    def on_inbox(self, worker: str, callback: "OnInbox") -> Subscription:
        """Called with the id of a run that something was done to; "" if it may be any."""


class OnInbox(Protocol):
    def __call__(self, run_id: str, /) -> None: ...
