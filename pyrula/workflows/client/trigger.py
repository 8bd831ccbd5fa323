"""Feeding triggers, and making runs of the batches that are full or due.

Rules: an event has an id before it leaves, so that it may be sent again. A batch's run is stamped (version, gates) when
it is submitted, by the definition of whoever does it first: `plan_batch` holds the others to that. Batches of a key
and owner become runs in the order of their events, whoever makes them.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, overload

from pydantic import BaseModel

from pyrula.workflows.batching import TriggerEvent, trigger_event, triggered
from pyrula.workflows.client.calls import Named, RunCalls
from pyrula.workflows.client.handle import RunHandle
from pyrula.workflows.client.refs import checked_text
from pyrula.workflows.codec import Fragment, dumps, loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.stamps import Stamp, stamp_of
from pyrula.workflows.store.batches import BatchStore, EventBatch, OpenBatch
from pyrula.workflows.store.runs import RunSender, Submission

__all__ = ["TriggerCalls", "TriggerStore", "feed", "make_runs"]

R = TypeVar("R")


class TriggerStore(RunSender, BatchStore, Protocol):
    """What triggers need of a store."""


class TriggerCalls(RunCalls):
    """The part of a client that feeds triggers."""

    _admit: Callable[[], None] | None
    _check_unbound: Callable[[WorkflowDefinition[..., Any]], Awaitable[None]]

    @overload
    async def trigger(
        self,
        name: WorkflowDefinition[..., R],
        event: Mapping[str, Any] | BaseModel,
        *,
        event_id: str | None = None,
        owner: str = "",
    ) -> RunHandle[R] | None: ...

    @overload
    async def trigger(
        self, name: str, event: Mapping[str, Any] | BaseModel, *, event_id: str | None = None, owner: str = ""
    ) -> RunHandle[Any] | None: ...

    async def trigger(
        self, name: Any, event: Mapping[str, Any] | BaseModel, *, event_id: str | None = None, owner: str = ""
    ) -> RunHandle[Any] | None:
        """Feed a Collect or Debounce buffer. The run of the batch that this event completes; None as long as the batch
        is open: time closes it.

        A batch gathers the events of one `owner`, the tenant, and its run has that owner. A repeat of `event_id`,
        within a week and for the same workflow, key and owner, feeds nothing and gives the same answer. Raises
        ConfigurationError for a workflow that isn't imported here or has no trigger=, ValueError for an event that
        doesn't fit. After StoreUnavailable the event may have been taken: only with an `event_id` is it safe to try
        again."""
        definition = triggered(name)
        if owner:
            checked_text(owner, "owner")
        told = trigger_event(definition, event, event_id)
        told = replace(told, id=told.id or secrets.token_hex(16), owner=owner)
        if self._admit is not None:
            self._admit()
        await self._open()
        await self._check_unbound(definition)
        run_id = await feed(self.store, definition, told)
        if not run_id:
            return None
        await self._waits.sent(run_id)
        return RunHandle(self, name, run_id)

    async def buffered(self, name: Named) -> list[OpenBatch]:
        """The batches of this workflow that are open, by key and owner: how many events each has, and when it is
        due (seconds since 1970). At most 1,000 of each shard of the store."""
        name = checked_text(name if isinstance(name, str) else name.name, "a workflow's name")
        await self._open()
        return await self.store.open_batches(name)


async def feed(store: TriggerStore, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
    """Feed an event: the run of the batch it completes, "" if it completes none. May be called again with the same."""
    while True:
        fed = await store.feed(event)
        run_id = fed.run_id
        if fed.head is not None:
            run_id = (await make_runs(store, definition, fed.head)).get(fed.batch, run_id)
        if run_id or not fed.batch:
            return run_id
        # somebody else is making that batch a run, or has


async def make_runs(
    store: TriggerStore, definition: WorkflowDefinition[..., Any], head: EventBatch | None
) -> dict[str, str]:
    """Make runs of the sealed batches of one buffer, beginning with the first: their ids, by those of the batches.

    Raises ValueError if the key of a Limit or Rate fails for a batch, which then waits."""
    made = {}
    while head is not None:
        plan = head.plan or await store.plan_batch(head, _plan(store, definition, head))
        if not plan:
            head = await store.take_batch(head.buffer)
            continue
        made[head.id] = run_id = (await store.submit(_submission(head, plan))).run_id
        head = await store.drop_batch(head, run_id)
    return made


def _plan(store: TriggerStore, definition: WorkflowDefinition[..., Any], batch: EventBatch) -> bytes:
    stamp = stamp_of(definition, batch.params)
    run_id = store.new_run_id(name=definition.name, stamp=stamp, batch_key=batch.key)
    return dumps([run_id, definition.version, None if stamp is None else Fragment(stamp.encode())])


def _submission(batch: EventBatch, plan: bytes) -> Submission:
    run_id, version, stamp = loads(plan)
    opened = datetime.fromtimestamp(batch.opened_at, UTC).isoformat()
    return Submission(
        run_id,
        batch.buffer.name,
        batch.params,
        version=version,
        owner=batch.owner,
        metadata=dumps({"batch": {"reason": batch.reason, "opened_at": opened}}),
        stamp=None if stamp is None else Stamp.decode(dumps(stamp)),
    )
