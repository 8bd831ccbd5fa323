"""A store in this process's memory: for tests and ``pyrula dev``. Nothing outlives the process."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.errors import LeaseLost, StaleToken
from pyrula.workflows.store.memory_backfills import KeptBackfill, MemoryBackfills
from pyrula.workflows.store.memory_batches import MemoryBatches
from pyrula.workflows.store.memory_board import Board
from pyrula.workflows.store.memory_listing import MemoryListing
from pyrula.workflows.store.memory_outlook import MemoryOutlook
from pyrula.workflows.store.memory_record_runs import RecordRuns
from pyrula.workflows.store.memory_redrive import MemoryRedrive
from pyrula.workflows.store.memory_schedules import MemorySchedules
from pyrula.workflows.store.port import MAX_POSITION, Batch, Claim, Row, Token

_SHARDS = 16


@dataclass(slots=True)
class _Source:
    token: Token
    claimant: object
    held: bool = True
    crashes: int = 0
    crashed: bool = False
    below: int | None = None
    high: int | None = None
    witness: bytes | None = None
    rows: dict[int, dict[int, bytes]] = field(default_factory=dict)


class MemoryStore(MemoryRedrive, MemorySchedules, MemoryListing, MemoryBackfills, MemoryBatches, MemoryOutlook):
    """A SourceStore and RunStore that forgets everything with the process.

    >>> store = MemoryStore()
    >>> store.durable
    False
    """

    durable = False

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.instance_id = uuid.uuid4().hex
        self._sources: dict[bytes, _Source] = {}
        self._board = Board(self.clock)
        self._records = RecordRuns(self._board)
        self._board.pass_elsewhere = self._records.pass_on
        self._backfills: dict[str, KeptBackfill] = {}

    def twin(self) -> "MemoryStore":
        """The same journals and runs as another process would see them."""
        twin = MemoryStore(self.clock)
        twin.instance_id, twin._sources = self.instance_id, self._sources
        twin._board, twin._backfills = self._board, self._backfills
        twin._records = self._records
        return twin

    def check_token(self, source: bytes, token: Token) -> None:
        self._held(source, token)

    def below_of(self, source: bytes) -> int:
        return self._sources[source].below or 0

    def drop_rows(self, source: bytes, position: int) -> None:
        self._sources[source].rows.pop(position, None)

    def rows_of(self, source: bytes, position: int) -> tuple[tuple[int, bytes], ...]:
        found = self._sources.get(source)
        return () if found is None else tuple(sorted(found.rows.get(position, {}).items()))

    def __repr__(self) -> str:
        return f"MemoryStore(sources={len(self._sources)})"

    def shard_of(self, source: bytes) -> int:
        return int.from_bytes(source) % _SHARDS

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def claim_source(self, source: bytes, generation: int, *, replaces: Token | None = None) -> Claim:
        found = self._sources.get(source)
        if found is None:
            found = self._sources[source] = _Source(Token(1, generation), claimant=self)
        else:
            self._take_over(found, generation, replaces)
        below = found.below
        rows = [
            Row(position, index, data)
            for position, entries in sorted(found.rows.items())
            if below is None or position >= below
            for index, data in sorted(entries.items())
        ]
        return Claim(found.token, below, found.high, found.witness, found.crashes, found.crashed, rows)

    def _take_over(self, found: _Source, generation: int, replaces: Token | None) -> None:
        stored, same = found.token, found.claimant is self
        if replaces == stored:
            token = Token(stored.incarnation + 1, generation)
        elif generation < stored.generation or (generation == stored.generation and not same):
            raise StaleToken(stored)
        else:
            token = Token(stored.incarnation, generation)
        found.crashed = found.held and not same
        found.crashes += found.crashed
        found.token, found.claimant, found.held = token, self, True

    def _held(self, source: bytes, token: Token) -> _Source:
        found = self._sources.get(source)
        if found is None or found.token != token:
            raise LeaseLost(f"source {source.hex()} was claimed with another token than {token}")
        return found

    async def append_rows(self, batches: Sequence[Batch]) -> list[Exception | None]:
        # a real store answers later: code that relies on an answer within the same turn is wrong here too
        await asyncio.sleep(0)
        return [self._append(batch) for batch in batches]

    def _append(self, batch: Batch) -> Exception | None:
        try:
            found = self._held(batch.source, batch.token)
        except LeaseLost as lost:
            return lost
        if not 0 <= batch.high <= MAX_POSITION:
            return ValueError(f"position {batch.high} is outside 0..{MAX_POSITION}")
        rows = batch.rows
        change = batch.change
        if change is not None:
            written = self._records.write(change)
            rows = [(change.run_id.position, *row) for row in change.rows] if written else []
        for position, index, data in rows:
            if data:
                found.rows.setdefault(position, {})[index] = data
            elif (entries := found.rows.get(position)) is not None:
                entries.pop(index, None)
                if not entries:
                    del found.rows[position]
        found.high = batch.high if found.high is None else max(found.high, batch.high)
        if batch.witness:
            found.witness = batch.witness
        return None

    async def prune_source(self, source: bytes, token: Token, below: int, witness: bytes | None) -> None:
        found = self._held(source, token)
        if found.below is not None and below < found.below:
            return
        if below != found.below:
            found.below, found.crashes = below, 0
        if witness:
            found.witness = witness
        for position in [position for position in found.rows if position < below]:
            del found.rows[position]

    async def lower_source(self, source: bytes, token: Token, below: int, *, forget: bool = False) -> None:
        found = self._held(source, token)
        if forget:
            found.below, found.high, found.witness = below, None, None
            found.rows.clear()
        elif found.below is not None and below < found.below:
            found.below = below

    async def refresh_source(self, source: bytes, token: Token) -> None:
        self._held(source, token)

    async def release_source(self, source: bytes, token: Token) -> None:
        found = self._held(source, token)
        found.held, found.crashes = False, 0
