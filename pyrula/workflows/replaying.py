"""A run replayed from its journal, to be asked something: nothing is written, no step starts, nothing is sent."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from pyrula.workflows.clock import Clock
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.execution import Execution
from pyrula.workflows.replay.journal import Journal

__all__ = ["replayed"]


class _Reader:
    """The host of a run that is replayed only to be asked something: nothing is written, nothing starts."""

    park_after = inf

    def __init__(self, tenant: tuple[str, Any], sends: bool) -> None:
        self._tenant = tenant
        self.sends = sends

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
    sends: bool = True,
) -> AsyncIterator[Execution]:
    """A run that nobody holds, while its journal is replayed: nothing is written, no step starts, nothing is sent."""
    host: Any = _Reader(tenant, sends)
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
