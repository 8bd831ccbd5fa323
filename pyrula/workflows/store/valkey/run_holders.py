"""The worker's side of submitted runs on Valkey."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Change, End, Lease, Reply, Unread, Wait, child_result
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import LINKS_KEPT, Beat, Claims, Finished, Query, Subscription, Suspect
from pyrula.workflows.store.valkey.run_claims import Claimer, read_claimed
from pyrula.workflows.store.valkey.run_keys import answer_key, class_of, structures, worker_of
from pyrula.workflows.store.valkey.run_link import RunLink
from pyrula.workflows.store.valkey.run_senders import ValkeyRunSender
from pyrula.workflows.store.valkey.run_wire import (
    change_arguments,
    read_messages,
    read_status,
    wait_arguments,
)


class ValkeyRunHolder(ValkeyRunSender):
    """RunHolder on Valkey."""

    _runs: RunLink
    _claimer: Claimer
    # of what a worker holds without knowing: the claims that may bring it word yet
    _strays: dict[str, dict[Lease, frozenset[object]]]

    async def claim(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> Claims:
        return await self._claimer.claim(worker, served, n)

    async def next_due(self) -> float | None:
        timers = [structures(self._runs.namespace, shard)[5] for shard in range(self._runs.shards)]
        firsts = await asyncio.gather(
            *(self._runs.funnel.ask(b"ZRANGE", timer, b"0", b"0", b"WITHSCORES") for timer in timers)
        )
        return min((float(first[1]) / 1e6 for first in firsts if first), default=None)

    async def append(self, lease: Lease, change: Change) -> Reply:
        (messages,) = await self._write("append", lease, change)
        return Reply(read_messages(messages))

    async def _write(
        self,
        script: str,
        lease: Lease,
        change: Change | None,
        arguments: Sequence[bytes] = (),
        keys: Sequence[bytes] = (),
        seconds: float | None = None,
    ) -> list[Any]:
        """What a script says after "ok" or "parked"; LeaseLost if it is none of these."""
        runs = self._runs
        try:
            run = runs.parse(lease.run_id)
        except RunNotFoundError:
            raise LeaseLost(f"run {lease.run_id} is not in the store any more") from None
        told = [
            run.chain.encode(),
            b"%d" % run.link,
            lease.worker.encode(),
            b"%d" % lease.epoch,
            b"%d" % (runs.retention if seconds is None else seconds),
            *change_arguments(change),
            *arguments,
        ]
        verdict, *rest = await runs.script(script, run.shard, [*runs.keys(run).all(), *keys], told)
        if verdict == b"lost":
            raise LeaseLost(f"run {lease.run_id} is not held by {lease.worker} in epoch {lease.epoch} any more")
        if verdict == b"gap" and change is not None:
            text = f"run {lease.run_id} has change {rest[0]}, so {change.number} can't be the next"
            raise LeaseLost(text)
        return list(rest)

    async def unread(self, lease: Lease, seen: int) -> tuple[Unread, ...]:
        runs, run = self._runs, self._runs.parse(lease.run_id)
        keys = runs.keys(run)
        told = [run.chain.encode(), b"%d" % run.link, lease.worker.encode(), b"%d" % lease.epoch, b"%d" % seen]
        verdict, *rest = await runs.script("unread", run.shard, [keys.hash, keys.inbox], told)
        if verdict == b"lost":
            raise LeaseLost(f"run {lease.run_id} is not held by {lease.worker} in epoch {lease.epoch} any more")
        return read_messages(rest[0])

    async def park(self, lease: Lease, change: Change, waits: Sequence[Wait]) -> Reply:
        rest = await self._write("park", lease, change, wait_arguments(waits))
        return Reply(read_messages(rest[0])) if rest else Reply(parked=True)

    async def pause(self, lease: Lease, change: Change, reason: bytes, *, failed: bool = False) -> None:
        await self._write("pause", lease, change, [reason, b"1" if failed else b""])

    async def release(self, lease: Lease, change: Change | None = None) -> None:
        await self._write("release", lease, change)

    async def finish(self, lease: Lease, change: Change, end: End) -> Finished:
        if end.status == "continued_as_new":
            return await self._continue(lease, change, end)
        runs, run = self._runs, RunId.parse(lease.run_id)
        payload = child_result(lease.run_id, end.status, end.value, end.error)
        events = [b"%d" % len(end.events), *end.events]
        arguments = [end.status.encode(), end.value, end.error or b"", payload, *events]
        keys = await runs.ending_keys(run)
        status, messages, waiting = await self._write("finish", lease, change, arguments, keys, end.seconds)
        if waiting:
            await self._relay(run.shard)
        return Finished(read_status(status), read_messages(messages))

    async def _continue(self, lease: Lease, change: Change, end: End) -> Finished:
        runs, run = self._runs, RunId.parse(lease.run_id)
        following = run._replace(link=run.link + 1)
        name = await runs.funnel.ask(b"HGET", runs.keys(run).hash, b"name")
        if name is None:
            raise LeaseLost(f"run {lease.run_id} is not in the store any more")
        arguments = [
            end.params or b"{}",
            (end.version or "").encode(),
            b"" if end.version is None else class_of(name.decode(), end.version),
            b"%d" % len(end.events),
            *end.events,
            encode_event("continued", runs.now(), run_id=lease.run_id),
        ]
        keys = [runs.keys(run).kept, runs.keys(following).events]
        if run.link > LINKS_KEPT:
            oldest = runs.keys(run._replace(link=run.link - LINKS_KEPT))
            keys += [oldest.kept, oldest.journal, oldest.events]
        epoch, version = await self._write("continue", lease, change, arguments, keys)
        held = Lease(str(following), lease.worker, epoch)
        link = await read_claimed(runs, following, held, version.decode(), 1, 0, False, False)
        return Finished(RunStatus.CONTINUED_AS_NEW, next=link)

    async def heartbeat(self, worker: str, held: Mapping[Lease, int]) -> Beat:
        runs = self._runs
        claims = self._claimer.under_way(worker)
        told = [worker.encode(), worker_of(worker)]
        replies = await asyncio.gather(*(runs.script("heartbeat", shard, (), told) for shard in range(runs.shards)))
        runs.set_clock(replies[0][0] / 1e6)
        present: dict[Lease, int] = {}
        for _, found in replies:
            for chain, link, epoch, number in found:
                present[Lease(str(RunId(0, chain.decode(), link)), worker, epoch)] = number
        strays = present.keys() - held.keys()
        before = self._strays.get(worker, {})
        began = claims | self._claimer.under_way(worker)
        self._strays[worker] = {lease: before[lease] & claims if lease in before else began for lease in strays}
        for lease in sorted(strays & before.keys()):
            if before[lease]:
                continue
            # held for a whole beat without its holder knowing, and no claim is to tell it: the answer was lost
            del present[lease], self._strays[worker][lease]
            # or it came at last, and the run has ended or was parked meanwhile
            with suppress(LeaseLost):
                await self.release(lease)
        lost = tuple(lease for lease in held if lease not in present)
        unread = tuple(lease.run_id for lease, seen in held.items() if present.get(lease, 0) > seen)
        return Beat(lost, unread)

    async def beats(self) -> list[Suspect]:
        runs = self._runs
        found = await asyncio.gather(
            *(runs.funnel.ask(b"HGETALL", structures(runs.namespace, shard)[7]) for shard in range(runs.shards))
        )
        return [
            Suspect(shard, worker.decode(), int(counter))
            for shard, flat in enumerate(found)
            for worker, counter in zip(flat[::2], flat[1::2], strict=True)
        ]

    async def reap(self, suspect: Suspect) -> int:
        return await self._requeue(suspect.shard, suspect.worker, b"%d" % suspect.counter)

    async def _requeue(self, shard: int, worker: str, counter: bytes) -> int:
        reaped = 0
        while True:
            told = [worker.encode(), worker_of(worker), counter]
            count, more = await self._runs.script("reap", shard, (), told)
            reaped += int(count)
            if not more:
                return reaped

    async def leave(self, worker: str) -> None:
        await asyncio.gather(*(self._requeue(shard, worker, b"") for shard in range(self._runs.shards)))
        self._strays.pop(worker, None)
        self._claimer.forget(worker)

    async def questions(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> tuple[Query, ...]:
        classes = [class_of(*pair) for pair in served] + [class_of(name, None) for name in dict(served)]
        told = [worker.encode(), b"%d" % n, *classes]
        taken: list[Query] = []
        for found in await asyncio.gather(
            *(self._runs.script("questions", shard, (), told) for shard in range(self._runs.shards))
        ):
            for question, chain, link, name, payload in found:
                run_id = str(RunId(0, chain.decode(), link))
                taken.append(Query(question.decode(), run_id, name.decode(), payload))
        return tuple(taken)

    async def answer(self, query: Query, answer: bytes) -> None:
        run = self._runs.parse(query.run_id)
        key = answer_key(self._runs.namespace, run.shard, query.id)
        await self._runs.script("answer", run.shard, [key], [run.chain.encode(), answer])

    def on_ready(self, callback: Callable[[], None]) -> Subscription:
        return self._runs.ear.listen(self._runs.channel + b":ready", lambda _: callback())

    def on_inbox(self, worker: str, callback: Callable[[str], None]) -> Subscription:
        return self._runs.ear.listen(self._runs.channel + b":w:" + worker.encode(), callback)
