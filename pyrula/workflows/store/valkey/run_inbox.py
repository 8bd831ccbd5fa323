"""Messages to submitted runs on Valkey, and the outbox: messages that one run's end sends to others."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.messages import MAX_UNREAD, Delivered, Message, child_result
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    TransitionRefused,
    not_waiting,
)
from pyrula.workflows.store.valkey.run_keys import idempotency_key
from pyrula.workflows.store.valkey.run_link import RunLink, check_size
from pyrula.workflows.store.valkey.run_wire import message_arguments, read_applied, read_status


class ValkeyInbox:
    """The part of RunSender that changes a run which is there."""

    _runs: RunLink

    async def deliver(self, run_id: str, message: Message) -> Delivered:
        delivered = await self._deliver(run_id, message)
        if message.kind == "cancel" and delivered.status in TERMINAL:
            # it may have ended just now, which its parent is to hear
            await self._relay(self._runs.parse(run_id).shard)
        return delivered

    async def _deliver(self, run_id: str, message: Message) -> Delivered:
        check_size(f"the {message.kind} {message.name!r}", message.payload)
        runs, run = self._runs, self._runs.parse(run_id)
        names: list[bytes] = []
        events, result = [b"", b""], b""
        if message.kind == "cancel":
            names += await runs.ending_keys(run)
            events = [encode_event(kind, runs.now()) for kind in ("cancel_requested", "cancelled")]
            result = child_result(run.chain, RunStatus.CANCELLED, b"null", None)
        elif message.kind == "pause":
            events[0] = encode_event("paused", runs.now())
        arguments = [*message_arguments(message), b"%d" % MAX_UNREAD, b"%d" % runs.retention, *events, result]
        verdict, rest = await self._change("deliver", run, names, arguments)
        if verdict == b"missing":
            raise RunNotFoundError(run_id)
        status, live = read_status(rest[0]), str(run._replace(link=rest[1]))
        match verdict:
            case b"finished":
                raise RunFinishedError(live, status, f"has ended as {status}")
            case b"waiting":
                open_ids = [wait_id.decode() for wait_id in rest[3]]
                raise not_waiting(live, status, message.name, open_ids)
            case b"full":
                raise InboxFullError(live, status, f"has {MAX_UNREAD} unread messages")
        applied = read_applied(message.id, rest[2]) if message.kind == "update" else None
        return Delivered(live, status, verdict == b"dup", applied)

    async def unpause(self, run_id: str) -> RunStatus:
        event = encode_event("unpaused", self._runs.now())
        return await self._verb(run_id, "unpause", event, b"", "{}, not paused")

    async def retry(self, run_id: str) -> RunStatus:
        event = encode_event("retried", self._runs.now(), attempt=0)
        return await self._verb(
            run_id, "retry", event[:-3], event[-2:], "{}; only a failed or cancelled run can be retried"
        )

    async def _verb(self, run_id: str, verb: str, event: bytes, rest: bytes, text: str) -> RunStatus:
        runs, run = self._runs, self._runs.parse(run_id)
        call = secrets.token_hex(8).encode()
        arguments = [verb.encode(), call, event, rest]
        verdict, found = await self._change("verb", run, await runs.entry_of(run), arguments)
        if verdict == b"missing":
            raise RunNotFoundError(run_id)
        status = read_status(found[0])
        if verdict == b"refused":
            raise TransitionRefused(str(run._replace(link=found[1])), status, f"is {text.format(status)}")
        return status

    async def _change(
        self, script: str, run: RunId, names: Sequence[bytes], arguments: Sequence[bytes]
    ) -> tuple[bytes, list[Any]]:
        """A script that may write to the live link, which is told when it isn't the one asked for."""
        while True:
            told = [run.chain.encode(), b"%d" % run.link, *arguments]
            verdict, *rest = await self._runs.script(script, run.shard, [*self._runs.keys(run).all(), *names], told)
            if verdict != b"link":
                return verdict, rest
            run = run._replace(link=rest[1])

    async def relay(self) -> int:
        return sum(await asyncio.gather(*(self._relay(shard) for shard in range(self._runs.shards))))

    async def _relay(self, shard: int) -> int:
        """Deliver, then drop: what is sent on twice is known by its id."""
        shards, sent, relayed = [shard], [b""], 0
        while shards:
            shard = shards[-1]
            entries = await self._runs.script("outbox", shard, (), sent)
            sent = []
            if not entries:
                shards.pop()
            for entry, (target, kind, message, name, payload) in entries:
                if kind == b"entry":
                    await self._settle(target, message, name, payload)
                    sent.append(entry)
                    continue
                told = Message(kind.decode(), message.decode(), name.decode(), payload)
                try:
                    delivered = await self._deliver(target.decode(), told)
                    if kind == b"cancel" and delivered.status in TERMINAL:
                        # it may have ended just now, with an outbox of its own
                        shards.insert(0, self._runs.parse(delivered.run_id).shard)
                except (RunNotFoundError, RunFinishedError):
                    pass  # whom it was for is gone
                sent.append(entry)
            relayed += len(sent)
        return relayed

    async def _settle(self, far: bytes, chain: bytes, number: int, seconds: bytes) -> None:
        """To the entry of an idempotency key on another shard."""
        shard, entry = far.decode().split()
        key = idempotency_key(self._runs.namespace, int(shard), entry)
        await self._runs.script("settle", int(shard), [key], [chain, b"%d" % number, seconds])
