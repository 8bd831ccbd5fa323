"""Listing runs on Valkey: ids from the shards' indexes, then what is told of each, in few round trips.

Rules: every shard is asked for no more ids than are wanted; the indexes give names and statuses, or an owner, and what
is left of the question is asked of the runs themselves.
"""

import asyncio
from collections import Counter

from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import MAX_EXAMINED, Counts, Line, Page, Wanted, order_after, order_of
from pyrula.workflows.store.valkey.run_keys import class_of, owner_of
from pyrula.workflows.store.valkey.run_link import RunLink
from pyrula.workflows.store.valkey.run_wire import LISTED, STATUS_LETTERS, read_status, seconds_of

_LEAST = 16
"""Ids asked for at once, at least."""


class ValkeyListing:
    """RunLister on Valkey."""

    _runs: RunLink

    async def list_runs(self, wanted: Wanted) -> Page:
        below, examined = order_after(wanted), 0
        told = _index(wanted)
        if told is None:
            return Page((), None)
        lines: list[Line] = []
        # one more than wanted tells whether there is a next page
        while len(lines) <= wanted.limit and examined < MAX_EXAMINED:
            amount = max(wanted.limit + 1 - len(lines), _LEAST)
            ids = await self._ids(below, wanted.floor, amount, told)
            lines += [line for line in await self._lines(ids) if line is not None and wanted.fits(line)]
            if len(ids) < amount and len(lines) <= wanted.limit:
                return Page(tuple(lines), None)
            examined += len(ids)
            below = order_of(ids[-1])
        if len(lines) > wanted.limit:
            kept = lines[: wanted.limit]
            return Page(tuple(kept), kept[-1].run_id)
        assert below is not None
        return Page(tuple(lines), f"{below[1]:02x}-{below[0]}")

    async def _ids(self, below: tuple[str, int] | None, floor: str, amount: int, told: tuple[bytes, ...]) -> list[str]:
        """The highest ids under `below`, of all shards."""
        runs = self._runs
        asked = []
        for shard in range(runs.shards):
            upper = b""
            if below is not None:
                # of the same text on two shards the higher shard comes first
                upper = b"%c%02x-%b" % (b"[" if shard < below[1] else b"(", shard, below[0].encode())
            lower = b"%02x-%b" % (shard, floor.encode())
            asked.append(runs.script("find", shard, (), [b"%d" % amount, upper, lower, *told]))
        found = [chain.decode() for ids in await asyncio.gather(*asked) for chain in ids]
        return sorted(found, key=order_of, reverse=True)[:amount]

    async def _lines(self, ids: list[str]) -> list[Line | None]:
        """Of runs that have gone meanwhile, None."""
        runs = self._runs
        shards: dict[int, list[RunId]] = {}
        for chain in ids:
            run = RunId.parse(chain)
            shards.setdefault(run.shard, []).append(run)
        asked = [
            runs.script("briefs", shard, [runs.keys(run).hash for run in some], [run.chain.encode() for run in some])
            for shard, some in shards.items()
        ]
        lines: dict[str, Line] = {}
        for some, briefs in zip(shards.values(), await asyncio.gather(*asked), strict=True):
            for run, brief in zip(some, briefs, strict=True):
                if brief and brief[4] is not None:
                    status, link, attempt, worker, name, owner, created, finished, version = brief
                    lines[run.chain] = Line(
                        run_id=str(run._replace(link=link)),
                        name=name.decode(),
                        version=version.decode() or None,
                        owner=owner.decode(),
                        status=read_status(status),
                        attempt=attempt,
                        created_at=int(created) / 1e6,
                        finished_at=seconds_of(finished),
                        worker=worker.decode() or None,
                    )
        return [lines.get(chain) for chain in ids]

    async def count_runs(self, name: str | None = None) -> Counts:
        runs, told = self._runs, [b"" if name is None else class_of(name, None)]
        totals: Counter[RunStatus] = Counter()
        first: list[float] = []
        for since, *pairs in await asyncio.gather(
            *(runs.script("counts", shard, (), told) for shard in range(runs.shards))
        ):
            if since:
                first.append(int(since) / 1e6)
            for letter, total in zip(pairs[::2], pairs[1::2], strict=True):
                totals[LISTED[letter]] += total
        return Counts({status: total for status, total in totals.items() if total}, min(first, default=None))


def _index(wanted: Wanted) -> tuple[bytes, bytes, bytes] | None:
    """The index that leaves least to be filtered: its kind, whose list in it, status letters. None: no run can fit."""
    if wanted.owner:
        return b"o", owner_of(wanted.owner), b""
    if wanted.name is None and wanted.statuses is None:
        return b"a", b"", b""
    name = b"" if wanted.name is None else class_of(wanted.name, None)
    if wanted.statuses is None:
        return b"n", name, b""
    letters = b"".join(sorted(STATUS_LETTERS[status] for status in wanted.statuses if status in STATUS_LETTERS))
    return (b"n", name, letters) if letters else None
