"""What a record waits for before its body may begin, where it has to wait at all.

For a body of its lane that an earlier assignment could not end, since a thread can't be cancelled; for whoever takes
part in its run; for its mark to be durable, in a partition that is careful, and for the process to be its own if it has
killed too many; and, like any record, until the group surely still has us.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from time import monotonic
from typing import Any

from aiokafka import TopicPartition

from pyrula.kafka.deaths import Mark
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord, fingerprint
from pyrula.kafka.solitude import Solitude
from pyrula.kafka.standing import Standing
from pyrula.workflows.errors import StoreError

__all__ = ["Beginnings"]

log = logging.getLogger("pyrula.kafka")


class Beginnings:
    """Of one binding's records. `served` are the partitions of which anything may start; `leave` is called for a record
    that isn't to run here, `condemn` for one that is not to run ever again."""

    def __init__(
        self,
        served: Collection[Partition],
        leave: Callable[[Partition], None],
        condemn: Callable[[Partition, RawRecord, Mark], None],
        solitude: Solitude,
    ) -> None:
        self.standing = Standing()
        self.solitude = solitude
        self._served = served
        self._leave = leave
        self._condemn = condemn
        # Lanes with a body that an earlier assignment could not end.
        self.busy_lanes: dict[tuple[TopicPartition, object], asyncio.Future[Any]] = {}

    def must_wait(self, partition: Partition, head: RawRecord | RecordRun) -> bool:
        """Whether the head of a lane has to wait; then see `admitted`. Not where no lane is busy, no run has an address
        and the partition has no marks."""
        offset = head.origin.offset if isinstance(head, RecordRun) else head.offset
        return (
            offset in partition.addressed
            or (partition.marks is not None and partition.marks.concerns(offset))
            or (not isinstance(head, RecordRun) and _lane_of(partition, head) in self.busy_lanes)
        )

    async def admitted(self, partition: Partition, head: RawRecord | RecordRun) -> bool:
        """Wait for all there is to wait for. False: nothing of it is to run here, and it has been seen to."""
        record = head.origin if isinstance(head, RecordRun) else head
        try:
            former = None if record is not head else self.busy_lanes.get(_lane_of(partition, record))
            if former is not None:
                log.warning(
                    "%s[%d]: offset %d waits for an earlier body of its lane that still runs",
                    *partition.tp,
                    record.offset,
                )
                await asyncio.wait([former])
            attended = partition.addressed.get(record.offset)
            if attended is not None and not await attended.admit(record):
                return False
            if not await self._mark(partition, record):
                return False
            await self._until_free(partition, record)
            if partition not in self._served:
                self.unmark(partition, record)
                self._leave(partition)
                return False
            return True
        finally:
            partition.waiting -= 1

    async def _mark(self, partition: Partition, record: RawRecord) -> bool:
        """Write down that the record is in progress, once nothing else is if it must run alone. False, and it has left,
        if it isn't to run here."""
        if partition.marks is None or not partition.marks.concerns(record.offset):
            return True
        mark = partition.marks.of(record.offset, fingerprint(record))
        if mark.condemned and partition in self._served:
            self._condemn(partition, record, mark)
            return False
        if mark.needs_solitude:
            mark = replace(mark, running="alone")
            mine = await self.solitude.take(mark.alone, lambda: partition in self._served)
        else:
            mark = replace(mark, running="beside")
            await self._until_free(partition, record)
            mine = partition in self._served
        if mine:
            try:
                await partition.mark(record, mark)
                return True
            except StoreError:
                self.unmark(partition, record)
        self._leave(partition)
        return False

    def unmark(self, partition: Partition, record: RawRecord) -> None:
        """The record's body has ended, or will never begin."""
        mark = partition.unmark(record)
        if mark is not None and mark.running == "alone":
            self.solitude.give_back()

    async def _until_free(self, partition: Partition, record: RawRecord) -> None:
        """Until the record may start as far as the group and its neighbours go, or its partition is let go."""
        mark = partition.marked.get(record.offset)
        alone = mark is not None and mark.running == "alone"
        while partition in self._served:
            if monotonic() > self.standing.until:
                await self.standing.changed()
            elif self.solitude.wanted and not alone:
                await self.solitude.open()
            else:
                return

    def linger(self, partition: Partition, record: RawRecord, leftovers: Iterable[asyncio.Future[Any]]) -> None:
        """A cut run left these behind: the next record of its lane waits for them."""
        name = _lane_of(partition, record)
        former = self.busy_lanes.get(name)
        waiting = [*leftovers] if former is None else [former, *leftovers]
        gone: asyncio.Future[Any] = asyncio.gather(*waiting, return_exceptions=True)
        self.busy_lanes[name] = gone

        def forget(_: asyncio.Future[Any]) -> None:
            if self.busy_lanes.get(name) is gone:
                del self.busy_lanes[name]

        gone.add_done_callback(forget)


def _lane_of(partition: Partition, record: RawRecord) -> tuple[TopicPartition, object]:
    """What only one body at a time may run in: the lane, or the record alone where there is no order."""
    lane = partition.lanes.name(record.key)
    return partition.tp, record.offset if lane is None else lane
