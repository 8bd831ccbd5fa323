"""Plays the worker by calling the store's port directly: a test says what the run does, step by step."""

from collections.abc import Sequence
from typing import Any

from pyrula.workflows.codec import dumps
from pyrula.workflows.store.messages import Applied, Change, End, Interrupt, Message, Unread, Wait
from pyrula.workflows.store.payloads import encode_failure, failure_of
from pyrula.workflows.store.runs import ClaimedRun, Query, RunStore
from tests.services.waiting import wait_until_async

SERVED = [("client_cart", "1"), ("client_pay", "1"), ("elsewhere", "1")]


class Held:
    """A run in this holder's hands."""

    def __init__(self, store: RunStore, claimed: ClaimedRun) -> None:
        self.store = store
        self.claimed = claimed
        self.lease = claimed.lease
        self._number = 0
        self._came_with = list(claimed.messages)
        self._seen = max((unread.number for unread in claimed.messages), default=0)

    def change(self, **fields: Any) -> Change:
        self._number += 1
        return Change(self._number, self._seen, **fields)

    async def write(self, **fields: Any) -> None:
        await self.store.append(self.lease, self.change(**fields))

    async def next_message(self) -> Unread:
        """The next message: one that the run was claimed with, or one that comes."""
        if self._came_with:
            return self._came_with.pop(0)
        (first, *_) = await wait_until_async(
            lambda: self.store.unread(self.lease, self._seen), description="a message to the run"
        )
        assert isinstance(first, Unread)
        self._seen = first.number
        return first

    async def read(self, kind: str) -> Message:
        """Reads the next message, which is of this kind, for good."""
        unread = await self.next_message()
        assert unread.message.kind == kind
        await self.write(consumed=[unread.number])
        return unread.message

    async def apply(self, outcome: Any, value: Any) -> Message:
        """Answers the next message, an update; an exception is its error."""
        unread = await self.next_message()
        assert unread.message.kind == "update"
        data = encode_failure(failure_of(value)) if isinstance(value, Exception) else dumps(value)
        applied = Applied(unread.message.id, outcome, data)
        await self.write(consumed=[unread.number], applied=[applied])
        return unread.message

    async def interrupt(self, *interrupts: Interrupt) -> None:
        """Opens these and parks until one is answered."""
        waits = [Wait("interrupt", each.wait_id) for each in interrupts]
        reply = await self.store.park(self.lease, self.change(opened=interrupts), waits)
        assert reply.parked

    async def park(self, *waits: Wait) -> None:
        assert (await self.store.park(self.lease, self.change(), waits)).parked

    async def pause(self, reason: bytes) -> None:
        await self.store.pause(self.lease, self.change(), reason)

    async def complete(self, value: Any = None) -> None:
        await self.store.finish(self.lease, self.change(), End("completed", dumps(value)))

    async def fail(self, error: Exception) -> None:
        await self.store.finish(self.lease, self.change(), End("failed", error=encode_failure(failure_of(error))))

    async def end_cancelled(self) -> None:
        await self.store.finish(self.lease, self.change(), End("cancelled"))

    async def continue_as_new(self, params: Any) -> "Held":
        end = End("continued_as_new", params=dumps(params), version="1")
        finished = await self.store.finish(self.lease, self.change(), end)
        assert finished.next is not None
        return Held(self.store, finished.next)


class Holder:
    """Takes runs and questions, as a worker that serves `SERVED` would."""

    def __init__(self, store: RunStore, name: str = "w") -> None:
        self.store = store
        self.name = name

    async def take(self) -> Held:
        (run, *_) = await wait_until_async(self._claim, description="a run to be queued")
        return Held(self.store, run)

    async def _claim(self) -> Sequence[ClaimedRun]:
        return (await self.store.claim(self.name, SERVED, 1)).runs

    async def question(self) -> Query:
        (query, *_) = await wait_until_async(
            lambda: self.store.questions(self.name, SERVED, 1), description="a question"
        )
        assert isinstance(query, Query)
        return query
