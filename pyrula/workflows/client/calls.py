"""What can be done with a run that exists: each operation takes the workflow's name and the run's id.

A run is reached by its id alone, so the name is compared with the run's own first: a mixed-up id must not cancel the
run of another workflow. The name tells how a result is read, too. An id of any link of a continue_as_new chain means
its live run. Messages carry an id of the caller's or one made here, so that the store may be asked again.
"""

import asyncio
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar, overload

from pyrula.workflows.client.explain import RunExplanation, bound_to, explained, served_by
from pyrula.workflows.client.interrupts import OnInterrupt, Reception
from pyrula.workflows.client.refs import RunRef, checked_text, seconds_or_none
from pyrula.workflows.client.report import RunReport, report_of
from pyrula.workflows.client.waiting import Polling, Waits
from pyrula.workflows.codec import Codec, loads
from pyrula.workflows.definition import WorkflowDefinition, find_definition
from pyrula.workflows.errors import (
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    QueryError,
    QueryTimeout,
    StoreError,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
)
from pyrula.workflows.naming import refuse_url
from pyrula.workflows.store.backfills import BackfillStore
from pyrula.workflows.store.batches import BatchStore
from pyrula.workflows.store.events import Event, decode_event, in_order
from pyrula.workflows.store.history import History
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.listing import RunLister
from pyrula.workflows.store.messages import Applied, Delivered, Message
from pyrula.workflows.store.payloads import (
    Failure,
    encode_failure,
    encode_payload,
    encode_query,
    encode_resume,
    read_answer,
    read_failure,
)
from pyrula.workflows.store.record_changes import RecordFinder, RecordId
from pyrula.workflows.store.redrive import RedriveStore
from pyrula.workflows.store.refusals import RunFinishedError, RunNotFoundError
from pyrula.workflows.store.registry import Registry
from pyrula.workflows.store.runs import Origin, Query, Result, RunSender, ScheduleStore

__all__ = ["Named", "RunCalls", "SendingStore", "signal_message"]

R = TypeVar("R")

Named: TypeAlias = "str | WorkflowDefinition[..., Any]"

_ANSWER_GRACE: Final = 5.0
"""Seconds for an answer to arrive after the last moment at which a worker may have taken the query."""

_STOPPED: Final = TERMINAL | {RunStatus.PAUSED}

_REMEMBERED: Final = 10_000
"""Runs of which a client remembers the workflow, so that it asks once a run."""


