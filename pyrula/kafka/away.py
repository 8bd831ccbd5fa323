"""Lanes of one partition that are not here: a record of theirs was handed over, and what is behind it waits.

Rules: everything of a lane at or under its floor is in the store, or done, and never runs from the partition. A lane
that is away comes home by the store's word only. One call at a time is on its way about the lanes of a partition, so
nothing later of a lane is sent before it is known what became of the earlier. What waits holds no slot.

When to ask is policy: while the head stands still, what is behind it is queued in the store at once; while it is ready
or runs it is kept here, so that a busy lane comes home, and so is what the store has no room for. These lanes are asked
about on a hint that something happened to their head, or after a second.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final

from pyrula.kafka.attending import AttendingStore, Verdict
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord, served_name
from pyrula.kafka.stored_record import encode_record
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.store.lanes import NO_QUEUE, WHOLE, Homecoming, LaneBounds, LaneState, LiningUp, lane_of
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.runs import Subscription

__all__ = ["AwayLanes"]

log = logging.getLogger("pyrula.kafka")

ASK_SECONDS: Final = 1.0
MOST_ASKED: Final = 500
# Of one call: it is one script, while the server does nothing else.
MOST_SENT: Final = 100
MOST_BYTES: Final = 1 << 20


class _Lane:
    """One that is away. `next` is the record that waits first, `due` whether something is to be done about it, `still`
    whether the head stood still when it was last heard of, at `known`; `hints` are of that head and of the last run of
    the lane."""

    __slots__ = ("due", "hints", "known", "next", "still")

    def __init__(self, *, still: bool = False) -> None:
        self.next: RawRecord | None = None
        self.due = True
        self.still = still
        self.known = monotonic()
        self.hints: list[Subscription] = []

    @property
    def open(self) -> bool:
        """Whether more may be queued without asking: what runs doesn't say so."""
        return self.still and monotonic() - self.known < ASK_SECONDS

    def close(self) -> None:
        """No more hints."""
        for hint in self.hints:
            hint.close()
        self.hints.clear()


