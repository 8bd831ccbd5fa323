"""Lanes in memory. Nothing outlives the process, so no holder uses them but tests: they keep the rules testable."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pyrula.workflows.store.lanes import (
    HANDED_OVER,
    NO_QUEUE,
    HandedOver,
    HandingOver,
    Homecoming,
    LaneBounds,
    LaneState,
    LinedUp,
    LiningUp,
    Persistence,
)
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory_board import Chain, Known
from pyrula.workflows.store.memory_record_runs import Address, Lane, Record
from pyrula.workflows.store.memory_records import MemoryRecords
from pyrula.workflows.store.messages import WAIT_STATUS, Message, wakes
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.runs import RunDetail


class MemoryLanes(MemoryRecords):
    """LaneStore in memory."""

    @property
    def hands_over(self) -> bool:
        return False

    @property
    def settles(self) -> bool:
        return False

    async def persistence(self) -> Persistence:
        await asyncio.sleep(0)
        return Persistence("", "", False)

    def below_of(self, source: bytes) -> int:
        """The committed position of a source's last prune."""
        raise NotImplementedError

    def drop_rows(self, source: bytes, position: int) -> None:
        """The journal rows of a position go."""
        raise NotImplementedError

    def _address(self, registration: Registration) -> Address:
        return self._records.addresses[self.shard_of(registration.source), registration.address]

    async def lanes(self, source: bytes, address: str) -> dict[bytes, LaneState]:
        await asyncio.sleep(0)
        found = self._records.addresses.get((self.shard_of(source), address))
        lanes = {} if found is None else found.lanes
        return {
            name: LaneState(lane.floor, bool(lane.head), lane.head, len(lane.queue), lane.size)
            for name, lane in lanes.items()
        }

    async def hand_over(self, registration: Registration, token: Token, run: HandingOver) -> HandedOver:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        address, position = self._address(registration), run.run_id.position
        if position < self.below_of(registration.source) or address.board.get(position) == HANDED_OVER:
            return HandedOver(True)
        lane = None if run.lane is None else address.lanes.get(run.lane, Lane())
        if lane is not None and position <= lane.floor:
            return HandedOver(True)
        if (lane is not None and lane.head) or self._records.is_live(str(run.run_id)):
            return HandedOver(False)
        record = self._records.runs[run.run_id]
        messages = tuple(unread for number, unread in record.inbox.items() if number > run.seen)
        if any(self._keeps_it(run, unread.message) for unread in messages):
            return HandedOver(False, messages)
        del self._records.runs[run.run_id]
        self.drop_rows(registration.source, position)
        address.board[position] = HANDED_OVER
        if run.lane is not None and lane is not None:
            lane.floor, lane.head = position, str(run.run_id)
            address.lanes[run.lane] = lane
        self._take(registration, record, run)
        return HandedOver(True)

    @staticmethod
    def _keeps_it(run: HandingOver, message: Message) -> bool:
        """Whether a message that came in between is to be seen to first."""
        if run.failure is not None:
            return message.kind == "cancel"
        return wakes(run.waits, message.kind, message.name)

    def _take(self, registration: Registration, record: Record, run: HandingOver) -> None:
        board = self._board
        chain = self._chain(registration, run.run_id, record, run.served, run.params)
        chain.epoch, chain.attempt, chain.rows, chain.lane = 1, run.attempt, dict(run.rows), run.lane
        chain.events.append(board.event("handed_over"))
        if run.failure is None:
            board.wait(chain, WAIT_STATUS[run.waits[0].kind], list(run.waits))
        else:
            chain.error, chain.failed = run.failure, True
            board.wait(chain, RunStatus.PAUSED, [])

    def _chain(self, registration: Registration, run_id: RecordId, record: Record, served: str, params: bytes) -> Chain:
        board, chain_id = self._board, str(run_id)
        chain = board.chains[chain_id] = Chain(
            id=chain_id,
            name=served,
            version=registration.version,
            owner="",
            metadata=registration.metadata,
            params=params,
            submitted=b"",
            idempotency_key=None,
            parent=None,
            key=(128, board.queue.next_order()),
            created_at=record.created_at,
            cancel=record.cancel,
            counter=record.last,
            inbox=record.inbox,
            known={key: Known(*known) for key, known in record.known.items()},
            interrupts=record.interrupts,
            children=record.children,
            events=record.events,
        )
        chain.on_end, chain.ahead = self._records.leave_lane, self._records.ahead
        return chain

    async def line_up(
        self,
        registration: Registration,
        token: Token,
        served: str,
        lanes: Sequence[LiningUp],
        bounds: LaneBounds,
    ) -> list[LinedUp]:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        return [self._line_up(registration, served, one, bounds) for one in lanes]

    def _line_up(self, registration: Registration, served: str, one: LiningUp, bounds: LaneBounds) -> LinedUp:
        address, below = self._address(registration), self.below_of(registration.source)
        lane = address.lanes.get(one.lane, Lane())
        for taken, (run_id, params) in enumerate(one.records):
            if run_id.position < below or run_id.position <= lane.floor:
                continue
            if not lane.head:
                return LinedUp(taken, "home")
            if self._is_full(address, lane, bounds, len(params)) or self._records.is_live(str(run_id)):
                return LinedUp(taken, "full")
            self._put_behind(registration, served, one.lane, lane, run_id, params)
            lane.floor = run_id.position
        return LinedUp(len(one.records), "all")

    @staticmethod
    def _is_full(address: Address, lane: Lane, bounds: LaneBounds, more: int) -> bool:
        in_all = sum(each.size for each in address.lanes.values())
        return len(lane.queue) >= bounds.records or lane.size + more > bounds.size or in_all + more > bounds.size_in_all

    def _put_behind(
        self, registration: Registration, served: str, name: bytes, lane: Lane, run_id: RecordId, params: bytes
    ) -> None:
        address, board = self._address(registration), self._board
        record, counted = self._records.runs.pop(run_id, None), run_id.position in address.board
        if record is not None and record.ended and counted:
            self._records.runs[run_id] = record  # it ended while its record waited
            return
        if record is None or record.ended:
            record = Record(board.now())
        self._records.gone.pop(run_id, None)
        if counted:
            address.board[run_id.position] = HANDED_OVER
        chain = self._chain(registration, run_id, record, served, params)
        chain.lane = name
        chain.events.append(board.event("lined_up"))
        lane.queue[chain.id] = len(params)
        board.put_behind(chain)

    async def come_home(
        self,
        registration: Registration,
        token: Token,
        asked: Sequence[tuple[bytes, int]],
        bounds: LaneBounds = NO_QUEUE,
    ) -> list[Homecoming]:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        return [self._stands(registration, *one, bounds) for one in asked]

    def _stands(self, registration: Registration, name: bytes, position: int, bounds: LaneBounds) -> Homecoming:
        address = self._address(registration)
        lane = address.lanes.get(name, Lane())
        if position < self.below_of(registration.source) or position <= lane.floor:
            return Homecoming("taken", lane.head)
        if not lane.head:
            return Homecoming("home")
        if self._is_full(address, lane, bounds, 1):
            return Homecoming("full", lane.head)
        moving = self._board.chains[lane.head].status in (RunStatus.QUEUED, RunStatus.RUNNING)
        return Homecoming("busy" if moving else "open", lane.head)

    async def detail(self, run_id: str) -> RunDetail:
        detail = await super().detail(run_id)
        record = RecordId.parse(run_id)
        if record is None or detail.name == self._records.address_of(record).registration.name:
            return detail
        # it is served under another name, since only its binding may execute it
        return replace(detail, name=self._records.address_of(record).registration.name)
