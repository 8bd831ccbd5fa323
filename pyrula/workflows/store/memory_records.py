"""Runs of records in memory: both sides of them, in front of what is there for submitted runs."""

import asyncio
from collections.abc import Sequence

from pyrula.workflows.store.history import History
from pyrula.workflows.store.lanes import HANDED_OVER
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory_board import Board
from pyrula.workflows.store.memory_holders import MemoryRunHolder
from pyrula.workflows.store.memory_record_runs import Address, Record, RecordRuns
from pyrula.workflows.store.memory_senders import MemoryRunSender, check_size
from pyrula.workflows.store.messages import Applied, Delivered, Interrupt, Message
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.record_places import locate
from pyrula.workflows.store.records import ENDED, GONE_SECONDS, RecordState, Registration
from pyrula.workflows.store.refusals import RunNotFoundError, TransitionRefused
from pyrula.workflows.store.runs import Origin, Query, Result, RunDetail

__all__ = ["MemoryRecords"]


class MemoryRecords(MemoryRunSender, MemoryRunHolder):
    """RecordStore in memory, and RunSender for runs of records."""

    _board: Board
    _records: RecordRuns

    def check_token(self, source: bytes, token: Token) -> None:
        """LeaseLost if the source isn't held with this token."""
        raise NotImplementedError

    def rows_of(self, source: bytes, position: int) -> tuple[tuple[int, bytes], ...]:
        """The journal rows of a position, by index."""
        raise NotImplementedError

    def shard_of(self, source: bytes) -> int:
        """The shard that all keys of this source lie on."""
        raise NotImplementedError

    def _here(self, run_id: str) -> RecordId | None:
        """None for what `MemoryRunHolder` knows: a submitted run, or one that was handed over."""
        record = RecordId.parse(run_id)
        return None if record is None or self._records.is_elsewhere(record) else record

    # the client's side

    def _deliver(self, run_id: str, message: Message) -> Delivered:
        record = self._here(run_id)
        if record is None:
            return super()._deliver(run_id, message)
        check_size(f"the {message.kind} {message.name!r}", message.payload)
        return self._records.put(record, message)

    async def status(self, run_id: str) -> RunStatus:
        record = self._here(run_id)
        if record is None:
            return await super().status(run_id)
        await asyncio.sleep(0)
        run = self._records.see(record)
        return (await locate(self, run_id)).status if run is None else run.status

    async def result(self, run_id: str) -> Result | None:
        record = self._here(run_id)
        if record is None:
            return await super().result(run_id)
        await asyncio.sleep(0)
        run = self._records.see(record)
        if run is None:
            self._records.put(record, None)
        return Result(run_id, run.status, run.value, run.error) if run is not None and run.ended else None

    async def read_update(self, run_id: str, update_id: str) -> Applied | None:
        record = self._here(run_id)
        if record is None:
            return await super().read_update(run_id, update_id)
        await asyncio.sleep(0)
        run = self._records.see(record)
        found = None if run is None else run.known.get(("update", update_id))
        return None if found is None else found[0]

    async def detail(self, run_id: str) -> RunDetail:
        record = self._here(run_id)
        if record is None:
            return await super().detail(run_id)
        await asyncio.sleep(0)
        run, registration = self._records.see(record), self._records.address_of(record).registration
        if run is None:
            run = Record(self._board.now(), (await locate(self, run_id)).status)
        return RunDetail(
            run_id=run_id,
            status=run.status,
            name=registration.name,
            version=registration.version,
            owner="",
            metadata=registration.metadata,
            params=b"{}",
            attempt=run.attempt,
            created_at=run.created_at,
            finished_at=run.finished_at,
            parent=None,
            waits=run.waits,
            interrupts=tuple(Interrupt(*pair) for pair in run.interrupts.items()),
            unread=tuple(run.inbox.values()),
            worker=None,
            deaths=0,
            cancel_requested=run.cancel,
            value=run.value,
            error=run.error,
        )

    async def origin(self, run_id: str) -> Origin:
        record = self._here(run_id)
        if record is None:
            return await super().origin(run_id)
        return Origin(self._records.address_of(record).registration.name, "")

    async def events(self, run_id: str) -> list[bytes]:
        record = self._here(run_id)
        if record is None:
            return await super().events(run_id)
        run = self._records.see(record)
        return list((await locate(self, run_id)).events if run is None else run.events)

    async def events_of(self, run_id: str, start: int, limit: int | None = None) -> list[bytes]:
        record = self._here(run_id)
        if record is None:
            return await super().events_of(run_id, start, limit)
        run = self._records.runs.get(record)
        return [] if run is None else run.events[start : None if limit is None else start + limit]

    async def history(self, run_id: str) -> History:
        record = self._here(run_id)
        if record is None:
            return await super().history(run_id)
        detail = await self.detail(run_id)
        kept = self._records.runs.get(record)
        if kept is not None and kept.ended and kept.params:
            return History(
                run_id, detail.name, detail.version, detail.status, kept.params, tuple(kept.rows), detail.attempt, "",
                detail.metadata,
            )  # fmt: skip
        rows = self.rows_of(self._records.address_of(record).registration.source, record.position)
        return History(
            run_id, detail.name, detail.version, detail.status, detail.params, rows, detail.attempt, "", detail.metadata
        )

    async def unpause(self, run_id: str) -> RunStatus:
        record = self._here(run_id)
        if record is None:
            return await super().unpause(run_id)
        run = self._records.see(record)
        dropped = False
        if run is not None and not run.ended:
            for number in [number for number, unread in run.inbox.items() if unread.message.kind == "pause"]:
                del run.inbox[number]
                dropped = True
        return await self._go_on(record, run, dropped, "is {}, not paused")

    async def retry(self, run_id: str) -> RunStatus:
        record = self._here(run_id)
        if record is None:
            return await super().retry(run_id)
        run = self._records.see(record)
        return await self._go_on(record, run, False, "is {}; only a failed or cancelled run can be retried")

    async def _go_on(self, record: RecordId, run: Record | None, dropped: bool, refusal: str) -> RunStatus:
        await asyncio.sleep(0)
        status = (await locate(self, str(record))).status if run is None else run.status
        if run is None or not (dropped or run.status is RunStatus.PAUSED):
            raise TransitionRefused(str(record), status, refusal.format(status))
        if run.status is RunStatus.PAUSED:
            run.status, run.error = RunStatus.QUEUED, None
            run.restarts += 1
            run.events.append(self._board.event("unpaused"))
        self._records.notify(record, run)
        self._records.tell_changed(record)
        return run.status

    async def ask(self, run_id: str, query: Query, *, seconds: float) -> None:
        record = self._here(run_id)
        if record is None:
            await super().ask(run_id, query, seconds=seconds)
            return
        self._records.see(record)
        address = self._records.addresses.get((record.shard, record.address))
        if address is not None:
            address.questions[query.id] = (query._replace(run_id=run_id), self._board.now() + seconds)
            self._records.tell_holder(address, run_id)
        await asyncio.sleep(0)

    # the holder's side

    async def register_source(self, token: Token, registration: Registration) -> dict[int, int]:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        key = self.shard_of(registration.source), registration.address
        address = self._records.addresses.get(key)
        if address is None or address.incarnation != token.incarnation or registration.over == "everything":
            news = 0 if address is None else address.news
            lanes = {} if address is None else address.lanes
            address = self._records.addresses[key] = Address(registration, token.incarnation, registration.below, news)
            address.lanes = {lane: kept for lane, kept in lanes.items() if kept.head}
            if registration.over == "everything":
                # one that is away goes on, but its floor means nothing in another log
                for kept in address.lanes.values():
                    kept.floor = -1
        elif registration.over == "ended":
            address.lanes = {lane: kept for lane, kept in address.lanes.items() if kept.head}
            address.board = {
                position: count
                for position, count in address.board.items()
                if count != ENDED
                and not (count == HANDED_OVER and not self._records.is_live(self._id(key, token, position)))
            }
        address.registration, address.below = registration, registration.below
        return dict(address.board)

    @staticmethod
    def _id(key: tuple[int, str], token: Token, position: int) -> str:
        return str(RecordId(*key, position, token.incarnation))

    async def news(self, shard: int, addresses: Sequence[str]) -> list[int]:
        await asyncio.sleep(0)
        known = self._records.addresses
        return [known[shard, address].news if (shard, address) in known else 0 for address in addresses]

    async def board(self, shard: int, address: str) -> dict[int, int]:
        await asyncio.sleep(0)
        found = self._records.addresses.get((shard, address))
        return {} if found is None else dict(found.board)

    async def read_record(self, run_id: RecordId, seen: int) -> RecordState | None:
        await asyncio.sleep(0)
        try:
            run = self._records.see(run_id)
        except RunNotFoundError:
            return None
        if run is None:
            return None
        messages = tuple(unread for number, unread in run.inbox.items() if number > seen)
        return RecordState(
            run.status, run.restarts, messages, tuple(Interrupt(*pair) for pair in run.interrupts.items())
        )

    async def forget_record(self, registration: Registration, token: Token, run_id: RecordId) -> None:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        run = self._records.runs.get(run_id)
        if self._records.is_elsewhere(run_id):
            return
        if run is None or not run.ended:
            self._records.runs.pop(run_id, None)
            self._records.gone[run_id] = self._board.now() + GONE_SECONDS
        self._records.address_of(run_id).board.pop(run_id.position, None)
        self._records.tell_changed(run_id)

    async def pass_records(
        self, registration: Registration, token: Token, below: int, positions: Sequence[int]
    ) -> list[bytes]:
        await asyncio.sleep(0)
        self.check_token(registration.source, token)
        address = self._records.addresses[self.shard_of(registration.source), registration.address]
        address.below = below
        for position in positions:
            address.board.pop(position, None)
        gone = [name for name, lane in address.lanes.items() if not lane.head and lane.floor < below]
        for name in gone:
            del address.lanes[name]
        return gone

    async def take_questions(self, shard: int, address: str) -> tuple[Query, ...]:
        await asyncio.sleep(0)
        found = self._records.addresses.get((shard, address))
        if found is None:
            return ()
        questions, found.questions = found.questions, {}
        now = self._board.now()
        return tuple(query for query, until in questions.values() if until > now)

    async def incarnation(self, shard: int, address: str) -> int | None:
        await asyncio.sleep(0)
        found = self._records.addresses.get((shard, address))
        return None if found is None else found.incarnation
