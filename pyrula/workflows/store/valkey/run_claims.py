"""Claiming on Valkey: which shards to ask for how many runs, and what a claimed run needs beside its record.

Rules: a worker's visit to a shard goes on until as many runs were taken as owners sat in its rings; only then comes
the next shard. So a tenant with much work on every shard doesn't keep the others waiting.
"""

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from typing import Any

from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.messages import Lease, Parent
from pyrula.workflows.store.runs import ClaimedRun, Claims
from pyrula.workflows.store.valkey.run_keys import class_of, worker_of
from pyrula.workflows.store.valkey.run_link import RunLink
from pyrula.workflows.store.valkey.run_reading import read_rows
from pyrula.workflows.store.valkey.run_wire import read_extras, read_messages, seconds_of

DEATHS_TO_ALONE = 3


class Tour:
    """One worker's way through the shards. Pure."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._at = 0
        self._left: int | None = None

    def share(self, seats: Sequence[int], n: int) -> dict[int, int]:
        """How many runs to ask of each shard, given how many owners sit there."""
        total = sum(seats)
        if total == 0:
            return {}
        if n >= total:
            self._left = None
            shares = {shard: n * seats[shard] // total for shard in range(self._shards) if seats[shard]}
            # what division leaves over goes round
            turn = itertools.cycle(sorted(shares, key=lambda shard: (shard - self._at) % self._shards))
            for shard in itertools.islice(turn, n - sum(shares.values())):
                shares[shard] += 1
            return shares
        shares = {}
        while n > 0:
            if self._left is None:
                self._left = seats[self._at]
            taken = min(self._left, seats[self._at], n)
            if taken:
                shares[self._at] = shares.get(self._at, 0) + taken
            n -= taken
            self._left -= taken
            if self._left <= 0 or taken == 0:
                self._at, self._left = (self._at + 1) % self._shards, None
        return shares


class Claimer:
    """Claims for the workers of one store."""

    def __init__(self, runs: RunLink) -> None:
        self._runs = runs
        self._tours: dict[str, Tour] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._open: dict[str, set[object]] = {}
        self._sequence = itertools.count(secrets.randbits(48) << 8)

    def forget(self, worker: str) -> None:
        self._tours.pop(worker, None)
        self._turns.pop(worker, None)
        self._open.pop(worker, None)

    def under_way(self, worker: str) -> frozenset[object]:
        """The worker's claims whose caller has no answer yet."""
        return frozenset(self._open.get(worker, ()))

    async def claim(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> Claims:
        this = object()
        under_way = self._open.setdefault(worker, set())
        under_way.add(this)
        try:
            # one at a time: a shard remembers its answer to a worker's last claim only
            async with self._turns.setdefault(worker, asyncio.Lock()):
                taken, due = await self._take(worker, served, n)
            claimed = await asyncio.gather(*(self._complete(worker, run) for run in taken))
            return Claims(tuple(claimed), due)
        finally:
            under_way.discard(this)

    async def _take(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> tuple[list[Any], float | None]:
        stamps = dict(served)
        stamped = [class_of(*pair) for pair in served]
        unstamped = [class_of(name, None) for name in stamps]
        described = [part for cls in stamped for part in (cls, b"", b"")]
        for cls, (name, version) in zip(unstamped, stamps.items(), strict=True):
            described += [cls, version.encode(), class_of(name, version)]
        taken: list[Any] = []
        # what is ready may turn out to be shut, and then leaves the rings
        for _ in range(self._runs.shards + 1):
            shares, due = await self._shares(worker, [*stamped, *unstamped], n - len(taken))
            replies = await asyncio.gather(
                *(self._claim(worker, shard, share, described) for shard, share in shares.items())
            )
            taken += [run for _, runs in replies for run in runs]
            # what was asked of a shard with few runs is asked of the others
            if len(taken) >= n or not shares or self._runs.shards == 1:
                break
        dues = [seconds for text in (due, *(due for due, _ in replies)) if (seconds := seconds_of(text)) is not None]
        return taken, min(dues, default=None)

    async def _shares(self, worker: str, classes: Sequence[bytes], n: int) -> tuple[dict[int, int], bytes]:
        """How many runs to ask of each shard, and when the first timer of any falls due."""
        runs = self._runs
        if runs.shards == 1:
            return {0: n}, b""
        found = await asyncio.gather(*(runs.script("peek", shard, (), classes) for shard in range(runs.shards)))
        tour = self._tours.setdefault(worker, Tour(runs.shards))
        dues = [due for due, _ in found if due]
        return tour.share([seats for _, seats in found], n), min(dues, key=float, default=b"")

    async def _claim(self, worker: str, shard: int, n: int, described: Sequence[bytes]) -> tuple[bytes, list[Any]]:
        told = [worker.encode(), worker_of(worker), b"%d" % next(self._sequence), b"%d" % n]
        due, runs = await self._runs.script("claim", shard, (), [*told, b"%d" % (len(described) // 3), *described])
        return due, runs

    async def _complete(self, worker: str, found: Sequence[Any]) -> ClaimedRun:
        chain, link, epoch, version, attempt, deaths, doomed, retried = found
        run = RunId.parse(chain.decode())._replace(link=link)
        lease = Lease(str(run), worker, epoch)
        return await read_claimed(
            self._runs, run, lease, version.decode(), attempt, deaths, bool(doomed), bool(retried)
        )


async def read_claimed(
    runs: RunLink, run: RunId, lease: Lease, version: str, attempt: int, deaths: int, doomed: bool, retried: bool
) -> ClaimedRun:
    """What a run's new holder gets."""
    keys, funnel = runs.keys(run), runs.funnel
    fields, extras, rows, (verdict, *messages) = await asyncio.gather(
        funnel.ask(b"HMGET", keys.hash, b"name", b"params", b"owner", b"metadata", b"created", b"parent", b"wait"),
        funnel.ask(b"HGETALL", keys.extras),
        read_rows(runs, keys.journal),
        runs.script(
            "unread",
            run.shard,
            [keys.hash, keys.inbox],
            [run.chain.encode(), b"%d" % run.link, lease.worker.encode(), b"%d" % lease.epoch, b"0"],
        ),
    )
    name, params, owner, metadata, created, parent, wait = fields
    interrupts, children = read_extras(extras)
    return ClaimedRun(
        lease=lease,
        name=name.decode(),
        version=version,
        params=params,
        rows=rows,
        # a lease that was lost meanwhile is told at the first write
        messages=read_messages(messages[0]) if verdict == b"ok" else (),
        attempt=attempt,
        owner=owner.decode(),
        metadata=metadata,
        created_at=int(created) / 1e6,
        parent=None if parent is None else Parent(parent.decode(), wait.decode()),
        deaths=deaths,
        alone=deaths >= DEATHS_TO_ALONE,
        doomed=doomed,
        retried=retried,
        interrupts=interrupts,
        children=children,
    )
