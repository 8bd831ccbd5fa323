"""WorkflowClient: starts runs, and finds those that exist.

Rules: what is stamped on a run (its version, its flow control) comes from the definition that this process has
imported. A name it hasn't imported is submitted without, and logged. The client makes the run's id, so that the store
may send a submission again.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from pydantic import BaseModel

from pyrula.workflows.client.backfills import BackfillClient
from pyrula.workflows.client.calls import Named, SendingStore, signal_message
from pyrula.workflows.client.handle import RunHandle
from pyrula.workflows.client.listing import RunCounts, RunPage, Statuses, count_runs, list_runs
from pyrula.workflows.client.record_runs import BoundToTopics, RunLetter, record_run_id
from pyrula.workflows.client.refs import RunRef, checked_priority, checked_text
from pyrula.workflows.client.schedules import ScheduleClient
from pyrula.workflows.client.trigger import TriggerCalls
from pyrula.workflows.client.waiting import Waits
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import encode_message
from pyrula.workflows.definition import WorkflowDefinition, definition_of, registered_definitions
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.naming import meant, names_checked
from pyrula.workflows.params import Params, encode_unchecked
from pyrula.workflows.stamps import stamp_of
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.messages import Message
from pyrula.workflows.store.redrive import Letter
from pyrula.workflows.store.registry import Enlisted, misfits
from pyrula.workflows.store.runs import Submission

__all__ = ["WorkflowClient"]

logger = logging.getLogger("pyrula.client")

_UNKNOWN_TOLD: Final = 1_000
"""So many names that aren't imported are logged by one client."""

R = TypeVar("R")

_UNBOUND_SECONDS: Final = 30.0


