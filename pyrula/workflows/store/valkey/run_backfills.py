"""Backfills on Valkey: one hash of a backfill's state and one of its parts' progress, on shard 0 as schedules are."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.backfills import (
    BACKFILL_SECONDS,
    BackfillNotFoundError,
    BackfillRefused,
    BackfillStatus,
    BackfillVerb,
    Hold,
    PartSave,
    StoredBackfill,
    StoredPart,
    Taken,
)
from pyrula.workflows.store.ids import digest
from pyrula.workflows.store.valkey.run_keys import tag
from pyrula.workflows.store.valkey.run_link import RunLink, check_size
from pyrula.workflows.store.valkey.run_wire import seconds_of
from pyrula.workflows.store.valkey.scripts import script

_LIFE = b"%d" % BACKFILL_SECONDS


def backfill_keys(namespace: str, backfill_id: str) -> tuple[bytes, bytes, bytes]:
    """The index of all backfills, and the state and the progress of this one."""
    prefix, name = tag(namespace, 0), digest("backfill", backfill_id).hex().encode()
    return prefix + b"backfills", prefix + b"b:" + name, prefix + b"bp:" + name


class ValkeyBackfills:
    """BackfillStore on Valkey."""

    _runs: RunLink

    async def create_backfill(self, backfill_id: str, request: bytes, pace: bytes) -> StoredBackfill:
        check_size("a backfill's request", request)
        await self._backfill("create", backfill_id, [backfill_id.encode(), request, pace], keys=2)
        return await self.read_backfill(backfill_id)

    async def plan_backfill(self, backfill_id: str, plan: bytes, parts: Mapping[int, bytes]) -> bool:
        pairs = [text for part, progress in parts.items() for text in (b"%d" % part, progress)]
        return bool(await self._backfill("plan", backfill_id, [plan, b"", *pairs]))

    async def refuse_backfill(self, backfill_id: str, problem: str) -> bool:
        return bool(await self._backfill("plan", backfill_id, [b"", problem.encode("utf-8", "replace")]))

    async def read_backfill(self, backfill_id: str, *, progress: bool = False) -> StoredBackfill:
        _, key, progress_key = backfill_keys(self._runs.namespace, backfill_id)
        ask = self._runs.funnel.ask
        asked = [ask(b"HGETALL", key), *([ask(b"HGETALL", progress_key)] if progress else [])]
        state, *rest = await asyncio.gather(*asked)
        saved = rest[0] if rest else []
        found = _read(_pairs(state), {int(part): data for part, data in _pairs(saved).items()})
        if found is None:
            raise BackfillNotFoundError(backfill_id)
        return found

    async def backfills(self, *, active: bool = False) -> list[StoredBackfill]:
        index, _, _ = backfill_keys(self._runs.namespace, "")
        prefix = tag(self._runs.namespace, 0) + b"b:"
        ask = self._runs.funnel.ask
        names = await ask(b"ZRANGE", index, b"1" if active else b"-inf", b"+inf", b"BYSCORE")
        states = await asyncio.gather(*(ask(b"HGETALL", prefix + name.hex().encode()) for name in names))
        gone = [name for name, state in zip(names, states, strict=True) if not state]
        if gone:
            await ask(b"ZREM", index, *gone)
        found = [one for state in states if (one := _read(_pairs(state), {})) is not None]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def turn_backfill(self, backfill_id: str, verb: BackfillVerb) -> BackfillStatus:
        verdict, *status = await self._backfill("turn", backfill_id, [verb.encode()])
        if verdict < 0:
            raise BackfillNotFoundError(backfill_id)
        if verdict == 0:
            raise BackfillRefused(f"backfill {backfill_id} is {status[0].decode()}, so there is nothing to {verb}")
        return BackfillStatus(status[0].decode())

    async def take_part(
        self, backfill_id: str, part: int, worker: str, *, replaces: Hold | None = None
    ) -> Taken | None:
        seen = [b"", b""] if replaces is None else [b"%d" % replaces.token, b"%d" % replaces.beat]
        answer = await self._backfill("take", backfill_id, [b"%d" % part, worker.encode(), *seen])
        return Taken(int(answer[0]), answer[1]) if answer else None

    async def save_part(self, backfill_id: str, part: int, hold: Hold, save: PartSave) -> BackfillStatus:
        status = await self._backfill(
            "save",
            backfill_id,
            [
                b"%d" % part,
                hold.worker.encode(),
                b"%d" % hold.token,
                b"%d" % hold.beat,
                save.state.encode(),
                save.problem.encode("utf-8", "replace"),
                b"1" if save.release else b"",
                save.progress,
            ],
        )
        if not status:
            raise LeaseLost(f"part {part} of backfill {backfill_id} was taken from {hold.worker}")
        return BackfillStatus(status.decode())

    async def _backfill(self, name: str, backfill_id: str, arguments: Sequence[bytes], *, keys: int = 3) -> Any:
        named = backfill_keys(self._runs.namespace, backfill_id)[:keys]
        told = [digest("backfill", backfill_id), _LIFE, *arguments]
        return await self._runs.funnel.run(script(f"backfills/{name}"), named, told)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read(state: Mapping[bytes, bytes], progress: Mapping[int, bytes]) -> StoredBackfill | None:
    if not state:
        return None
    numbers = sorted(int(name[1:]) for name in state if name[:1] == b"h")
    return StoredBackfill(
        state[b"id"].decode(),
        state[b"request"],
        state[b"pace"],
        state.get(b"plan", b""),
        BackfillStatus(state[b"status"].decode()),
        state.get(b"problem", b"").decode(),
        seconds_of(state[b"created"]) or 0.0,
        seconds_of(state.get(b"started")),
        seconds_of(state.get(b"finished")),
        tuple(_read_part(number, state, progress.get(number, b"")) for number in numbers),
        state.get(b"wish", b"").decode(),
    )


def _read_part(number: int, state: Mapping[bytes, bytes], progress: bytes) -> StoredPart:
    kind, token, beat, worker = state[b"h%d" % number].decode().split(" ", 3)
    hold = Hold(worker, int(token), int(beat)) if worker else None
    return StoredPart(number, kind, hold, state.get(b"x%d" % number, b"").decode(), progress)  # type: ignore[arg-type]
