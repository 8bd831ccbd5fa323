"""What stands before a queued run on Valkey, and the register of workers: one hash, on shard 0."""

from typing import Final

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.outlook import HOLDERS_TOLD, Outlook
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.registry import LIVE_SECONDS, Enlisted, WorkerEntry
from pyrula.workflows.store.valkey.run_keys import tag
from pyrula.workflows.store.valkey.run_link import RunLink

_KEPT_SECONDS: Final = 7 * 24 * 3600
_GATES: Final = {b"l": "Limit", b"r": "Rate", b"": None}


class ValkeyOutlook:
    """The part of RunSender that explains, and Registry."""

    _runs: RunLink

    async def outlook(self, run_id: str) -> Outlook:
        runs, run = self._runs, self._runs.parse(run_id)
        told = [run.chain.encode(), b"%d" % run.link, b"%d" % HOLDERS_TOLD]
        names = [runs.keys(run).hash]
        if RecordId.parse(run.chain) is not None:
            names += await runs.ending_keys(run)
        found = await runs.script("outlook", run.shard, names, told)
        if not found:
            raise RunNotFoundError(run_id)
        since, now, stamp, used, holders, due, gate, before, owners, head = found
        stamped = Stamp.decode(stamp) if stamp else Stamp()
        return Outlook(
            since=float(since) / 1e6 if since else None,
            now=float(now) / 1e6,
            limit=stamped.limit,
            rate=stamped.rate,
            used=used,
            holders=tuple(holder.decode() for holder in holders),
            next_start=float(due) / 1e6 if due else None,
            gate=_GATES[gate],
            before=before,
            owners_before=owners,
            behind=head.decode() or None,
        )

    @property
    def _register(self) -> bytes:
        return tag(self._runs.namespace, 0) + b"workers"

    async def enlist(self, worker: str, served: tuple[Enlisted, ...]) -> None:
        ask, key = self._runs.funnel.ask, self._register
        entry = dumps([self._runs.now(), [[*each] for each in served]])
        await ask(b"HSET", key, worker.encode(), entry)
        # it lives as long as anybody works
        await ask(b"EXPIRE", key, b"%d" % _KEPT_SECONDS)

    async def strike(self, worker: str) -> None:
        await self._runs.funnel.ask(b"HDEL", self._register, worker.encode())

    async def enlisted(self) -> list[WorkerEntry]:
        ask, key = self._runs.funnel.ask, self._register
        flat = await ask(b"HGETALL", key)
        now, live, gone = self._runs.now(), [], []
        for worker, entry in zip(flat[::2], flat[1::2], strict=True):
            seen, served = loads(entry)
            if seen >= now - LIVE_SECONDS:
                live.append(WorkerEntry(worker.decode(), tuple(Enlisted(*each) for each in served)))
            elif seen < now - _KEPT_SECONDS:
                gone.append(worker)
        if gone:
            await ask(b"HDEL", key, *gone)
        return sorted(live)
