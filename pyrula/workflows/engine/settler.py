"""Finds out when the runs of one loop are settled: one look through the ready queue a turn, for all that want to know.

A run is settled when no handle in the queue carries its context. Only then may something be delivered to it. This is
the one place that knows of the queue, a private part of asyncio; a loop without it is refused by `install`.
"""

import asyncio
from collections import deque
from contextvars import Context
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.errors import ConfigurationError

__all__ = ["Settler", "settler_of", "settlers"]


class Watched(Protocol):
    """Who wants to know."""

    run: Run

    def on_settled(self) -> bool:
        """The run is settled. True to be asked again in the next turn."""

    def on_busy(self, busy: asyncio.Handle) -> None:
        """The run isn't settled, because of this handle among others."""


class Settler:
    """Call `want` to be told once when settled. `context` is the engine's own; `factory` makes the loop's tasks."""

    __slots__ = ("__weakref__", "_loop", "_ready", "_scheduled", "_wanted", "context", "factory")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        ready = getattr(loop, "_ready", None)
        if not isinstance(ready, deque):
            raise ConfigurationError(
                f"{type(loop).__module__}.{type(loop).__qualname__} can't run workflows: use asyncio's own event loop "
                "(uvloop isn't supported)"
            )
        self._loop = loop
        self._ready: deque[asyncio.Handle] = ready
        self._wanted: dict[Watched, None] = {}
        self._scheduled = False
        self.context = Context()
        self.factory: Any = None

    def want(self, watched: Watched) -> None:
        """Ask `watched` when its run is settled, from the next turn on."""
        self._wanted[watched] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn, context=self.context)

    def _turn(self) -> None:
        self._scheduled = False
        wanted, self._wanted = self._wanted, {}
        busy: dict[Any, asyncio.Handle] = {}
        for handle in tuple(self._ready):  # threads add to the queue meanwhile
            if not handle._cancelled:  # noqa: SLF001
                run = handle._context.get(RUN)  # type: ignore[attr-defined]  # noqa: SLF001
                if run is not None:
                    busy[run] = handle
        for watched in wanted:
            because = busy.get(watched.run)
            if because is not None:
                watched.on_busy(because)
                self.want(watched)
            elif watched.on_settled():
                self.want(watched)


settlers: "WeakKeyDictionary[asyncio.AbstractEventLoop, Settler]" = WeakKeyDictionary()
"""The loops that were prepared."""


def settler_of(loop: asyncio.AbstractEventLoop) -> Settler:
    """The settler of a loop that was prepared; ConfigurationError if it wasn't."""
    try:
        return settlers[loop]
    except KeyError:
        raise ConfigurationError(
            "this event loop isn't prepared for workflows: call pyrula.workflows.execution.install(loop) first"
        ) from None
