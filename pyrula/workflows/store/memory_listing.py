"""Listing runs in memory: all of them are at hand, so each call sorts them."""

import asyncio
from collections import Counter

from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import Counts, Line, Page, Wanted, order_after, order_of
from pyrula.workflows.store.memory_board import Board, Chain


class MemoryListing:
    """RunLister in memory."""

    _board: Board

    async def list_runs(self, wanted: Wanted) -> Page:
        await asyncio.sleep(0)
        self._board.expire()
        below, floor = order_after(wanted), wanted.floor
        found = sorted((order_of(chain.id), chain.id) for chain in self._board.chains.values())
        lines: list[Line] = []
        for order, chain_id in reversed(found):
            if order[0] < floor:
                break
            if below is not None and order >= below:
                continue
            line = _line(self._board.chains[chain_id])
            if wanted.fits(line):
                if len(lines) == wanted.limit:
                    return Page(tuple(lines), lines[-1].run_id)
                lines.append(line)
        return Page(tuple(lines), None)

    async def count_runs(self, name: str | None = None) -> Counts:
        await asyncio.sleep(0)
        self._board.expire()
        chains = [chain for chain in self._board.chains.values() if name is None or chain.name == name]
        queued = [chain.queued_at for chain in chains if chain.status is RunStatus.QUEUED]
        return Counts(dict(Counter(chain.status for chain in chains)), min(queued, default=None))


def _line(chain: Chain) -> Line:
    return Line(
        run_id=chain.run_id,
        name=chain.name,
        version=chain.version,
        owner=chain.owner,
        status=chain.status,
        attempt=chain.attempt,
        created_at=chain.created_at,
        finished_at=chain.finished_at,
        worker=chain.worker,
    )
