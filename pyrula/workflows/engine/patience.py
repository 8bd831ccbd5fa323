"""How long a run is waited for: one that never settles, and one whose replay waits for what isn't journaled."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol

from pyrula.workflows.engine.run import Run, log
from pyrula.workflows.errors import PyrulaError

__all__ = ["Patience"]

BUSY_WARNING: Final = 5.0
BUSY_LIMIT: Final = 60.0
# A loop that is slow makes few turns; only a task that takes turn after turn is to blame.
BUSY_TURNS: Final = 1_000

OUTSIDE_WARNING: Final = 1.0
OUTSIDE_LIMIT: Final = 600.0
# A lock or queue may be shared with what isn't of the run, a connection pool for instance.
SHARED_LIMIT: Final = 5.0


class Waiting(Protocol):
    """What the tasks of a run wait on."""

    def outside(self) -> str | None:
        """The task that waits on something that isn't the run's own, if any."""

    def shared(self) -> str | None:
        """The task that waits on one of asyncio's locks or queues, if any."""


class Patience:
    """The patience with one run. `look_again` is called later to ask whether it still waits."""

    __slots__ = ("_busy_since", "_busy_turns", "_cursor", "_look_again", "_loop", "_run", "_since", "_timer", "_warned")

    def __init__(self, run: Run, look_again: Callable[[], None]) -> None:
        self._run = run
        self._look_again = look_again
        self._loop = asyncio.get_running_loop()
        self._busy_since: float | None = None
        self._busy_turns = 0
        self._cursor = -1
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def on_settled(self) -> None:
        """The run is settled."""
        self._busy_since = None

    def on_busy(self, busy: asyncio.Handle) -> None:
        """Something is to be delivered, and the run isn't settled."""
        now = self._loop.time()
        if self._busy_since is None:
            self._busy_since, self._busy_turns, self._warned = now, 0, False
        self._busy_turns += 1
        seconds = now - self._busy_since
        if seconds < BUSY_WARNING or self._busy_turns < BUSY_TURNS:
            return
        text = (
            f"run {self._run.run_id} ({self._run.definition.name}) hasn't come to rest for {seconds:.0f} s, so nothing "
            f"could be delivered to it: {_task_of(busy)} takes every turn of the loop (asyncio.sleep(0) in a loop?)"
        )
        if seconds >= BUSY_LIMIT:
            self._run.stop("failed", PyrulaError(text))
        elif not self._warned:
            self._warned = True
            log.warning("%s", text)

    def may_wait(self, cursor: int, waiting: Waiting) -> bool:
        """The body hasn't come to entry `cursor` yet: whether it still may, and isn't taking too long."""
        outside = waiting.outside()
        task = outside or waiting.shared()
        if task is None:
            return False
        now = self._loop.time()
        if cursor != self._cursor:
            self._cursor, self._since, self._warned = cursor, now, False
        seconds = now - self._since
        if seconds >= (OUTSIDE_LIMIT if outside else SHARED_LIMIT):
            return False
        if seconds >= OUTSIDE_WARNING and not self._warned:
            self._warned = True
            log.warning(
                "run %s (%s): its replay waits since %.0f s for %s, a plain await; effects belong in steps",
                self._run.run_id,
                self._run.definition.name,
                seconds,
                task,
            )
        if self._timer is None:
            self._timer = self._loop.call_later(OUTSIDE_WARNING, self._ask, context=Context())
        return True

    def _ask(self) -> None:
        self._timer = None
        if self._run.stopped is None:
            self._look_again()


def _task_of(handle: asyncio.Handle) -> str:
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    return f"task {owner.get_name()}" if isinstance(owner, asyncio.Task) else repr(callback)
