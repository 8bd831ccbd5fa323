"""Runs of records on Valkey: both sides of them, in front of what is there for submitted runs.

What `RunSender` is asked about the run of a record is answered here, everything else where it was.
"""

import secrets
from collections.abc import Sequence
from typing import Any

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.messages import MAX_UNREAD, Applied, Delivered, Message
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.record_places import Place, locate
from pyrula.workflows.store.records import (
    GONE_SECONDS,
    MAX_ADDRESSED,
    RecordState,
    Registration,
)
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    TransitionRefused,
    not_waiting,
)
from pyrula.workflows.store.runs import Origin, Query, Result, RunDetail
from pyrula.workflows.store.valkey import keys
from pyrula.workflows.store.valkey.record_scripts import record_script
from pyrula.workflows.store.valkey.record_wire import AddressKeys, record_keys
from pyrula.workflows.store.valkey.run_holders import ValkeyRunHolder
from pyrula.workflows.store.valkey.run_keys import keys_of, structures
from pyrula.workflows.store.valkey.run_link import check_size
from pyrula.workflows.store.valkey.run_reading import read_rows
from pyrula.workflows.store.valkey.run_wire import (
    message_arguments,
    read_applied,
    read_extras,
    read_messages,
    read_status,
    read_waits,
    seconds_of,
)

ELSEWHERE = [b"elsewhere"]
"""A look at a run that was handed over: it is one of those that `ValkeyRunHolder` knows."""

_TTL = b"%d" % (30 * 24 * 3600)


