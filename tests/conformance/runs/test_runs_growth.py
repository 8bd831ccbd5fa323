"""Nothing grows: when many runs have outlived their retention, the keys are those from before."""

import asyncio

from pyrula.workflows.store.messages import Applied, Change, End, Message
from pyrula.workflows.store.runs import ClaimedRun
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import Rig
from tests.conformance.server import Server
from tests.services.waiting import wait_until_async

COUNT, AT_ONCE = 2_000, 100


async def test_many_runs_leave_nothing_but_counters(server: Server) -> None:
    store, other = (ValkeyStore(server.url, namespace=server.namespace, shards=4) for _ in range(2))
    await asyncio.gather(store.open(), other.open())
    store._runs.retention = other._runs.retention = 1.0
    rig = Rig(store, other)

    async def finish(run: ClaimedRun) -> None:
        seen = [unread.number for unread in run.messages]
        applied = [Applied("u", "ok", b"1")]
        change = Change(1, max(seen), rows=[(0, b"a"), (1, b"b")], consumed=seen, applied=applied, events=[b"[]"])
        await store.append(run.lease, change)
        await store.finish(run.lease, Change(2, max(seen)), End("completed", b"1"))

    async def some(first: int) -> None:
        """A hundred runs from submission to end, by a worker that then leaves."""
        worker = f"w{first}"
        submissions = [
            rig.submission(f"n{number % 3}", idempotency_key=f"k{number}", owner=f"o{number % 7}",
                           message=Message("signal", "s", "go"))
            for number in range(first, first + AT_ONCE)
        ]  # fmt: skip
        runs = [submitted.run_id for submitted in await asyncio.gather(*map(store.submit, submissions))]
        await asyncio.gather(*(other.deliver(run_id, Message("update", "u", "add")) for run_id in runs))
        await other.deliver(runs[0], Message("cancel", "cancel"))
        served = [(f"n{number}", "1") for number in range(3)]
        while taken := (await store.claim(worker, served, AT_ONCE)).runs:
            await asyncio.gather(*map(finish, taken))
        await store.heartbeat(worker, {})
        await store.leave(worker)

    await some(0)
    for first in range(AT_ONCE, COUNT, AT_ONCE):
        await some(first)
    tag = b"{%b" % server.namespace.encode()
    expected = {tag + b"}meta", *(b"%b:%d}meta" % (tag, shard) for shard in range(4))}

    async def gone() -> bool:
        await store.claim("last", [("n0", "1")], 1)
        await store.leave("last")
        return await server.keys() == expected

    await wait_until_async(gone, description="the keys of all runs to go", timeout=30, interval=0.2)
    assert dict((await other.count_runs()).by_status) == {}
    await asyncio.gather(store.close(), other.close())
