"""A run replayed from its journal, to be asked something, or to see whether today's code fits it.

Rules: nothing is written, no step starts, nothing is sent. Arguments are the caller's to decode: a submitted run's come
from its params, a record's as its binding reads the record.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.codec import loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.errors import NonDeterminismError
from pyrula.workflows.execution import Execution
from pyrula.workflows.loops import give_back, prepare
from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.store.history import History

__all__ = ["check_fit", "check_history", "replayed"]


class _Reader:
    """The host of a run that is replayed only to be asked something: nothing is written, nothing starts."""

    park_after = inf

    def __init__(self, tenant: tuple[str, Any], record: object, sends: bool) -> None:
        self._tenant = tenant
        self._record = record
        self.sends = sends

    def record(self, run: Execution) -> object:
        return self._record

    def tenant(self, run: Execution) -> tuple[str, Any]:
        return self._tenant

    def durable(self, run: Execution) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


@asynccontextmanager
async def replayed(
    definition: WorkflowDefinition[Any, Any],
    run_id: str,
    kwargs: dict[str, Any] | None,
    rows: Iterable[tuple[int, bytes]],
    *,
    args: tuple[Any, ...] = (),
    clock: Clock,
    tenant: tuple[str, Any] = ("", None),
    attempt: int = 1,
    record: object = None,
    sends: bool = True,
) -> AsyncIterator[Execution]:
    """A run that nobody holds, while its journal is replayed: nothing is written, no step starts, nothing is sent.

    `record` is what the body sees as ctx.record."""
    host: Any = _Reader(tenant, record, sends)
    journal = Journal.load(rows)
    run = Execution(definition, run_id, host, args, kwargs, journal=journal, attempt=attempt, clock=clock)
    run.desk = desk = Desk()
    desk.read_only = True
    running = asyncio.create_task(run.run())
    try:
        yield run
    finally:
        run.cut()
        await running


def check_history(definition: WorkflowDefinition[..., Any], history: History, call: str) -> None:
    """TypeError if it is none, ValueError if it is another workflow's; `call` is what the user wrote."""
    if not isinstance(history, History):
        raise TypeError(
            f"{call} takes a History, not {history!r:.100}: `await handle.history()`, or History.load(path)"
        )
    if definition.name != history.name:
        raise ValueError(
            f"the history of run {history.run_id} is one of workflow {history.name!r}, not of {definition.name!r}"
        )


async def check_fit(
    definition: WorkflowDefinition[..., Any],
    history: History,
    kwargs: dict[str, Any] | None,
    *,
    args: tuple[Any, ...] = (),
    record: object = None,
    seconds: float,
) -> None:
    """Raises NonDeterminismError if the body, given these arguments, doesn't go the way of its history.

    What it asks for beyond its history is never answered. It has `seconds` to come to rest.
    """
    loop = asyncio.get_running_loop()
    prepare(loop)
    try:
        async with replayed(
            definition,
            history.run_id,
            kwargs,
            history.rows,
            args=args,
            clock=SystemClock(),
            tenant=(history.owner, loads(history.metadata)),
            attempt=history.attempt,
            record=record,
        ) as run:
            try:
                async with asyncio.timeout(seconds):
                    await run.come_to_rest()
            except TimeoutError:
                raise NonDeterminismError(
                    f"run {history.run_id} ({history.name}) didn't come to rest within {seconds:g} s: its body waits "
                    "for something that isn't journaled, where its journal goes on; such waits belong in steps"
                ) from None
            if run.stopped == "paused" and run.error is not None:
                raise run.error
    finally:
        give_back(loop)
