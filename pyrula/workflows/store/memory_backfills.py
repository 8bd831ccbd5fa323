"""Backfills in memory."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.backfills import (
    BACKFILL_OVER,
    BackfillNotFoundError,
    BackfillRefused,
    BackfillStatus,
    BackfillVerb,
    Hold,
    PartSave,
    PartState,
    StoredBackfill,
    StoredPart,
    Taken,
)

_ALLOWED: dict[BackfillVerb, frozenset[BackfillStatus]] = {
    "pause": frozenset({BackfillStatus.REQUESTED, BackfillStatus.RUNNING}),
    "resume": frozenset({BackfillStatus.PAUSED, BackfillStatus.FAILED}),
    "cancel": frozenset({BackfillStatus.REQUESTED, BackfillStatus.RUNNING, BackfillStatus.PAUSED}),
}


_NOBODY = Hold("", 0, 0)


@dataclass(slots=True)
class _Part:
    progress: bytes
    state: PartState = "open"
    hold: Hold = _NOBODY
    problem: str = ""


@dataclass(slots=True)
class KeptBackfill:
    """A backfill and its parts."""

    head: StoredBackfill
    parts: dict[int, _Part] = field(default_factory=dict)
    wish: str = ""

    def shown(self, *, progress: bool) -> StoredBackfill:
        parts = (
            StoredPart(
                number,
                part.state,
                part.hold if part.hold.worker else None,
                part.problem,
                part.progress if progress else b"",
            )
            for number, part in sorted(self.parts.items())
        )
        return replace(self.head, parts=tuple(parts), wish=self.wish)


class MemoryBackfills:
    """BackfillStore in memory."""

    clock: Clock
    _backfills: dict[str, KeptBackfill]

    async def create_backfill(self, backfill_id: str, request: bytes, pace: bytes) -> StoredBackfill:
        await asyncio.sleep(0)
        kept = self._backfills.get(backfill_id)
        if kept is None or (kept.head.status is BackfillStatus.FAILED and not kept.head.plan):
            head = StoredBackfill(
                backfill_id, request, pace, b"", BackfillStatus.REQUESTED, "", self._now(), None, None
            )
            kept = self._backfills[backfill_id] = KeptBackfill(head)
        elif kept.head.request == request and kept.head.status not in (
            BackfillStatus.COMPLETED,
            BackfillStatus.CANCELLED,
        ):
            kept.head = replace(kept.head, pace=pace)
        return kept.shown(progress=False)

    async def plan_backfill(self, backfill_id: str, plan: bytes, parts: Mapping[int, bytes]) -> bool:
        kept = await self._requested(backfill_id)
        if kept is None:
            return False
        now = self._now()
        kept.parts = {number: _Part(progress) for number, progress in parts.items()}
        kept.head = replace(kept.head, plan=plan, status=BackfillStatus.RUNNING, started_at=now)
        if not parts:
            kept.head = replace(kept.head, status=BackfillStatus.COMPLETED, finished_at=now)
        return True

    async def refuse_backfill(self, backfill_id: str, problem: str) -> bool:
        kept = await self._requested(backfill_id)
        if kept is None:
            return False
        kept.head = replace(kept.head, status=BackfillStatus.FAILED, problem=problem, finished_at=self._now())
        return True

    async def _requested(self, backfill_id: str) -> KeptBackfill | None:
        await asyncio.sleep(0)
        kept = self._backfills.get(backfill_id)
        return kept if kept is not None and kept.head.status is BackfillStatus.REQUESTED else None

    async def read_backfill(self, backfill_id: str, *, progress: bool = False) -> StoredBackfill:
        await asyncio.sleep(0)
        return self._kept(backfill_id).shown(progress=progress)

    async def backfills(self, *, active: bool = False) -> list[StoredBackfill]:
        await asyncio.sleep(0)
        kept = (one.shown(progress=False) for one in self._backfills.values())
        found = [one for one in kept if not active or one.status not in BACKFILL_OVER]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def turn_backfill(self, backfill_id: str, verb: BackfillVerb) -> BackfillStatus:
        await asyncio.sleep(0)
        kept = self._kept(backfill_id)
        status = kept.head.status
        going = BackfillStatus.RUNNING if kept.head.plan else BackfillStatus.REQUESTED
        wanted = {"pause": BackfillStatus.PAUSED, "resume": going, "cancel": BackfillStatus.CANCELLED}[verb]
        if status is wanted:
            return status
        if status not in _ALLOWED[verb]:
            raise BackfillRefused(f"backfill {backfill_id} is {status}, so there is nothing to {verb}")
        kept.head = replace(kept.head, status=wanted)
        if verb == "resume":
            kept.head = replace(kept.head, problem="", finished_at=None)
            for part in kept.parts.values():
                if part.state == "stuck":
                    part.state, part.problem = "open", ""
        elif verb == "cancel":
            kept.head = replace(kept.head, finished_at=self._now())
        return wanted

    async def take_part(
        self, backfill_id: str, part: int, worker: str, *, replaces: Hold | None = None
    ) -> Taken | None:
        await asyncio.sleep(0)
        kept = self._backfills.get(backfill_id)
        if kept is None or kept.head.status is not BackfillStatus.RUNNING:
            return None
        found = kept.parts.get(part)
        if found is None or found.state != "open":
            return None
        if found.hold.worker not in ("", worker) and found.hold != replaces:
            kept.wish = worker
            return None
        kept.wish = ""
        if found.hold.worker != worker or found.hold.beat:
            found.hold = Hold(worker, found.hold.token + 1, 0)
        return Taken(found.hold.token, found.progress)

    async def save_part(self, backfill_id: str, part: int, hold: Hold, save: PartSave) -> BackfillStatus:
        await asyncio.sleep(0)
        kept = self._backfills.get(backfill_id)
        found = None if kept is None else kept.parts.get(part)
        if kept is None or found is None or not _holds(found.hold, hold):
            raise LeaseLost(f"part {part} of backfill {backfill_id} was taken from {hold.worker}")
        if hold.beat > found.hold.beat:
            found.progress, found.state = save.progress, save.state
            found.problem = save.problem or found.problem
            found.hold = hold._replace(worker="") if save.release or save.state != "open" else hold
            if save.state != "open":
                self._end_if_over(kept)
        return kept.head.status

    def _end_if_over(self, kept: KeptBackfill) -> None:
        states = {part.state for part in kept.parts.values()}
        if kept.head.status not in (BackfillStatus.RUNNING, BackfillStatus.PAUSED) or "open" in states:
            return
        stuck = [part.problem for _, part in sorted(kept.parts.items()) if part.state == "stuck"]
        status = BackfillStatus.FAILED if stuck else BackfillStatus.COMPLETED
        kept.head = replace(kept.head, status=status, finished_at=self._now(), problem=stuck[0] if stuck else "")

    def _kept(self, backfill_id: str) -> KeptBackfill:
        kept = self._backfills.get(backfill_id)
        if kept is None:
            raise BackfillNotFoundError(backfill_id)
        return kept

    def _now(self) -> float:
        return self.clock.now().timestamp()


def _holds(stored: Hold, named: Hold) -> bool:
    if stored.token != named.token:
        return False
    return stored.worker == named.worker or (not stored.worker and stored.beat == named.beat)