class ValkeyRecords(ValkeyRunHolder):
    """RecordStore on Valkey, and RunSender for runs of records."""

    def _of(self, record: RecordId) -> tuple[AddressKeys, tuple[bytes, ...]]:
        runs = self._runs
        if record.shard >= runs.shards:
            raise RunNotFoundError(str(record))
        return AddressKeys(runs.namespace, record.shard, record.address), record_keys(runs.namespace, record)

    async def _run(self, name: str, names: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        return await self._runs.funnel.run(record_script(name), names, arguments)

    # the client's side

    async def _deliver(self, run_id: str, message: Message) -> Delivered:
        record = RecordId.parse(run_id)
        if record is None:
            return await super()._deliver(run_id, message)
        check_size(f"the {message.kind} {message.name!r}", message.payload)
        told = [*message_arguments(message)]
        found = await self._put(record, told)
        if found is None:
            return await super()._deliver(run_id, message)
        verdict, status, applied, open_ids = found
        match verdict:
            case b"finished":
                raise RunFinishedError(run_id, status, f"has ended as {status}")
            case b"waiting":
                raise not_waiting(run_id, status, message.name, [wait_id.decode() for wait_id in open_ids])
            case b"full":
                raise InboxFullError(run_id, status, f"has {MAX_UNREAD} unread messages")
        answered = read_applied(message.id, applied) if message.kind == "update" else None
        return Delivered(run_id, status, verdict == b"dup", answered)

    async def _put(
        self, record: RecordId, message: Sequence[bytes]
    ) -> tuple[bytes, RunStatus, bytes, Sequence[bytes]] | None:
        """None if the run was handed over."""
        address, names = self._of(record)
        arguments = [
            self._runs.channel,
            str(record).encode(),
            b"%d" % record.position,
            b"%d" % record.incarnation,
            *message,
            b"%d" % MAX_UNREAD,
            b"%d" % MAX_ADDRESSED,
            _TTL,
            encode_event("cancel_requested", self._runs.now()),
        ]
        verdict, *rest = await self._run("deliver", [address.stream, address.board, *names, address.lanes], arguments)
        if verdict == b"elsewhere":
            return None
        if verdict == b"missing":
            raise RunNotFoundError(str(record))
        status = read_status(rest[0])
        if verdict == b"crowded":
            text = f"can't be addressed: {MAX_ADDRESSED} other runs of its partition are, and haven't ended"
            raise InboxFullError(str(record), status, text)
        return verdict, status, rest[1], rest[2]

    async def _see(self, record: RecordId, what: bytes, seen: int = 0) -> list[Any] | None:
        """None if there may be such a run of which the store has nothing."""
        address, (hash_key, _, inbox, _, _, extras) = self._of(record)
        told = [what, b"%d" % seen, b"%d" % record.incarnation, b"%d" % record.position]
        asked = [hash_key, inbox, extras, address.stream, address.board, address.lanes]
        found: list[Any] = await self._run("look", asked, told)
        if not found:
            raise RunNotFoundError(str(record))
        return found if found[0] else None

    async def _locate(self, record: RecordId) -> Place | None:
        """None if the store has come to know of it meanwhile: look again."""
        try:
            return await locate(self, str(record))
        except RunNotFoundError:
            if await self._see(record, b"status") is None:
                raise
            return None

    async def status(self, run_id: str) -> RunStatus:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().status(run_id)
        found = await self._see(record, b"status")
        if found == ELSEWHERE:
            return await super().status(run_id)
        if found is not None:
            return read_status(found[0])
        place = await self._locate(record)
        return await self.status(run_id) if place is None else place.status

    async def result(self, run_id: str) -> Result | None:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().result(run_id)
        found = await self._see(record, b"result")
        if found == ELSEWHERE:
            return await super().result(run_id)
        if found is None:
            await self._put(record, [b"", b"", b"", b""])
            return None
        if len(found) == 1:
            return None
        return Result(run_id, read_status(found[0]), found[1] or b"null", found[2] or None)

    async def read_update(self, run_id: str, update_id: str) -> Applied | None:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().read_update(run_id, update_id)
        if await self._see(record, b"status") == ELSEWHERE:
            return await super().read_update(run_id, update_id)
        _, (_, _, _, met, _, _) = self._of(record)
        return read_applied(update_id, await self._runs.funnel.ask(b"HGET", met, b"update:" + update_id.encode()))

    async def detail(self, run_id: str) -> RunDetail:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().detail(run_id)
        found = await self._see(record, b"detail")
        if found == ELSEWHERE:
            return await super().detail(run_id)
        if found is None:
            return await self._unwritten(record)
        status, attempt, cancel, waits, unread, extras, fields = found
        name, version, metadata, created, finished, value, error = fields
        present = read_status(status)
        return RunDetail(
            run_id=run_id,
            status=present,
            name=name.decode(),
            version=version.decode(),
            owner="",
            metadata=metadata,
            params=b"{}",
            attempt=attempt,
            created_at=int(created) / 1e6,
            finished_at=seconds_of(finished),
            parent=None,
            waits=read_waits(waits),
            interrupts=read_extras(extras)[0],
            unread=read_messages(unread),
            worker=None,
            deaths=0,
            cancel_requested=bool(cancel),
            value=value or b"null",
            error=error or None,
        )

    async def _unwritten(self, record: RecordId) -> RunDetail:
        place = await self._locate(record)
        if place is None:
            return await self.detail(str(record))
        name, version, metadata = await self._about(record, b"name", b"version", b"metadata")
        return RunDetail(
            run_id=str(record),
            status=place.status,
            name=name.decode(),
            version=version.decode(),
            owner="",
            metadata=metadata,
            params=b"{}",
            attempt=1,
            created_at=self._runs.now(),
            finished_at=None,
            parent=None,
            waits=(),
            interrupts=(),
            unread=(),
            worker=None,
            deaths=0,
            cancel_requested=False,
            value=b"null",
            error=None,
        )

    async def _about(self, record: RecordId, *fields: bytes) -> list[bytes]:
        address, _ = self._of(record)
        found: list[bytes] = await self._runs.funnel.ask(b"HMGET", address.stream, *fields)
        if found[0] is None:
            raise RunNotFoundError(str(record))
        return found

    async def origin(self, run_id: str) -> Origin:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().origin(run_id)
        (name,) = await self._about(record, b"name")
        return Origin(name.decode(), "")

    async def events(self, run_id: str) -> list[bytes]:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().events(run_id)
        found = await self._see(record, b"status")
        if found == ELSEWHERE:
            return await super().events(run_id)
        if found is None:
            place = await self._locate(record)
            return await self.events(run_id) if place is None else list(place.events)
        return await self.events_of(run_id, 0)

    async def history(self, run_id: str) -> History:
        record = RecordId.parse(run_id)
        if record is None:
            return await super().history(run_id)
        if await self._see(record, b"status") == ELSEWHERE:
            return await super().history(run_id)
        detail = await self.detail(run_id)
        run = keys_of(self._runs.namespace, self._runs.parse(run_id))
        if detail.status in TERMINAL and (params := await self._runs.funnel.ask(b"HGET", run.hash, b"params")):
            kept = await read_rows(self._runs, run.journal)
            return History(
                run_id, detail.name, detail.version, detail.status, params, kept, detail.attempt, "", detail.metadata
            )
        rows: dict[int, bytes] = {}
        (source,) = await self._about(record, b"source")
        prefix = keys.source_keys(self._runs.namespace, self._runs.shards, bytes.fromhex(source.decode()))[1]
        cursor, pattern = b"0", b"%d.*" % record.position
        while True:
            cursor, flat = await self._runs.funnel.ask(
                b"HSCAN", b"%b%d" % (prefix, keys.bucket_of(record.position)), cursor, b"MATCH", pattern, b"COUNT",
                b"1000",
            )  # fmt: skip
            rows.update(
                (int(field.partition(b".")[2]), data) for field, data in zip(flat[::2], flat[1::2], strict=True)
            )
            if cursor == b"0":
                break
        return History(
            run_id, detail.name, detail.version, detail.status, detail.params, tuple(sorted(rows.items())),
            detail.attempt, "", detail.metadata,
        )  # fmt: skip

    async def unpause(self, run_id: str) -> RunStatus:
        record = RecordId.parse(run_id)
        found = None if record is None else await self._go_on(record, "unpause")
        if found is None:
            return await super().unpause(run_id)
        verdict, status = found
        if verdict == b"refused":
            raise TransitionRefused(run_id, status, f"is {status}, not paused")
        return status

    async def _go_on(self, record: RecordId, verb: str) -> tuple[bytes, RunStatus] | None:
        """None if the run was handed over."""
        address, (hash_key, events, inbox, *_) = self._of(record)
        arguments = [
            self._runs.channel,
            str(record).encode(),
            b"%d" % record.position,
            verb.encode(),
            secrets.token_hex(8).encode(),
            encode_event("unpaused", self._runs.now()),
        ]
        asked = [address.stream, address.board, hash_key, events, inbox, address.lanes]
        verdict, *rest = await self._run("verb", asked, arguments)
        if verdict == b"elsewhere":
            return None
        if verdict == b"missing":
            place = await self._locate(record)
            return await self._go_on(record, verb) if place is None else (b"refused", place.status)
        return verdict, read_status(rest[0])

    async def ask(self, run_id: str, query: Query, *, seconds: float) -> None:
        record = RecordId.parse(run_id)
        if record is None:
            await super().ask(run_id, query, seconds=seconds)
            return
        address, names = self._of(record)
        arguments = [
            self._runs.channel,
            str(record).encode(),
            b"%d" % record.position,
            b"%d" % record.incarnation,
            query.id.encode(),
            query.name.encode(),
            query.payload,
            b"%d" % (seconds * 1e6),
        ]
        keys_asked = [address.stream, address.questions, names[0], address.board, address.lanes]
        asked = await self._run("ask", keys_asked, arguments)
        if asked == 0:
            raise RunNotFoundError(run_id)
        if asked == 2:
            await super().ask(run_id, query, seconds=seconds)

    # the holder's side

    async def register_source(self, token: Token, registration: Registration) -> dict[int, int]:
        source_key, shard = self._source(registration.source)
        address = AddressKeys(self._runs.namespace, shard, registration.address)
        arguments = [
            str(token).encode(),
            registration.source.hex().encode(),
            registration.name.encode(),
            registration.version.encode(),
            registration.worker.encode(),
            registration.metadata,
            b"%d" % registration.below,
            b"%d" % token.incarnation,
            _TTL,
            registration.over.encode(),
            b"%02x-%b-" % (shard, registration.address.encode()),
            b"" if token.incarnation == 1 else b".%d" % token.incarnation,
        ]
        unfinished = structures(self._runs.namespace, shard)[0]
        names = [source_key, address.stream, address.board, address.lanes, address.idle, unfinished]
        found = await self._run("register", names, arguments)
        if found == [b"lost"]:
            raise lost(registration, token)
        return _board(found)

    def _source(self, source: bytes) -> tuple[bytes, int]:
        key, _ = keys.source_keys(self._runs.namespace, self._runs.shards, source)
        return key, keys.shard_of(source, self._runs.shards)

    async def news(self, shard: int, addresses: Sequence[str]) -> list[int]:
        asked = [
            self._runs.funnel.ask(b"HGET", AddressKeys(self._runs.namespace, shard, address).stream, b"news")
            for address in addresses
        ]
        return [int(await answer or 0) for answer in asked]

    async def board(self, shard: int, address: str) -> dict[int, int]:
        return _board(await self._runs.funnel.ask(b"HGETALL", AddressKeys(self._runs.namespace, shard, address).board))

    async def read_record(self, run_id: RecordId, seen: int) -> RecordState | None:
        try:
            found = await self._see(run_id, b"held", seen)
        except RunNotFoundError:
            return None
        if found is None or found == ELSEWHERE:
            return None
        status, restarts, messages, extras = found
        return RecordState(read_status(status), restarts, read_messages(messages), read_extras(extras)[0])

    async def forget_record(self, registration: Registration, token: Token, run_id: RecordId) -> None:
        address, names = self._of(run_id)
        source_key, _ = self._source(registration.source)
        arguments = [
            str(token).encode(),
            self._runs.channel,
            str(run_id).encode(),
            b"%d" % run_id.position,
            b"%d" % GONE_SECONDS,
        ]
        if not await self._run("forget", [source_key, address.board, *names, address.lanes], arguments):
            raise lost(registration, token)

    async def pass_records(
        self, registration: Registration, token: Token, below: int, positions: Sequence[int]
    ) -> list[bytes]:
        source_key, shard = self._source(registration.source)
        address = AddressKeys(self._runs.namespace, shard, registration.address)
        told = [str(token).encode(), b"%d" % below, _TTL, *(b"%d" % position for position in positions)]
        names = [source_key, address.stream, address.board, address.lanes, address.idle]
        done, *gone = await self._run("pass", names, told)
        if not done:
            raise lost(registration, token)
        return list(gone[0])

    async def take_questions(self, shard: int, address: str) -> tuple[Query, ...]:
        questions = AddressKeys(self._runs.namespace, shard, address).questions
        if not await self._runs.funnel.ask(b"EXISTS", questions):
            return ()
        return tuple(
            Query(question.decode(), run_id.decode(), name.decode(), payload)
            for question, run_id, name, payload in await self._run("questions", [questions], [])
        )

    async def incarnation(self, shard: int, address: str) -> int | None:
        stream = AddressKeys(self._runs.namespace, shard, address).stream
        found = await self._runs.funnel.ask(b"HGET", stream, b"incarnation")
        return None if found is None else int(found)


def _board(flat: Sequence[bytes]) -> dict[int, int]:
    return {int(position): int(count) for position, count in zip(flat[::2], flat[1::2], strict=True)}


def lost(registration: Registration, token: Token) -> LeaseLost:
    return LeaseLost(f"source {registration.source.hex()} is not held with token {token} any more")
