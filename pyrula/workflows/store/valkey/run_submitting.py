"""Submitting on Valkey: a run's id, and what the scripts that queue it are told.

Rules: a run is queued by one script on its own shard. Where the entry of its idempotency key lies on another shard (a
gated run's), the entry first keeps the whole submission as pending; then the run is queued from what was kept, which is
idempotent by its id; then the entry hears that it is there. A repeat that finds it pending queues from what was kept.
The run's end and the verb retry tell the entry how long to live, through the outbox.
"""

import secrets
from hashlib import blake2b

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.ids import RunId, home_shard, new_run_id, shard_for
from pyrula.workflows.store.messages import Message, Parent
from pyrula.workflows.store.runs import Submission, Submitted
from pyrula.workflows.store.valkey.run_inbox import ValkeyInbox
from pyrula.workflows.store.valkey.run_keys import class_of, idempotency_entry, idempotency_key, owner_of
from pyrula.workflows.store.valkey.run_link import RunLink, check_size
from pyrula.workflows.store.valkey.run_wire import gate_arguments, message_arguments

__all__ = ["ValkeySubmitting", "submit_arguments"]

_NORMAL_PRIORITY = 128


class ValkeySubmitting(ValkeyInbox):
    """The part of RunSender that starts runs."""

    def new_run_id(
        self,
        *,
        name: str,
        idempotency_key: str | None = None,
        parent: str | None = None,
        stamp: Stamp | None = None,
        batch_key: str | None = None,
    ) -> str:
        runs = self._runs
        shard = home_shard(
            runs.shards,
            name,
            gates=None if stamp is None else stamp.place,
            idempotency_key=idempotency_key,
            batch_key=batch_key,
            parent=None if parent is None else runs.parse(parent).shard,
        )
        if shard is None:
            shard = secrets.randbelow(runs.shards)
        return new_run_id(shard, runs.now(), secrets.randbits(80))

    async def submit(self, submission: Submission) -> Submitted:
        check_size(f"the params of {submission.name}", submission.params)
        message = submission.message
        if message is not None:
            check_size(f"the {message.kind} {message.name!r}", message.payload)
        run = RunId.parse(submission.run_id)
        far = self._elsewhere(submission, run)
        answer = await (self._submit(submission) if far is None else self._submit_far(submission, far))
        if message is not None and not answer.created:
            # the run that is there has keys of its own; the message's id makes a second sending harmless
            await self.deliver(answer.run_id, message)
        return answer

    def _elsewhere(self, submission: Submission, run: RunId) -> int | None:
        """The shard of the idempotency key's entry if it isn't the run's."""
        if submission.idempotency_key is None:
            return None
        shard = shard_for(self._runs.shards, submission.name, submission.idempotency_key)
        return None if shard == run.shard or submission.stamp is None else shard

    async def _submit(self, submission: Submission, far: int | None = None) -> Submitted:
        keys, arguments = submit_arguments(self._runs, submission, far)
        found, mine, same = await self._runs.script("submit", RunId.parse(submission.run_id).shard, keys, arguments)
        return Submitted(found.decode(), bool(mine), bool(same))

    async def _submit_far(self, submission: Submission, far: int) -> Submitted:
        runs, key = self._runs, submission.idempotency_key
        assert key is not None
        entry = idempotency_key(runs.namespace, far, idempotency_entry(submission.name, key))
        told = [submission.run_id.encode(), _digest(submission), b"%d" % runs.retention, _encode(submission)]
        found, same, pending = await runs.script("reserve", far, [entry], told)
        if pending:
            await self._submit(_decode(pending), far)
            await self._relay(RunId.parse(found.decode()).shard)
        return Submitted(found.decode(), found.decode() == submission.run_id, bool(same))


def submit_arguments(runs: RunLink, submission: Submission, far: int | None = None) -> tuple[list[bytes], list[bytes]]:
    """What submit.lua is told: keys of its own, and arguments. `far`: the shard of the idempotency key's entry, if it
    isn't the run's."""
    key, run = submission.idempotency_key, RunId.parse(submission.run_id)
    keys = runs.keys(run)
    names = [keys.hash, keys.events, keys.inbox, keys.met]
    fields: dict[bytes, bytes] = {
        b"name": submission.name.encode(),
        b"owner": submission.owner.encode(),
        b"metadata": submission.metadata,
        b"params": submission.params,
    }
    if submission.version is not None:
        fields[b"version"] = submission.version.encode()
    if submission.stamp is not None:
        fields[b"stamp"] = submission.stamp.encode()
    if submission.parent is not None:
        fields |= {b"parent": submission.parent.run_id.encode(), b"wait": submission.parent.wait.encode()}
    if key is not None:
        entry = idempotency_entry(submission.name, key)
        if far is None:
            fields[b"entry"] = entry.encode()
            names.append(idempotency_key(runs.namespace, run.shard, entry))
        else:
            fields[b"far"] = b"%d %b" % (far, entry.encode())
    message = submission.message
    event = encode_event(
        "submitted", runs.now(), name=submission.name, version=submission.version, owner=submission.owner
    )
    arguments = [
        run.chain.encode(),
        class_of(submission.name, submission.version),
        owner_of(submission.owner),
        _digest(submission),
        event,
        (submission.version or "").encode(),
        class_of(submission.name, None),
        b"1" if submission.owner else b"",
        b"%d" % (_NORMAL_PRIORITY - submission.priority),
        *gate_arguments(submission.name, submission.owner, submission.stamp),
        b"%d" % len(fields),
        *(part for field in fields.items() for part in field),
        *([b""] if message is None else message_arguments(message)),
    ]
    return names, arguments


def _digest(submission: Submission) -> bytes:
    return blake2b(submission.params, digest_size=16).hexdigest().encode()


def _encode(submission: Submission) -> bytes:
    """All payloads are JSON, so a submission is."""
    parent, message, stamp = submission.parent, submission.message, submission.stamp
    return dumps(
        [
            submission.run_id,
            submission.name,
            submission.params.decode(),
            submission.version,
            submission.idempotency_key,
            submission.owner,
            submission.metadata.decode(),
            parent and [*parent],
            message and [message.kind, message.id, message.name, message.payload.decode()],
            stamp and stamp.encode().decode(),
            submission.priority,
        ]
    )


def _decode(data: bytes) -> Submission:
    run_id, name, params, version, key, owner, metadata, parent, message, stamp, priority = loads(data)
    return Submission(
        run_id,
        name,
        params.encode(),
        version,
        key,
        owner,
        metadata.encode(),
        parent and Parent(*parent),
        message and Message(message[0], message[1], message[2], message[3].encode()),
        stamp and Stamp.decode(stamp.encode()),
        priority,
    )
