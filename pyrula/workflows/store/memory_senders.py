"""The client's side of submitted runs in memory."""

import asyncio
import secrets
from collections.abc import Callable
from typing import ClassVar

from pyrula.workflows.errors import SerializationError
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.history import History
from pyrula.workflows.store.ids import RunId, home_shard, new_run_id
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory_board import Asked, Board, Chain, Known
from pyrula.workflows.store.messages import MAX_UNREAD, Applied, Delivered, Message
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    TransitionRefused,
    not_waiting,
)
from pyrula.workflows.store.runs import Origin, Query, Result, RunDetail, Submission, Submitted, Subscription


class Listening:
    """A callback in a list, until it is closed."""

    def __init__(self, callbacks: list[Callable[..., None]], callback: Callable[..., None], end: Callable[[], None]):
        self._callbacks = callbacks
        self._callback: Callable[..., None] | None = callback
        self._end = end
        callbacks.append(callback)

    def close(self) -> None:
        if self._callback is not None:
            self._callbacks.remove(self._callback)
            self._callback = None
            self._end()


def check_size(what: str, data: bytes) -> None:
    if len(data) > MAX_VALUE:
        raise SerializationError(f"{what} has {len(data)} bytes, over the limit of {MAX_VALUE}")


class MemoryRunSender:
    """RunSender in memory. A call takes effect at once and answers a loop turn later, as a real store's would."""

    shards: ClassVar[int] = 16
    _board: Board

    def new_run_id(
        self,
        *,
        name: str,
        idempotency_key: str | None = None,
        parent: str | None = None,
        stamp: Stamp | None = None,
        batch_key: str | None = None,
    ) -> str:
        shard = home_shard(
            self.shards,
            name,
            gates=None if stamp is None else stamp.place,
            idempotency_key=idempotency_key,
            batch_key=batch_key,
            parent=None if parent is None else RunId.parse(parent).shard,
        )
        if shard is None:
            shard = secrets.randbelow(self.shards)
        return new_run_id(shard, self._board.now(), secrets.randbits(80))

    def now(self) -> float:
        return self._board.now()

    async def submit(self, submission: Submission) -> Submitted:
        answer = self._submit(submission)
        if submission.message is not None and answer.run_id != submission.run_id:
            self._deliver(answer.run_id, submission.message)
        await asyncio.sleep(0)
        return answer

    def _submit(self, submission: Submission) -> Submitted:
        board = self._board
        board.expire()
        check_size(f"the params of {submission.name}", submission.params)
        chain_id = RunId.parse(submission.run_id).chain
        key = submission.idempotency_key
        found = None if key is None else board.keys.get((submission.name, key))
        present = board.chains.get(found or chain_id)
        if present is not None:
            return Submitted(present.id, present.id == chain_id, present.submitted == submission.params)
        chain = board.chains[chain_id] = Chain(
            id=chain_id,
            name=submission.name,
            version=submission.version,
            owner=submission.owner,
            metadata=submission.metadata,
            params=submission.params,
            submitted=submission.params,
            idempotency_key=key,
            parent=submission.parent,
            key=(128 - submission.priority, board.queue.next_order()),
            stamp=submission.stamp,
            created_at=board.now(),
        )
        if key is not None:
            board.keys[submission.name, key] = chain_id
        chain.events.append(board.event("submitted", name=chain.name, version=chain.version, owner=chain.owner))
        if submission.message is not None:
            self._deliver(chain_id, submission.message)
        board.enqueue(chain)
        return Submitted(chain_id, True)

    async def deliver(self, run_id: str, message: Message) -> Delivered:
        answer = self._deliver(run_id, message)
        await asyncio.sleep(0)
        return answer

    def _deliver(self, run_id: str, message: Message) -> Delivered:
        check_size(f"the {message.kind} {message.name!r}", message.payload)
        chain = self._board.find(run_id)
        key = (message.kind, message.id)
        known = chain.known.get(key)
        if known is not None and known.applied is not None and known.applied.outcome == "rejected":
            known = None
        if known is not None and (known.applied is not None or message.kind != "update" or not chain.finished):
            return Delivered(chain.run_id, chain.status, True, known.applied)
        if message.kind == "cancel":
            duplicate = chain.cancel
            self._board.cancel(chain.id, message)
            return Delivered(chain.run_id, chain.status, duplicate)
        if message.kind == "resume":
            message = self._resume(chain, message)
        elif chain.finished:
            raise RunFinishedError(chain.run_id, chain.status, f"has ended as {chain.status}")
        if message.kind == "pause":
            return self._pause(chain, message)
        if message.kind != "child" and len(chain.inbox) >= MAX_UNREAD:
            raise InboxFullError(chain.run_id, chain.status, f"has {len(chain.inbox)} unread messages")
        if message.kind == "resume":
            del chain.interrupts[message.name]
        chain.known[key] = Known()
        self._board.put(chain, message)
        return Delivered(chain.run_id, chain.status)

    def _resume(self, chain: Chain, message: Message) -> Message:
        waiting = [] if chain.finished else list(chain.interrupts)
        if message.name in waiting:
            return message
        if message.name == "" and len(waiting) == 1:
            return message._replace(name=waiting[0])
        raise not_waiting(chain.run_id, chain.status, message.name, waiting)

    def _pause(self, chain: Chain, message: Message) -> Delivered:
        running = chain.status is RunStatus.RUNNING
        asked = any(unread.message.kind == "pause" for unread in chain.inbox.values())
        if chain.status is RunStatus.PAUSED or (running and asked):
            return Delivered(chain.run_id, chain.status, True)
        if running:
            self._board.put(chain, message)
        else:
            self._board.queue.dequeue(chain.id, self._board.microseconds())
            chain.error = message.payload
            chain.events.append(self._board.event("paused"))
            self._board.wait(chain, RunStatus.PAUSED, [])
        return Delivered(chain.run_id, chain.status)

    async def unpause(self, run_id: str) -> RunStatus:
        await asyncio.sleep(0)
        board, chain = self._board, self._board.find(run_id)
        pauses = [n for n, unread in chain.inbox.items() if unread.message.kind == "pause" and not chain.finished]
        for number in pauses:
            del chain.inbox[number]
        if chain.failed:
            chain.events.append(board.event("unpaused"))
            self._again(chain)
        elif chain.status is RunStatus.PAUSED:
            chain.error = None
            chain.events.append(board.event("unpaused"))
            if chain.behind:
                board.put_behind(chain)
            else:
                board.enqueue(chain)
        elif not pauses:
            raise TransitionRefused(chain.run_id, chain.status, f"is {chain.status}, not paused")
        return chain.status

    async def retry(self, run_id: str) -> RunStatus:
        await asyncio.sleep(0)
        board, chain = self._board, self._board.find(run_id)
        if chain.failed:
            self._again(chain)
            chain.events.append(board.event("retried", attempt=chain.attempt))
            return chain.status
        if chain.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
            text = f"is {chain.status}; only a failed or cancelled run can be retried"
            raise TransitionRefused(chain.run_id, chain.status, text)
        for number in [number for number, unread in chain.inbox.items() if unread.message.kind == "cancel"]:
            del chain.inbox[number]
        chain.cancel = chain.alone = chain.doomed = False
        chain.retried = True
        chain.attempt += 1
        chain.deaths = 0
        chain.finished_at = chain.ended_by = chain.error = None
        chain.value = b"null"
        chain.events.append(board.event("retried", attempt=chain.attempt))
        board.enqueue(chain)
        return chain.status

    def _again(self, chain: Chain) -> None:
        """It is paused since it failed, and goes on from its journal without the last error."""
        chain.failed, chain.retried, chain.error = False, True, None
        chain.alone = chain.doomed = False
        chain.attempt += 1
        chain.deaths = 0
        self._board.enqueue(chain)

    async def status(self, run_id: str) -> RunStatus:
        await asyncio.sleep(0)
        return self._board.find(run_id).status

    async def result(self, run_id: str) -> Result | None:
        await asyncio.sleep(0)
        chain = self._board.find(run_id)
        return Result(chain.run_id, chain.status, chain.value, chain.error) if chain.finished else None

    async def read_update(self, run_id: str, update_id: str) -> Applied | None:
        await asyncio.sleep(0)
        known = self._board.find(run_id).known.get(("update", update_id))
        return None if known is None else known.applied

    async def detail(self, run_id: str) -> RunDetail:
        await asyncio.sleep(0)
        chain = self._board.find(run_id)
        return RunDetail(
            run_id=chain.run_id,
            status=chain.status,
            name=chain.name,
            version=chain.version,
            owner=chain.owner,
            metadata=chain.metadata,
            params=chain.params,
            attempt=chain.attempt,
            created_at=chain.created_at,
            finished_at=chain.finished_at,
            parent=chain.parent,
            waits=tuple(chain.waits),
            interrupts=chain.open_interrupts(),
            unread=chain.unread(),
            worker=chain.worker,
            deaths=chain.deaths,
            cancel_requested=chain.cancel,
            value=chain.value,
            error=chain.error if chain.finished or chain.status is RunStatus.PAUSED else None,
        )

    async def origin(self, run_id: str) -> Origin:
        await asyncio.sleep(0)
        chain = self._board.find(run_id)
        return Origin(chain.name, chain.owner)

    async def events(self, run_id: str) -> list[bytes]:
        await asyncio.sleep(0)
        return list(self._board.find(run_id).events)

    async def events_of(self, run_id: str, start: int, limit: int | None = None) -> list[bytes]:
        await asyncio.sleep(0)
        run = RunId.parse(run_id)
        chain = self._board.find(run.chain)
        wanted = slice(start, None if limit is None else start + limit)
        if run.link == chain.link:
            return chain.events[wanted]
        kept = chain.links.get(run.link)
        return [] if kept is None else kept[2][wanted]

    async def history(self, run_id: str) -> History:
        await asyncio.sleep(0)
        chain, link = self._board.find(run_id), RunId.parse(run_id).link
        if link == chain.link:
            return chain.history()
        kept = chain.links.get(link)
        if kept is None:
            raise RunNotFoundError(run_id)
        return kept[1]

    async def ask(self, run_id: str, query: Query, *, seconds: float) -> None:
        board, chain = self._board, self._board.find(run_id)
        asked = query._replace(run_id=chain.run_id)
        board.queries[query.id] = Asked(asked, (chain.name, chain.version), board.now() + seconds)
        board.tell_ready()
        await asyncio.sleep(0)

    async def read_answer(self, query: Query) -> bytes | None:
        await asyncio.sleep(0)
        found = self._board.answers.get(query.id)
        return None if found is None else found[0]

    def on_change(self, run_id: str, callback: Callable[[], None]) -> Subscription:
        chain_id, listeners = RunId.parse(run_id).chain, self._board.on_change
        callbacks = listeners.setdefault(chain_id, [])

        def end() -> None:
            if not callbacks and listeners.get(chain_id) is callbacks:
                del listeners[chain_id]

        return Listening(callbacks, callback, end)
