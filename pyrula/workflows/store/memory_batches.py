"""Triggers in memory."""

import asyncio
from collections.abc import Sequence

from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.store.batches import Buffer, Due, EventBatch, Fed, OpenBatch
from pyrula.workflows.store.memory_board import Board


class MemoryBatches:
    """BatchStore in memory. A call takes effect at once and answers a loop turn later, as a real store's would."""

    _board: Board

    async def feed(self, event: TriggerEvent) -> Fed:
        answer = self._board.batches.feed(event)
        await asyncio.sleep(0)
        return answer

    def forget_event(self, event: TriggerEvent) -> None:
        self._board.batches.forget(event)

    async def due_batches(self, names: Sequence[str]) -> Due:
        await asyncio.sleep(0)
        return self._board.batches.due(names)

    async def take_batch(self, buffer: Buffer) -> EventBatch | None:
        answer = self._board.batches.take(buffer)
        await asyncio.sleep(0)
        return answer

    async def plan_batch(self, batch: EventBatch, plan: bytes) -> bytes:
        answer = self._board.batches.plan(batch, plan)
        await asyncio.sleep(0)
        return answer

    async def drop_batch(self, batch: EventBatch, run_id: str) -> EventBatch | None:
        answer = self._board.batches.drop(batch, run_id)
        await asyncio.sleep(0)
        return answer

    async def open_batches(self, name: str) -> list[OpenBatch]:
        await asyncio.sleep(0)
        return self._board.batches.open(name)
