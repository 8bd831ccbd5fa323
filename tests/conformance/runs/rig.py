"""Few words for what the tests of runs do."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyrula.workflows.store.messages import Change, End, Lease, Message, Reply, Wait
from pyrula.workflows.store.runs import ClaimedRun, Finished, RunStore, Submission

SERVED = [("cart", "1")]


@dataclass
class Rig:
    """A store, and the same store in the hands of another process."""

    store: RunStore
    other: RunStore

    def submission(self, name: str = "cart", **fields: Any) -> Submission:
        key = fields.get("idempotency_key")
        fields.setdefault("version", "1")
        run_id = self.store.new_run_id(name=name, idempotency_key=key, stamp=fields.get("stamp"))
        return Submission(run_id, name, **fields)

    async def submit(self, name: str = "cart", **fields: Any) -> str:
        return (await self.store.submit(self.submission(name, **fields))).run_id

    async def claim(self, worker: str = "w", served: Sequence[tuple[str, str]] = SERVED) -> ClaimedRun:
        claims = await self.store.claim(worker, served, 1)
        assert len(claims.runs) == 1
        return claims.runs[0]

    async def nothing(self, worker: str = "w", served: Sequence[tuple[str, str]] = SERVED) -> None:
        assert list((await self.store.claim(worker, served, 10)).runs) == []

    async def started(self, **fields: Any) -> ClaimedRun:
        run_id = await self.submit(**fields)
        claimed = await self.claim()
        assert claimed.lease.run_id == run_id
        return claimed

    async def parked(self, *waits: Wait, **fields: Any) -> str:
        claimed = await self.started(**fields)
        assert await self.store.park(claimed.lease, Change(1), waits) == Reply(parked=True)
        return claimed.lease.run_id

    async def complete(self, lease: Lease, number: int = 1, value: bytes = b"null") -> Finished:
        return await self.store.finish(lease, Change(number), End("completed", value))

    async def signal(self, run_id: str, name: str = "go", *, id: str | None = None, payload: bytes = b"null") -> None:  # noqa: A002
        await self.store.deliver(run_id, Message("signal", id or secrets.token_hex(4), name, payload))

    async def die(self, worker: str = "w") -> int:
        """The worker is found dead by another process."""
        reaped = 0
        for suspect in await self.other.beats():
            if suspect.worker == worker:
                reaped += await self.other.reap(suspect)
        return reaped
