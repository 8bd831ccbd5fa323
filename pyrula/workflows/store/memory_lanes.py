"""Lanes in memory. Nothing outlives the process, so no holder uses them but tests: they keep the rules testable."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pyrula.workflows.store.lanes import HANDED_OVER, HandedOver, HandingOver, Homecoming, LaneState
from pyrula.workflows.store.memory_board import Chain, Known
from pyrula.workflows.store.memory_record_runs import Address, Record
from pyrula.workflows.store.memory_records import MemoryRecords
from pyrula.workflows.store.messages import WAIT_STATUS, wakes
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.runs import RunDetail


class MemoryLanes(MemoryRecords):
    """LaneStore in memory."""

    @property
    def hands_over(self) -> bool:
        return False

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
        return {lane: LaneState(floor, self._records.is_live(head), head) for lane, (floor, head) in lanes.items()}

    async def hand_over(self, registration: Registration, token: Token, run: HandingOver) -> HandedOver:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        address, position = self._address(registration), run.run_id.position
        if position < self.below_of(registration.source) or address.board.get(position) == HANDED_OVER:
            return HandedOver(True)
        if run.lane is not None and run.lane in address.lanes:
            floor, head = address.lanes[run.lane]
            if position <= floor:
                return HandedOver(True)
            if self._records.is_live(head):
                return HandedOver(False)
        record = self._records.runs[run.run_id]
        messages = tuple(unread for number, unread in record.inbox.items() if number > run.seen)
        if any(wakes(run.waits, message.kind, message.name) for _, message, _ in messages):
            return HandedOver(False, messages)
        del self._records.runs[run.run_id]
        self.drop_rows(registration.source, position)
        address.board[position] = HANDED_OVER
        if run.lane is not None:
            address.lanes[run.lane] = (position, str(run.run_id))
        self._take(registration, record, run)
        return HandedOver(True)

    def _take(self, registration: Registration, record: Record, run: HandingOver) -> None:
        board, chain_id = self._board, str(run.run_id)
        chain = board.chains[chain_id] = Chain(
            id=chain_id,
            name=run.served,
            version=registration.version,
            owner="",
            metadata=registration.metadata,
            params=run.params,
            submitted=b"",
            idempotency_key=None,
            parent=None,
            key=(128, board.queue.next_order()),
            created_at=record.created_at,
            epoch=1,
            attempt=run.attempt,
            cancel=record.cancel,
            counter=record.last,
            rows=dict(run.rows),
            inbox=record.inbox,
            known={key: Known(*known) for key, known in record.known.items()},
            interrupts=record.interrupts,
            children=record.children,
            events=[*record.events, board.event("handed_over")],
        )
        board.wait(chain, WAIT_STATUS[run.waits[0].kind], list(run.waits))

    async def come_home(
        self, registration: Registration, token: Token, asked: Sequence[tuple[bytes, int]]
    ) -> list[Homecoming]:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        lanes, below = self._address(registration).lanes, self.below_of(registration.source)
        answers: list[Homecoming] = []
        for lane, position in asked:
            floor, head = lanes.get(lane, (-1, ""))
            if position < below or position <= floor:
                answers.append("taken")
            else:
                answers.append("away" if self._records.is_live(head) else "home")
        return answers

    async def detail(self, run_id: str) -> RunDetail:
        detail = await super().detail(run_id)
        record = RecordId.parse(run_id)
        if record is None or detail.name == self._records.address_of(record).registration.name:
            return detail
        # it is served under another name, since only its binding may execute it
        return replace(detail, name=self._records.address_of(record).registration.name)
