"""What a partition knows of those who see to its records beside it. `Run` is its run of a record."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from pyrula.kafka.outputs import Done
from pyrula.kafka.record import RawRecord
from pyrula.workflows.execution import Execution, Outcome, Output

__all__ = ["Attended", "Attending", "Away", "Ending", "Transacting"]

Run = TypeVar("Run", contravariant=True)

# How a record's run is on record.
Ending = Literal["completed", "failed", "cancelled"]


class Transacting(Protocol):
    """Who commits what records produce together with their offsets."""

    problem: str | None

    def put(self, record: RawRecord, outputs: Sequence[Output], done: Done) -> None:
        """Have it committed, then call `done`: see `Producing`."""

    async def finish(self) -> None:
        """The last commit of an assignment."""

    def let_go(self) -> None:
        """The partition is closed."""


class Attended(Protocol[Run]):
    """A run that others may take part in."""

    async def admit(self, record: RawRecord) -> bool:
        """Before it begins: whether it is to. If not, its record has been seen to."""

    def begin(self, run: Run) -> None:
        """It begins, or goes on from its journal."""

    def next_round(self, run: Run) -> None:
        """It failed, and begins again later."""

    @property
    def untouched(self) -> bool:
        """Whether nothing of it has begun, and nothing is on its way."""

    def leave(self) -> None:
        """The store has it from now on."""

    def let_go(self) -> None:
        """The assignment has ended."""

    def finish(self, status: Ending, then: Callable[[Exception | None], None]) -> None:
        """Its record is about to be complete: write down how it ended, then go on."""


class Away(Protocol):
    """Lanes that are not here, since a record of theirs was handed over."""

    def fresh(self, records: list[RawRecord]) -> list[RawRecord]:
        """Those of the records that were read which aren't in the store, or done."""

    def keeps(self, head: Any) -> bool:
        """Whether the head of a lane has to wait until the lane is home."""

    def has(self, offset: int) -> bool:
        """Whether the record at `offset` is a head that waits so."""


class Attending(Protocol[Run]):
    """Who looks after the runs of a partition that others may take part in, or that are to be kept."""

    def attend(self, run: Execution, seconds: float) -> None:
        """The body is about to do what others may take part in, or to wait for so long."""

    def on_outcome(self, run: Run, outcome: Outcome) -> None:
        """A body has ended, or was cut."""

    def on_failure(self, record: RawRecord, error: BaseException, run: Run | None) -> None:
        """What a record's run failed with, once and for all; no run: it wasn't made one."""

    def retry_later(self, run: Run, delay: float) -> bool:
        """Whether the next round of a run, which is due in so many seconds, is seen to."""

    def block(
        self, record: RawRecord, error: BaseException, attempt: int, run: Run | None, then: Callable[[bool], None]
    ) -> bool:
        """Whether a record's run that failed once and for all may be left to the store, with its lane; then `then` is
        told whether the store has it."""

    def hold(self, record: RawRecord, text: str, run: Run | None) -> None:
        """A record can't go on until somebody says so, then by this run."""

    async def passed(self, below: int) -> None:
        """Everything under an offset is committed."""
