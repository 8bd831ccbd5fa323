"""A run in one's hand: the operations of `calls`, for one run."""

from collections.abc import Generator
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from pyrula.workflows.client.calls import Named, RunCalls
from pyrula.workflows.client.explain import RunExplanation
from pyrula.workflows.client.interrupts import OnInterrupt
from pyrula.workflows.client.refs import RunRef
from pyrula.workflows.client.report import RunReport
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.store.events import Event
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.runs import Submitted

__all__ = ["RunHandle"]

R_co = TypeVar("R_co", covariant=True)


class RunHandle(RunRef, Generic[R_co]):
    """A run: made by `submit`, or from an id by `WorkflowClient.handle`. Follows a continue_as_new chain everywhere.

    Its text is the run's id, and it can be passed wherever a run id is wanted. Awaiting it gives itself.

    >>> from pyrula.workflows.client.starting import WorkflowClient
    >>> from pyrula.workflows.store.memory import MemoryStore
    >>> run = WorkflowClient(MemoryStore()).handle("charge", "0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC")
    >>> str(run), run == "0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC"
    ('0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC', True)
    """

    __slots__ = ("_calls", "_named", "submitted")

    def __init__(self, calls: RunCalls, named: Named, run_id: str, submitted: Submitted | None = None) -> None:
        super().__init__(run_id)
        self._calls = calls
        self._named = named
        self.submitted: Final = submitted
        """Of a handle that `submit` gave: whether the run was queued now (`created`), or was there under the same
        idempotency key, with the same params or others."""

    @property
    def name(self) -> str:
        """The workflow's name."""
        return self._named.name if isinstance(self._named, WorkflowDefinition) else self._named

    def __repr__(self) -> str:
        return f"<run {self.run_id} of {self.name!r}>"

    def __await__(self) -> Generator[Any, None, "RunHandle[R_co]"]:
        return self
        yield  # what makes this a generator

    async def signal(self, signal: str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Wake `ctx.wait_for_signal(signal)`, or be kept until the body waits. A repeat of `signal_id` does nothing.

        Raises RunFinishedError, RunNotFoundError."""
        await self._calls.signal(self._named, self, signal, payload, signal_id=signal_id)

    async def query(self, query: str, /, *args: Any, **kwargs: Any) -> Any:
        """Read state through `ctx.on_query`; writes nothing. QueryError for a name the run doesn't know."""
        return await self._calls.query(self._named, self, query, *args, **kwargs)

    async def update(
        self,
        update: str,
        payload: Any = None,
        *,
        update_id: str | None = None,
        timeout: float | timedelta | None = 30.0,
    ) -> Any:
        """Apply `ctx.on_update(update)` and return its value. A repeat of `update_id` gives the first one's answer.

        Raises UpdateRejected (by the validator), UpdateError (by the handler), UpdateTimeout (nobody applied it yet: it
        stays queued, ask again with its update_id), RunFinishedError, RunNotFoundError."""
        return await self._calls.update(self._named, self, update, payload, update_id=update_id, timeout=timeout)

    async def resume(self, action: str, value: Any = None, *, wait_id: str | None = None) -> None:
        """Answer `ctx.interrupt`: the one the run waits on, unless `wait_id` says which. RunNotWaitingError."""
        await self._calls.resume(self._named, self, action, value, wait_id=wait_id)

    async def cancel(self, timeout: float | timedelta | None = 10.0) -> RunStatus:
        """Stop the run at its next step. The status that led to: a terminal one, or the present one when the body is
        still at it after `timeout` seconds; the request stays. A run that had ended stays as it is."""
        return await self._calls.cancel(self._named, self, timeout)

    async def pause(self, reason: str = "", *, timeout: float | timedelta | None = 10.0) -> RunStatus:
        """Stop the run before its next operation, until `unpause`. The status that led to, as with `cancel`."""
        return await self._calls.pause(self._named, self, reason, timeout=timeout)

    async def unpause(self) -> RunStatus:
        """Let a paused run go on. TransitionRefused for one that isn't paused."""
        return await self._calls.unpause(self._named, self)

    async def retry(self) -> RunStatus:
        """Run a failed or cancelled run again; steps that succeeded keep their results. TransitionRefused otherwise.

        The run of a record too: one that was dead-lettered runs beside its lane (docs/kafka-runs.md)."""
        return await self._calls.retry(self._named, self)

    async def status(self) -> RunStatus:
        """Where the run is; a RunStatus equals its text."""
        return await self._calls.status(self._named, self)

    async def result(
        self, *, timeout: float | timedelta | None = None, on_interrupt: OnInterrupt | None = None
    ) -> R_co:
        """Wait for the run to finish: what its body returned, typed if its definition is imported here.

        `on_interrupt` is shown the interrupts that the run waits on meanwhile, and gives the answers. Raises
        DurableInvocationError, DurableInvocationCancelled, or DurableInvocationTimeout after `timeout` seconds."""
        value: R_co = await self._calls.result(self._named, self, timeout=timeout, on_interrupt=on_interrupt)
        return value

    async def events(self) -> list[Event]:
        """What happened to the live run, oldest first."""
        return await self._calls.events(self._named, self)

    async def history(self, *, link: int | None = None) -> History:
        """The live run's journal, params and version, to be replayed; `link` asks for an earlier run of its chain."""
        return await self._calls.history(self._named, self, link=link)

    async def explain(self) -> RunExplanation:
        """Why the run isn't running, in one sentence and as data."""
        return await self._calls.explain(self._named, self)

    async def detail(self) -> RunReport:
        """All that can be told of the run."""
        return await self._calls.detail(self._named, self)
