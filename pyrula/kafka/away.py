"""Lanes of one partition that are not here: a record of theirs was handed over, and what is behind it waits.

Rules: everything of a lane at or under its floor is in the store, or done, and never runs from the partition. A lane
that is away comes home by the store's word only, which is asked for when a record of it is next: on a hint that its
head has ended, or after a second. What waits for that holds no slot.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyrula.kafka.attending import AttendingStore
from pyrula.kafka.partition import Partition, Raw, RecordRun
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.store.lanes import WHOLE, LaneState, lane_of
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.runs import Subscription

__all__ = ["AwayLanes"]

log = logging.getLogger("pyrula.kafka")

ASK_SECONDS: Final = 1.0
MOST_ASKED: Final = 500


class AwayLanes:
    """What is known of the lanes of a partition that were ever handed over; `offer` says that heads are ready."""

    def __init__(
        self,
        partition: Partition,
        registration: Registration,
        found: Mapping[bytes, LaneState],
        store: AttendingStore,
        offer: Callable[[Partition], None],
    ) -> None:
        self._partition = partition
        self._registration = registration
        self._store = store
        self._offer = offer
        self._floors = {lane: state.floor for lane, state in found.items()}
        self._away: dict[bytes, Raw | None] = {lane: None for lane, state in found.items() if state.away}
        self._listening: dict[bytes, Subscription] = {}
        self._asking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._away)

    def lane(self, record: Raw) -> bytes | None:
        """The name of a record's lane; None where it has no order."""
        name = self._partition.lanes.name(record.key)
        if name is None:
            return None
        return lane_of(name) if isinstance(name, bytes) else WHOLE

    def fresh(self, records: list[Raw]) -> list[Raw]:
        """Those of the records that were read which aren't in the store, or done, by their lane's floor."""
        floors, partition = self._floors, self._partition
        if not floors:
            return records
        taken = [record for record in records if record.offset <= floors.get(self.lane(record) or b"", -1)]
        if not taken:
            return records
        partition.tracker.complete([record.offset for record in taken])
        partition.changed = True
        known = {record.offset for record in taken}
        return [record for record in records if record.offset not in known]

    def keeps(self, head: Any) -> bool:
        """Whether the head of a lane has to wait until the lane is home."""
        if not self._away or type(head) is RecordRun:
            return False
        lane = self.lane(head)
        if lane is None or lane not in self._away:
            return False
        self._away[lane] = head
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name=f"lanes of {self._partition.tp}")
        self._wake.set()
        return True

    def left(self, lane: bytes, offset: int, run_id: str) -> None:
        """A record of the lane was handed over: what is behind it waits."""
        self._floors[lane] = offset
        self._away[lane] = None
        self._listening[lane] = self._store.on_change(run_id, self._wake.set)

    async def _ask(self) -> None:
        try:
            while not self._partition.closed:
                waiting = [(lane, head) for lane, head in self._away.items() if head is not None]
                if not waiting:
                    return
                self._wake.clear()
                await self._ask_about(waiting[:MOST_ASKED])
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        except LeaseLost:
            pass  # the next flush or commit hears of it, too
        finally:
            self._asking = None

    async def _ask_about(self, waiting: list[tuple[bytes, Raw]]) -> None:
        partition = self._partition
        asked = [(lane, head.offset) for lane, head in waiting]
        try:
            answers = await self._store.come_home(self._registration, partition.token, asked)
        except LeaseLost:
            raise
        except StoreError as error:
            log.warning("%s: its lanes can't come home: %s", partition.tp, error)
            return
        if partition.closed:
            return
        for (lane, head), answer in zip(waiting, answers, strict=True):
            if answer.where not in ("taken", "home") or self._away.get(lane) is not head:
                continue
            self._away[lane] = None
            if answer.where == "taken":
                partition.complete([head])
                continue
            del self._away[lane]
            self._forget(lane)
            partition.lanes.ready.appendleft(head)
        self._offer(partition)

    def _forget(self, lane: bytes) -> None:
        subscription = self._listening.pop(lane, None)
        if subscription is not None:
            subscription.close()

    def close(self) -> None:
        """The partition was let go."""
        for lane in list(self._listening):
            self._forget(lane)
        if self._asking is not None:
            self._asking.cancel()
