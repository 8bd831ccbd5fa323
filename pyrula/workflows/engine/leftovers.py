"""What a run leaves behind: threads that can't be cancelled, and tasks that resist.

A task that is left behind is kept alive, since freeing it would run its `finally` blocks from the garbage collector,
and it is taken out of asyncio's own list, since asyncio.run would wait for it without end.
"""

import asyncio
from contextvars import Context
from typing import Any

from pyrula.workflows.engine.run import Run, log

__all__ = ["abandon"]

_abandoned: "set[asyncio.Task[Any]]" = set()


def abandon(run: Run, task: "asyncio.Task[Any]", waits_on: object, reason: str) -> None:
    """Leaves a task behind and reports it."""
    log.warning("run %s (%s): %s; it is left behind: %r", run.run_id, run.definition.name, reason, task)
    _abandoned.add(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - there is no public way
    task.add_done_callback(_gone, context=Context())
    run.remains.on_left_behind(task, waits_on)


def _gone(task: "asyncio.Task[Any]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()