@names_checked
class WorkflowClient(TriggerCalls):
    """Starts runs and talks to them. Needs only the store that the workers use, and opens it when first used.

    ```python
    client = WorkflowClient(ValkeyStore(url="valkey://localhost:6379"))
    run = await client.submit("charge", {"amount_cents": 500}, idempotency_key="order-7")
    result = await run.result(timeout=60)
    ```

    `poll_interval`: seconds between looks at what is waited for, should a wake-up get lost. `query_timeout`: how long a
    query waits for a worker. `async with` closes the store in the end, for programs that share it with nobody.
    `admit` is called before a run is queued and may refuse it; `waits` is how the client waits.
    """

    def __init__(
        self,
        store: SendingStore,
        *,
        poll_interval: float = 1.0,
        query_timeout: float = 10.0,
        admit: Callable[[], None] | None = None,
        waits: Waits | None = None,
    ) -> None:
        super().__init__(
            store,
            poll_interval=to_seconds(poll_interval, "WorkflowClient(poll_interval=)", zero=False),
            query_timeout=to_seconds(query_timeout, "WorkflowClient(query_timeout=)", zero=False),
            waits=waits,
        )
        self._admit = admit
        self._unknown: set[str] = set()
        self._unbound: dict[tuple[str, str], float] = {}

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def schedules(self) -> ScheduleClient:
        """What starts runs by the clock."""
        return ScheduleClient(self.store, self._open, self.submit)

    async def list(
        self,
        *,
        name: str | None = None,
        status: Statuses = None,
        owner: str | None = None,
        since: datetime | timedelta | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs, the newest first: of one workflow, in one of these statuses (or "parked", "finished", "unfinished"), of
        one owner ("" for none), submitted since then or since so long ago. At most 1,000; `cursor` is that of the page
        before.

        A page may be short and still have a cursor: go on until it has none. Finished runs are listed until their
        retention is over."""
        await self._open()
        return await list_runs(
            self.store,
            self.store.now(),
            name=name,
            status=status,
            owner=owner,
            since=since,
            limit=limit,
            cursor=cursor,
        )

    async def counts(self, name: str | None = None) -> RunCounts:
        """How many runs of a workflow, or of all, are in each status, and for how long the first is queued."""
        await self._open()
        return await count_runs(self.store, self.store.now(), name=name)

    @property
    def backfills(self) -> BackfillClient:
        """What runs a topic's records again."""
        return BackfillClient(self.store, self._open)

    async def close(self) -> None:
        """Close the store. Not for a client whose store others use."""
        await self.store.close()
        self._opened = False

    @overload
    async def submit(
        self,
        name: WorkflowDefinition[..., R],
        params: Mapping[str, Any] | BaseModel | None = None,
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[R]: ...

    @overload
    async def submit(
        self,
        name: str,
        params: Mapping[str, Any] | BaseModel | None = None,
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[Any]: ...

    async def submit(
        self,
        name: Any,
        params: Mapping[str, Any] | BaseModel | None = None,
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[Any]:
        """Queue a run. `name` is a workflow's name or its definition; `params` are the body's keyword arguments.

        A repeat of `idempotency_key` gives the first run, whatever became of it, until its retention is over. `owner`
        is the tenant, for fair claims; `priority`, from -100 to 100, orders the runs of one owner: the highest first,
        then the oldest. `metadata` is anything that JSON holds. ValueError for params that don't fit, or for which the
        key of a policy fails."""
        return await self._submit(name, params, idempotency_key, owner, metadata, priority, None)

    @overload
    async def signal_with_start(
        self,
        name: WorkflowDefinition[..., R],
        params: Mapping[str, Any] | BaseModel | None,
        signal: str,
        payload: Any = None,
        *,
        idempotency_key: str,
        signal_id: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[R]: ...

    @overload
    async def signal_with_start(
        self,
        name: str,
        params: Mapping[str, Any] | BaseModel | None,
        signal: str,
        payload: Any = None,
        *,
        idempotency_key: str,
        signal_id: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[Any]: ...

    async def signal_with_start(
        self,
        name: Any,
        params: Mapping[str, Any] | BaseModel | None,
        signal: str,
        payload: Any = None,
        *,
        idempotency_key: str,
        signal_id: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[Any]:
        """Send a signal to the run of this `idempotency_key`, which is queued first if there is none.

        RunFinishedError if that run has ended."""
        checked_text(idempotency_key, "idempotency_key")
        message = signal_message(signal, payload, signal_id)
        return await self._submit(name, params, idempotency_key, owner, metadata, priority, message)

    @overload
    def handle(self, name: WorkflowDefinition[..., R], run_id: str | RunRef) -> RunHandle[R]: ...

    @overload
    def handle(self, name: str, run_id: str | RunRef) -> RunHandle[Any]: ...

    def handle(self, name: Any, run_id: str | RunRef) -> RunHandle[Any]:
        """A handle to a run that exists. Asks nobody, so that an unknown id shows at the first call."""
        return RunHandle(self, name, str(run_id))

    async def record_run(
        self, binding: BoundToTopics, partition: int, offset: int, *, topic: str | None = None
    ) -> RunHandle[Any]:
        """A handle to the run of a record; `topic` says which, if the binding has several.

        It can be reached once its partition has a worker; RunNotFoundError if it never had one."""
        await self._open()
        run_id = await record_run_id(self.store, binding, partition, offset, topic)
        return RunHandle(self, binding.workflow, run_id)

    async def redrive(self, letter: RunLetter) -> RunHandle[Any]:
        """Run a dead-lettered record once more, by its letter: DeadLetter.of(a record of the dead-letter topic).

        As `retry` of its run, which needs no letter as long as the store keeps its end; what the store has kept of it
        goes before what the letter says. Without a journal in either it runs from its beginning: the event `redriven`
        tells, by `resumed`. TransitionRefused if it is at work or completed; RunNotFoundError if its partition never
        had a worker with this store."""
        await self._open()
        await self.store.redrive(letter.run_id, Letter(letter.params, letter.rows))
        await self._waits.sent(letter.run_id)
        return RunHandle(self, letter.workflow, letter.run_id)

    async def _submit(
        self,
        named: Named,
        params: object,
        idempotency_key: str | None,
        owner: str,
        metadata: Any,
        priority: int,
        message: Message | None,
    ) -> RunHandle[Any]:
        definition = definition_of(named)
        name = checked_text(named if isinstance(named, str) else named.name, "a workflow's name")
        if idempotency_key is not None:
            checked_text(idempotency_key, "idempotency_key")
        if owner:
            checked_text(owner, "owner")
        checked_priority(priority)
        if definition is None:
            self._tell_unknown(name)
            data, version, stamp = encode_unchecked(name, params), None, None
        else:
            data, version = Params.of(definition).encode(params), definition.version
            stamp = stamp_of(definition, data)
        noted = encode_message(metadata, f"workflow {name!r}: metadata", MAX_VALUE)
        if self._admit is not None:
            self._admit()
        await self._open()
        if definition is not None and stamp is not None:
            await self._check_unbound(definition)
        run_id = self.store.new_run_id(name=name, idempotency_key=idempotency_key, stamp=stamp)
        submission = Submission(
            run_id,
            name,
            data,
            version=version,
            idempotency_key=idempotency_key,
            owner=owner,
            metadata=noted,
            message=message,
            stamp=stamp,
            priority=priority,
        )
        submitted = await self.store.submit(submission)
        if not submitted.same_params:
            logger.warning(
                "workflow %r: idempotency key %.100r was submitted before with other params; the run is %s",
                name,
                idempotency_key,
                submitted.run_id,
            )
        self._remember(RunId.parse(submitted.run_id).chain, name)
        await self._waits.sent(submitted.run_id)
        return RunHandle(self, named, submitted.run_id, submitted)

    async def _check_unbound(self, definition: WorkflowDefinition[..., Any]) -> None:
        """ConfigurationError if a live worker has this version bound to a topic. Looked up once in a while only."""
        pair = definition.name, definition.version
        if self._unbound.get(pair, -math.inf) + _UNBOUND_SECONDS > time.monotonic():
            return
        for misfit in misfits(Enlisted(*pair, topic=None, gated=True), await self.store.enlisted()):
            if misfit.same_version:
                raise ConfigurationError(misfit.text)
            logger.warning("%s", misfit.text)
        self._unbound[pair] = time.monotonic()

    def _tell_unknown(self, name: str) -> None:
        # bounded, since over HTTP anybody may make up names
        if name not in self._unknown and len(self._unknown) < _UNKNOWN_TOLD:
            self._unknown.add(name)
            logger.warning(
                "workflow %r isn't imported in this process: its runs are submitted unchecked, without version and "
                "flow control%s",
                name,
                meant(name, registered_definitions()),
            )
