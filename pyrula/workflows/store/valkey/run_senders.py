"""The client's side of submitted runs on Valkey."""

from collections.abc import Callable
from typing import Any

from pyrula.workflows.store.history import History
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Applied, Parent
from pyrula.workflows.store.refusals import (
    RunNotFoundError,
)
from pyrula.workflows.store.runs import Origin, Query, Result, RunDetail, Subscription
from pyrula.workflows.store.valkey.run_keys import (
    answer_key,
)
from pyrula.workflows.store.valkey.run_reading import read_rows
from pyrula.workflows.store.valkey.run_submitting import ValkeySubmitting
from pyrula.workflows.store.valkey.run_wire import (
    read_applied,
    read_extras,
    read_messages,
    read_status,
    read_waits,
    seconds_of,
)


class ValkeyRunSender(ValkeySubmitting):
    """RunSender on Valkey."""

    def now(self) -> float:
        return self._runs.now()

    async def status(self, run_id: str) -> RunStatus:
        _, found = await self._look(run_id, b"status")
        return read_status(found[0])

    async def result(self, run_id: str) -> Result | None:
        run, found = await self._look(run_id, b"result")
        if len(found) == 2:
            return None
        status, link, value, error = found
        return Result(str(run._replace(link=link)), read_status(status), value, error or None)

    async def _look(self, run_id: str, what: bytes) -> tuple[RunId, list[Any]]:
        run = self._runs.parse(run_id)
        keys = self._runs.keys(run)
        names = [keys.hash, keys.inbox, keys.extras]
        found = await self._runs.script("look", run.shard, names, [run.chain.encode(), b"%d" % run.link, what])
        if not found:
            raise RunNotFoundError(run_id)
        return run, found

    async def read_update(self, run_id: str, update_id: str) -> Applied | None:
        keys = self._runs.keys(self._runs.parse(run_id))
        there = self._runs.funnel.ask(b"EXISTS", keys.hash)
        stored = await self._runs.funnel.ask(b"HGET", keys.met, b"update:" + update_id.encode())
        if not await there:
            raise RunNotFoundError(run_id)
        return read_applied(update_id, stored)

    async def detail(self, run_id: str) -> RunDetail:
        run, found = await self._look(run_id, b"detail")
        status, link, value, error, attempt, deaths, worker, cancel, version, waits, unread, extras, fields = found
        name, owner, metadata, params, created, finished, parent, wait = fields
        present = read_status(status)
        interrupts, _ = read_extras(extras)
        return RunDetail(
            run_id=str(run._replace(link=link)),
            status=present,
            name=name.decode(),
            version=version.decode() or None,
            owner=owner.decode(),
            metadata=metadata,
            params=params,
            attempt=attempt,
            created_at=int(created) / 1e6,
            finished_at=seconds_of(finished),
            parent=None if parent is None else Parent(parent.decode(), wait.decode()),
            waits=read_waits(waits),
            interrupts=() if finished else interrupts,
            unread=read_messages(unread),
            worker=worker.decode() or None,
            deaths=deaths,
            cancel_requested=bool(cancel),
            value=value,
            error=error or None,
        )

    async def _live(self, run_id: str) -> RunId:
        run, found = await self._look(run_id, b"status")
        return run._replace(link=int(found[1]))

    async def origin(self, run_id: str) -> Origin:
        hash_key = self._runs.keys(self._runs.parse(run_id)).hash
        name, owner = await self._runs.funnel.ask(b"HMGET", hash_key, b"name", b"owner")
        if name is None:
            raise RunNotFoundError(run_id)
        return Origin(name.decode(), owner.decode())

    async def events_of(self, run_id: str, start: int, limit: int | None = None) -> list[bytes]:
        keys = self._runs.keys(self._runs.parse(run_id))
        last = -1 if limit is None else start + limit - 1
        rows: list[bytes] = await self._runs.funnel.ask(b"LRANGE", keys.events, b"%d" % start, b"%d" % last)
        return rows

    async def events(self, run_id: str) -> list[bytes]:
        live = await self._live(run_id)
        rows: list[bytes] = await self._runs.funnel.ask(b"LRANGE", self._runs.keys(live).events, b"0", b"-1")
        return rows

    async def history(self, run_id: str) -> History:
        runs, run = self._runs, self._runs.parse(run_id)
        detail = await self.detail(run_id)
        keys = runs.keys(run)
        status, params, version, attempt = detail.status, detail.params, detail.version, detail.attempt
        if str(run) != detail.run_id:
            kept = await runs.funnel.ask(b"HMGET", keys.kept, b"params", b"version", b"attempt")
            if kept[0] is None:
                raise RunNotFoundError(run_id)
            status, params, version = RunStatus.CONTINUED_AS_NEW, kept[0], kept[1].decode()
            attempt = int(kept[2])
        rows = await read_rows(runs, keys.journal)
        return History(str(run), detail.name, version, status, params, rows, attempt, detail.owner, detail.metadata)

    async def ask(self, run_id: str, query: Query, *, seconds: float) -> None:
        run = self._runs.parse(run_id)
        arguments = [
            run.chain.encode(),
            b"%d" % run.link,
            query.id.encode(),
            query.name.encode(),
            query.payload,
            b"%d" % (seconds * 1e6),
        ]
        if not await self._runs.script("ask", run.shard, [self._runs.keys(run).hash], arguments):
            raise RunNotFoundError(run_id)

    async def read_answer(self, query: Query) -> bytes | None:
        shard = self._runs.parse(query.run_id).shard
        answer: bytes | None = await self._runs.funnel.ask(b"GET", answer_key(self._runs.namespace, shard, query.id))
        return answer

    def on_change(self, run_id: str, callback: Callable[[], None]) -> Subscription:
        channel = self._runs.channel + b":r:" + self._runs.parse(run_id).chain.encode()
        return self._runs.ear.listen(channel, lambda _: callback())