class SendingStore(
    RunSender, ScheduleStore, RunLister, BatchStore, BackfillStore, RecordFinder, RedriveStore, Registry, Protocol
):
    """What a client needs of a store."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class RunCalls:
    """Operations on runs, by name and run id. Opens the store when it is first used."""

    def __init__(self, store: SendingStore, *, poll_interval: float, query_timeout: float, waits: Waits | None) -> None:
        refuse_url(store)
        self.store = store
        self._query_timeout = query_timeout
        self._waits: Waits = waits or Polling(store, poll_interval)
        # whoever waits drives the runs, so that there need be no worker
        self._in_process = waits is not None
        self._workflow_of: dict[str, str] = {}
        self._opened = False
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def _open(self) -> None:
        if self._opened:
            return
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not loop:
            self._opening = loop, asyncio.Lock()
        async with self._opening[1]:
            if not self._opened:
                await self.store.open()
                self._opened = True

    async def _run(self, name: Named, run_id: str | RunRef) -> str:
        """The run's id, once it is known to be of this workflow. RunNotFoundError. Opens the store."""
        await self._open()
        wanted, text = name if isinstance(name, str) else name.name, str(run_id)
        chain = RunId.parse(text).chain
        if self._workflow_of.get(chain) != wanted:
            found = (await self.origin(name, text)).name
            if found != wanted:
                raise RunNotFoundError(text, f"it is of workflow {found!r:.100}, not of {wanted!r:.100}")
        return text

    def _remember(self, run_id: str, workflow: str) -> None:
        while len(self._workflow_of) >= _REMEMBERED:
            del self._workflow_of[next(iter(self._workflow_of))]
        self._workflow_of[run_id] = workflow

    async def _deliver(self, name: Named, run_id: str | RunRef, message: Message) -> Delivered:
        delivered = await self.store.deliver(await self._run(name, run_id), message)
        await self._waits.sent(delivered.run_id)
        return delivered

    async def signal(
        self, name: Named, run_id: str | RunRef, signal: str, payload: Any = None, *, signal_id: str | None = None
    ) -> None:
        """Wake `ctx.wait_for_signal(signal)`, or be kept until the body waits. A repeat of `signal_id` does nothing.

        Raises RunFinishedError, RunNotFoundError."""
        await self._deliver(name, run_id, signal_message(signal, payload, signal_id))

    async def query(self, name: Named, run_id: str | RunRef, query: str, /, *args: Any, **kwargs: Any) -> Any:
        """Read state through `ctx.on_query`; writes nothing. QueryError for a name the run doesn't know."""
        checked_text(query, "a query's name")
        payload = encode_query(args, kwargs, f"query {query!r}")
        asked = Query(secrets.token_hex(16), await self._run(name, run_id), query, payload)
        await self.store.ask(asked.run_id, asked, seconds=self._query_timeout)
        await self._waits.sent(asked.run_id)
        patience = self._query_timeout + _ANSWER_GRACE
        answer = await self._waits.until(asked.run_id, lambda: self.store.read_answer(asked), patience)
        if answer is None:
            asked_for = f"query_timeout={self._query_timeout:g}"
            message = f"no worker of this workflow answered within {patience:g} s ({asked_for})"
            raise QueryTimeout(asked.run_id, query, "", message)
        value, failure = read_answer(answer)
        if failure is not None:
            raise QueryError(asked.run_id, query, failure.type, failure.message)
        return value

    async def update(
        self,
        name: Named,
        run_id: str | RunRef,
        update: str,
        payload: Any = None,
        *,
        update_id: str | None = None,
        timeout: float | timedelta | None = 30.0,
    ) -> Any:
        """Apply `ctx.on_update(update)` and return its value. A repeat of `update_id` gives the first one's answer.

        Raises UpdateRejected (by the validator), UpdateError (by the handler), UpdateTimeout (nobody applied it yet: it
        stays queued, ask again with its update_id), RunFinishedError, RunNotFoundError."""
        checked_text(update, "an update's name")
        update_id = secrets.token_hex(16) if update_id is None else checked_text(update_id, "update_id")
        seconds = seconds_or_none(timeout, "update(timeout=)")
        message = Message("update", update_id, update, encode_payload(payload, f"update {update!r}"))
        delivered = await self._deliver(name, run_id, message)
        applied = delivered.applied
        if applied is None:
            applied = await self._waits.until(
                delivered.run_id, lambda: self._applied(delivered.run_id, update_id), seconds
            )
        if applied is None:
            raise UpdateTimeout(delivered.run_id, update, update_id, seconds or 0.0)
        if applied.outcome == "ok":
            return loads(applied.value)
        failure = read_failure(applied.value)
        kind = UpdateRejected if applied.outcome == "rejected" else UpdateError
        raise kind(delivered.run_id, update, update_id, failure.type, failure.message)

    async def _applied(self, run_id: str, update_id: str) -> Applied | None:
        status, applied = await asyncio.gather(self.store.status(run_id), self.store.read_update(run_id, update_id))
        if applied is None and status in TERMINAL:
            # it may have been applied by the very change that ended the run
            applied = await self.store.read_update(run_id, update_id)
            if applied is None:
                raise RunFinishedError(run_id, status, f"has ended as {status} before it applied the update")
        return applied

    async def resume(
        self, name: Named, run_id: str | RunRef, action: str, value: Any = None, *, wait_id: str | None = None
    ) -> None:
        """Answer `ctx.interrupt`: the one the run waits on, unless `wait_id` says which. RunNotWaitingError."""
        checked_text(action, "an interrupt's action")
        if wait_id is not None:
            checked_text(wait_id, "wait_id")
        payload = encode_resume(action, value, "an interrupt's answer")
        await self._deliver(name, run_id, Message("resume", secrets.token_hex(16), wait_id or "", payload))

    async def cancel(self, name: Named, run_id: str | RunRef, timeout: float | timedelta | None = 10.0) -> RunStatus:
        """Stop the run at its next step. The status that led to: a terminal one, or the present one when the body is
        still at it after `timeout` seconds; the request stays. A run that had ended stays as it is."""
        return await self._stop(name, run_id, Message("cancel", "cancel"), timeout, TERMINAL)

    async def pause(
        self, name: Named, run_id: str | RunRef, reason: str = "", *, timeout: float | timedelta | None = 10.0
    ) -> RunStatus:
        """Stop the run before its next operation, until `unpause`. The status that led to, as with `cancel`."""
        failure = encode_failure(Failure("", reason or "paused by a client"))
        return await self._stop(name, run_id, Message("pause", "pause", payload=failure), timeout, _STOPPED)

    async def _stop(
        self,
        name: Named,
        run_id: str | RunRef,
        message: Message,
        timeout: float | timedelta | None,
        ends: frozenset[RunStatus],
    ) -> RunStatus:
        seconds = seconds_or_none(timeout, f"{message.kind}(timeout=)")
        delivered = await self._deliver(name, run_id, message)
        if delivered.status in ends or seconds == 0:
            return delivered.status
        present = delivered.status

        async def stopped() -> RunStatus | None:
            nonlocal present
            present = await self.store.status(delivered.run_id)
            return present if present in ends else None

        await self._waits.until(delivered.run_id, stopped, seconds)
        return present

    async def unpause(self, name: Named, run_id: str | RunRef) -> RunStatus:
        """Let a paused run go on. TransitionRefused for one that isn't paused."""
        return await self._moved(name, run_id, self.store.unpause)

    async def retry(self, name: Named, run_id: str | RunRef) -> RunStatus:
        """Run a failed or cancelled run again; steps that succeeded keep their results. TransitionRefused otherwise."""
        return await self._moved(name, run_id, self.store.retry)

    async def _moved(self, name: Named, run_id: str | RunRef, verb: Callable[[str], Any]) -> RunStatus:
        run = await self._run(name, run_id)
        status: RunStatus = await verb(run)
        await self._waits.sent(run)
        return status

    async def status(self, name: Named, run_id: str | RunRef) -> RunStatus:
        return await self.store.status(await self._run(name, run_id))

    @overload
    async def result(
        self,
        name: WorkflowDefinition[..., R],
        run_id: str | RunRef,
        *,
        timeout: float | timedelta | None = None,
        on_interrupt: OnInterrupt | None = None,
    ) -> R: ...

    @overload
    async def result(
        self,
        name: str,
        run_id: str | RunRef,
        *,
        timeout: float | timedelta | None = None,
        on_interrupt: OnInterrupt | None = None,
    ) -> Any: ...

    async def result(
        self,
        name: Any,
        run_id: str | RunRef,
        *,
        timeout: float | timedelta | None = None,
        on_interrupt: OnInterrupt | None = None,
    ) -> Any:
        """Wait for the run to finish: what its body returned, typed if its definition is imported here.

        `on_interrupt` is shown the interrupts that the run waits on meanwhile, and gives the answers. Raises
        DurableInvocationError, DurableInvocationCancelled, or DurableInvocationTimeout after `timeout` seconds."""
        seconds = seconds_or_none(timeout, "result(timeout=)")
        run = await self._run(name, run_id)
        found = await self._finished(name, run, seconds, on_interrupt)
        if found is None:
            raise DurableInvocationTimeout(run, await self._status_now(run), seconds or 0.0)
        if found.status is RunStatus.CANCELLED:
            raise DurableInvocationCancelled(found.run_id)
        if found.status is not RunStatus.COMPLETED:
            raise DurableInvocationError(found.run_id, *read_failure(found.error))
        return _codec(name).decode(found.value, f"the result of run {found.run_id}")

    async def _finished(
        self, name: Named, run_id: str, seconds: float | None, on_interrupt: OnInterrupt | None
    ) -> Result | None:
        if on_interrupt is None:
            return await self._waits.until(run_id, lambda: self.store.result(run_id), seconds)

        async def resume(action: str, value: Any, wait_id: str) -> None:
            await self.resume(name, run_id, action, value, wait_id=wait_id)

        reception = Reception(run_id, on_interrupt, resume)

        async def finished() -> Result | None:
            result, detail = await asyncio.gather(self.store.result(run_id), self.store.detail(run_id))
            if result is None:
                reception.show(detail.interrupts)
            return result

        try:
            return await self._waits.until(run_id, finished, seconds, woken=reception.done)
        finally:
            await reception.close()

    async def _status_now(self, run_id: str) -> str:
        """For a message; a store that doesn't answer shall not hold it up."""
        try:
            async with asyncio.timeout(1.0):
                return await self.store.status(run_id)
        except (TimeoutError, StoreError):
            return ""

    async def events(self, name: Named, run_id: str | RunRef) -> list[Event]:
        """What happened to the live run, oldest first."""
        return in_order(await self.store.events(await self._run(name, run_id)))

    async def events_of(
        self, name: Named, run_id: str | RunRef, *, start: int = 0, limit: int | None = None
    ) -> list[Event]:
        """What happened to exactly this link of its chain, from event number `start` (0 is the first) on, at most
        `limit` events, in the order written: to read on where an earlier call ended. After a `continued_as_new` go on
        with the run it names."""
        return [decode_event(row) for row in await self.store.events_of(await self._run(name, run_id), start, limit)]

    async def origin(self, name: Named, run_id: str | RunRef) -> Origin:
        """The workflow's name and the owner that the run was submitted with. `name` isn't compared: this tells it."""
        await self._open()
        origin = await self.store.origin(str(run_id))
        self._remember(RunId.parse(str(run_id)).chain, origin.name)
        return origin

    async def history(self, name: Named, run_id: str | RunRef, *, link: int | None = None) -> History:
        """The live run's journal, params and version, to be replayed; `link` asks for an earlier run of its chain."""
        run = await self._run(name, run_id)
        if link is None:
            return await self.store.history((await self.store.detail(run)).run_id)
        return await self.store.history(str(RunId.parse(run)._replace(link=link)))

    async def detail(self, name: Named, run_id: str | RunRef) -> RunReport:
        """All that can be told of the run."""
        return report_of(await self.store.detail(await self._run(name, run_id)))

    async def explain(self, name: Named, run_id: str | RunRef) -> RunExplanation:
        """Why the run isn't running, in one sentence and as data."""
        run = await self._run(name, run_id)
        detail = await self.store.detail(run)
        try:
            outlook = await self.store.outlook(run)
        except RunNotFoundError:
            return explained(detail, None, None)  # a record's run: its partition has it
        if detail.status is not RunStatus.QUEUED or self._in_process:
            return explained(detail, outlook, None)
        workers, of_record = await self.store.enlisted(), RecordId.parse(run) is not None
        served = served_by(workers, detail.name, detail.version, bound=of_record)
        return explained(detail, outlook, served, "" if of_record else bound_to(workers, detail.name, detail.version))


def signal_message(signal: str, payload: Any, signal_id: str | None) -> Message:
    checked_text(signal, "a signal's name")
    signal_id = secrets.token_hex(16) if signal_id is None else checked_text(signal_id, "signal_id")
    return Message("signal", signal_id, signal, encode_payload(payload, f"signal {signal!r}"))


def _codec(name: Named) -> Codec:
    definition = name if isinstance(name, WorkflowDefinition) else find_definition(name)
    return Codec.of() if definition is None else definition.return_codec