class AwayLanes:
    """What is known of the lanes of a partition that were ever handed over; `offer` says that heads are ready."""

    def __init__(
        self,
        partition: Partition,
        registration: Registration,
        found: Mapping[bytes, LaneState],
        store: AttendingStore,
        bounds: LaneBounds,
        offer: Callable[[Partition], None],
        verdict: Verdict,
    ) -> None:
        binding = partition.binding
        self._partition = partition
        self._registration = registration
        self._store = store
        self._bounds = bounds if binding.ordering == "key" else NO_QUEUE
        self._served = served_name(binding.cluster, binding.group, partition.tp.topic)
        self._offer = offer
        self._verdict = verdict
        self._floors = {lane: state.floor for lane, state in found.items()}
        self._away = {lane: _Lane() for lane, state in found.items() if state.away}
        self._seeing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._away)

    def lane(self, record: RawRecord) -> bytes | None:
        """The name of a record's lane; None where it has no order."""
        name = self._partition.lanes.name(record.key)
        if name is None:
            return None
        return lane_of(name) if isinstance(name, bytes) else WHOLE

    def fresh(self, records: list[RawRecord]) -> list[RawRecord]:
        """Those of the records that were read which aren't in the store, or done, by their lane's floor."""
        floors, partition = self._floors, self._partition
        if not floors:
            return records
        known = set()
        for record in records:
            lane = self.lane(record) or b""
            if record.offset <= floors.get(lane, -1):
                known.add(record.offset)
            elif (away := self._away.get(lane)) is not None and away.still:
                away.due = True
                self._wake.set()
        if not known:
            return records
        partition.entrust(partition, list(known))
        return [record for record in records if record.offset not in known]

    def keeps(self, head: Any) -> bool:
        """Whether the head of a lane has to wait until the lane is home."""
        if not self._away or type(head) is RecordRun:
            return False
        lane = self.lane(head)
        away = None if lane is None else self._away.get(lane)
        if away is None:
            return False
        away.next, away.due = head, True
        if self._seeing is None:
            self._seeing = asyncio.get_running_loop().create_task(self._see(), name=f"lanes of {self._partition.tp}")
        self._wake.set()
        return True

    def has(self, offset: int) -> bool:
        """Whether the record at `offset` is a head that waits so."""
        return any(away.next is not None and away.next.offset == offset for away in self._away.values())

    def left(self, lane: bytes, offset: int, run_id: str) -> None:
        """A record of the lane was handed over, and stands still: what is behind it waits."""
        self._floors[lane] = offset
        self._away[lane] = away = _Lane(still=True)
        self._watch(away, run_id)

    def under(self, below: int) -> bool:
        """Whether a lane that is home has its floor under an offset."""
        return any(floor < below and lane not in self._away for lane, floor in self._floors.items())

    def forget(self, lanes: list[bytes]) -> None:
        """The store knows nothing of these any more."""
        for lane in lanes:
            if lane not in self._away:
                self._floors.pop(lane, None)

    # what waits

    async def _see(self) -> None:
        try:
            while not self._partition.closed:
                waiting = [(lane, away) for lane, away in self._away.items() if away.next is not None]
                if not waiting:
                    return
                self._wake.clear()
                await self._see_to([(lane, away) for lane, away in waiting if away.due])
                if any(away.due for _, away in waiting if away.next is not None):
                    continue
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    for _, away in waiting:
                        away.due = True
        except LeaseLost:
            pass  # the next flush or commit hears of it, too
        finally:
            self._seeing = None

    async def _see_to(self, due: list[tuple[bytes, _Lane]]) -> None:
        for _, away in due:
            away.due = False
        try:
            asked: list[tuple[bytes, _Lane]] = []
            sent: list[tuple[bytes, _Lane]] = []
            for one in due:
                (sent if one[1].open and self._bounds.records else asked).append(one)
            for start in range(0, len(asked), MOST_ASKED):
                await self._ask(asked[start : start + MOST_ASKED])
            await self._line_up(sent)
        except LeaseLost:
            raise
        except StoreError as error:
            log.warning("%s[%d]: it can't be told whether its lanes come home: %s", *self._partition.tp, error)

    async def _ask(self, asked: list[tuple[bytes, _Lane]]) -> None:
        partition = self._partition
        told = [(lane, away.next.offset) for lane, away in asked if away.next is not None]
        answers = await self._store.come_home(self._registration, partition.token, told, self._bounds)
        if partition.closed:
            return
        for (lane, away), answer in zip(asked, answers, strict=True):
            self._answered(lane, away, answer)
        self._offer(partition)

    def _answered(self, lane: bytes, away: _Lane, answer: Homecoming) -> None:
        if answer.where == "home":
            self._home(lane, away)
            return
        if answer.where == "taken":
            self._partition.complete(self._taken(lane, away, 1), left=True, stored=True)
            away.due = True
        elif not away.due:  # else something has happened since
            away.still, away.known = answer.where == "open", monotonic()
            away.due = away.still
        if not away.hints:
            # what happened before it was listened for is asked about again
            self._watch(away, answer.head)
            away.due = True

    async def _line_up(self, lanes: list[tuple[bytes, _Lane]]) -> None:
        """Queue what is behind heads that stand still, as much as one call takes."""
        partition, sent, room, size = self._partition, [], MOST_SENT, MOST_BYTES
        for lane, away in lanes:
            if room <= 0 or size <= 0:
                away.due = True
                continue
            records: list[tuple[RecordId, bytes]] = []
            for record in partition.lanes.line(away.next):
                if room <= 0 or size <= 0 or not self._may_leave(record):
                    break
                run_id = RecordId.parse(partition.run_id(record.offset))
                assert run_id is not None
                records.append((run_id, encode_record(record, partition.tp)))
                room -= 1
                size -= len(records[-1][1])
            if records:
                sent.append((lane, away, LiningUp(lane, records)))
            else:
                away.still = False  # it goes on when the lane is home
        if not sent:
            return
        answers = await self._store.line_up(
            self._registration, partition.token, self._served, [one for _, _, one in sent], self._bounds
        )
        if partition.closed:
            return
        for (lane, away, _), answer in zip(sent, answers, strict=True):
            if answer.taken:
                taken = self._taken(lane, away, answer.taken)
                self._watch(away, partition.run_id(taken[-1].offset))
                self._verdict.lined_up(partition, taken)
            if answer.rest == "home":
                self._home(lane, away)
            elif answer.rest == "full":
                away.still = False
            else:
                away.due = True
        self._offer(partition)

    def _may_leave(self, record: RawRecord) -> bool:
        """Whether the store may have it as one that hasn't begun."""
        partition = self._partition
        attended = partition.addressed.get(record.offset)
        if record.offset in partition.journal or (attended is not None and not attended.untouched):
            return False
        return partition.marks is None or not partition.marks.concerns(record.offset)

    def _taken(self, lane: bytes, away: _Lane, count: int) -> list[RawRecord]:
        """The first of those that wait, which are in the store, or done."""
        partition, head = self._partition, away.next
        assert head is not None
        records = [record for record, _ in zip(partition.lanes.line(head), range(count), strict=False)]
        away.next = partition.lanes.advance(head, count)
        self._floors[lane] = max(self._floors.get(lane, -1), records[-1].offset)
        for record in records:
            attended = partition.addressed.get(record.offset)
            if attended is not None:
                attended.leave()
        return records

    def _home(self, lane: bytes, away: _Lane) -> None:
        assert away.next is not None
        del self._away[lane]
        away.close()
        self._partition.lanes.ready.appendleft(away.next)

    def _watch(self, away: _Lane, run_id: str) -> None:
        """Listen for what happens to the head, then to the last run of the lane, too."""
        for hint in away.hints[1:]:
            hint.close()
        away.hints[1:] = [self._store.on_change(run_id, partial(self._hinted, away))]

    def _hinted(self, away: _Lane) -> None:
        away.still, away.due = False, True
        self._wake.set()

    def close(self) -> None:
        """The partition was let go."""
        for away in self._away.values():
            away.close()
        if self._seeing is not None:
            self._seeing.cancel()
