"""What the runs of records need of others: their store, the slots of their binding, and who ends them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyrula.kafka.company import Ending
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lanes import LaneStore
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.records import RecordStore
from pyrula.workflows.store.runs import Submission, Submitted, Subscription

__all__ = ["AttendingStore", "Leaving", "Slots", "Verdict"]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A run that stands still and may be handed over: its record, the last message that it has, and what it waits for,
    or what it failed with, once and for all."""

    record: RawRecord
    attempt: int
    seen: int
    journal: Journal | None
    waits: tuple[Wait, ...] = ()
    failure: bytes | None = None


class AttendingStore(RecordStore, LaneStore, Protocol):
    """What of a store runs of records need."""

    def now(self) -> float: ...

    def new_run_id(
        self, *, name: str, idempotency_key: str | None = None, parent: str | None = None, stamp: Stamp | None = None
    ) -> str: ...

    def on_change(self, run_id: str, callback: Callable[[], None]) -> Subscription: ...

    async def history(self, run_id: str) -> History: ...

    async def submit(self, submission: Submission) -> Submitted: ...


class Slots(Protocol):
    """What bounds how many bodies are at work."""

    def rest(self, partition: Partition) -> None:
        """One of them stands still: its slot is free."""

    def come_back(self, partition: Partition, take: Callable[[], bool]) -> None:
        """Call `take` once there is a slot; it says whether it still needs it."""

    def offer(self, partition: Partition) -> None:
        """The partition may have heads of lanes ready: see that they are taken."""

    def enter(self, partition: Partition, *, rested: bool) -> None:
        """Take a slot, be there one or not; `rested`: for one that stood still."""


class Verdict(Protocol):
    """What becomes of a record whose run isn't at work."""

    def over(self, partition: Partition, record: RawRecord, end: Ending | None) -> None:
        """Its run had ended before, so; None: it was handed over."""

    def cancel(self, partition: Partition, record: RawRecord) -> None:
        """It was cancelled."""

    def later(self, run: RecordRun, delay: float) -> None:
        """It begins its next round in so many seconds."""

    def left(self, run: RecordRun) -> None:
        """It was handed over between two rounds."""

    def lined_up(self, partition: Partition, records: Sequence[RawRecord]) -> None:
        """They are queued in the store, and have left their lane here."""

    def again(self, partition: Partition, record: RawRecord, run: RecordRun | None) -> None:
        """It is to go on: by this run, or from its journal."""
