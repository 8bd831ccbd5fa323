"""What stands before a queued run in memory, and the register of workers."""

import asyncio

from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.memory_board import Board
from pyrula.workflows.store.outlook import HOLDERS_TOLD, Outlook
from pyrula.workflows.store.registry import LIVE_SECONDS, Enlisted, WorkerEntry


class MemoryOutlook:
    """The part of RunSender that explains, and Registry."""

    _board: Board

    async def outlook(self, run_id: str) -> Outlook:
        await asyncio.sleep(0)
        board, chain = self._board, self._board.find(run_id)
        stamp = chain.stamp or Stamp()
        if chain.finished:
            return Outlook(None, board.now(), stamp.limit, stamp.rate)
        if chain.ahead is not None and chain.behind:
            ahead, head = chain.ahead(chain)
            return Outlook(chain.since, board.now(), before=ahead, behind=head)
        facts = board.queue.facts(chain.id, chain.name, chain.stamp, chain.paid, board.microseconds())
        return Outlook(
            since=chain.since,
            now=board.now(),
            limit=stamp.limit,
            rate=stamp.rate,
            used=facts.used,
            holders=facts.holders[:HOLDERS_TOLD],
            next_start=None if facts.due is None else facts.due / 1e6,
            gate=facts.gate,
            before=facts.before,
            owners_before=facts.owners_before,
        )

    async def enlist(self, worker: str, served: tuple[Enlisted, ...]) -> None:
        await asyncio.sleep(0)
        self._board.workers[worker] = (self._board.now(), served)

    async def strike(self, worker: str) -> None:
        await asyncio.sleep(0)
        self._board.workers.pop(worker, None)

    async def enlisted(self) -> list[WorkerEntry]:
        await asyncio.sleep(0)
        since = self._board.now() - LIVE_SECONDS
        self._board.workers = {worker: entry for worker, entry in self._board.workers.items() if entry[0] >= since}
        return sorted(WorkerEntry(worker, served) for worker, (_, served) in self._board.workers.items())
