"""What the tasks of a run wait on: operations and each other, asyncio's locks and queues, or something outside.

It is told from the future a task waits on, and from the innermost coroutine of its chain. What isn't known is outside.
"""

import asyncio
import asyncio.locks
import asyncio.queues
import asyncio.taskgroups
import asyncio.tasks
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from pyrula.workflows.engine.operations import Promise
from pyrula.workflows.engine.places import Place
from pyrula.workflows.engine.run import Run

__all__ = ["Waits"]

_SHARED_MODULES: Final = tuple(vars(module) for module in (asyncio.locks, asyncio.queues, asyncio.taskgroups))
_WAIT: Final = getattr(asyncio.tasks._wait, "__code__", None)  # type: ignore[attr-defined]  # noqa: SLF001
# What a body waits on for its own tasks and update handlers. Locks and semaphores are often shared with other runs.
_OF_THE_RUN: Final = frozenset(
    function.__code__
    for function in (asyncio.Event.wait, asyncio.Condition.wait, asyncio.Queue.get, asyncio.Queue.join)
)
_GATHERING: Final = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]  # noqa: SLF001


class Kind(Enum):
    """Of a wait."""

    OWN = 1
    SHARED = 2
    OUTSIDE = 3


class Waits:
    """Looks at those tasks of a run that aren't at an operation. What a task waits on is judged once."""

    __slots__ = ("_elsewhere", "_judged", "_run")

    def __init__(self, run: Run, elsewhere: dict[int, Place]) -> None:
        self._run = run
        self._elsewhere = elsewhere
        self._judged: dict[int, tuple[Any, Kind]] = {}

    def outside(self) -> str | None:
        """The name of a task that waits on something that isn't the run's own."""
        return self._first(Kind.OUTSIDE)

    def shared(self) -> str | None:
        """The name of a task that waits on one of asyncio's locks or queues."""
        return self._first(Kind.SHARED)

    def hold(self) -> str | None:
        """The name of a task that keeps the run in memory, since what it waits for may come from outside of the run.

        An event, a condition or a queue that the workflow's own code waits on is taken for the run's own.
        """
        for place in self._elsewhere.values():
            task = place.task
            if task is None or task.done():
                continue
            waiter = task._fut_waiter  # type: ignore[attr-defined]  # noqa: SLF001
            if self._judge(waiter, place.coro) is not Kind.OWN and not self._private(place.coro):
                return task.get_name()
        return None

    def _private(self, coro: Any) -> bool:
        """Whether it waits at the end of a TaskGroup for tasks of the run, or for something that the run will do."""
        frames = [frame for inner in _chain(coro) if (frame := getattr(inner, "cr_frame", None)) is not None]
        if not frames:
            return False
        if frames[-1].f_globals is vars(asyncio.taskgroups):
            return all(self._own(task) for task in getattr(frames[-1].f_locals.get("self"), "_tasks", ()))
        asking = [frame for frame in frames if all(frame.f_globals is not module for module in _SHARED_MODULES)]
        own = getattr(self._run.definition.fn, "__globals__", None)
        return frames[-1].f_code in _OF_THE_RUN and bool(asking) and asking[-1].f_globals is own

    def _first(self, kind: Kind) -> str | None:
        for serial, place in self._elsewhere.items():
            task = place.task
            if task is None or task.done():
                continue
            waiter = task._fut_waiter  # type: ignore[attr-defined]  # noqa: SLF001
            known = self._judged.get(serial)
            if known is None or known[0] is not waiter:
                self._judged[serial] = known = (waiter, self._judge(waiter, place.coro))
            if known[1] is kind:
                return task.get_name()
        return None

    def _judge(self, waiter: Any, coro: Any) -> Kind:
        if waiter is None or self._own(waiter):
            return Kind.OWN
        inner = _innermost(coro)
        frame = getattr(inner, "cr_frame", None)
        if frame is None:
            return Kind.OUTSIDE
        if frame.f_code is _WAIT:
            return Kind.OWN if all(self._own(one) for one in frame.f_locals.get("fs", ())) else Kind.OUTSIDE
        if any(frame.f_globals is module for module in _SHARED_MODULES):
            return Kind.SHARED
        return Kind.OUTSIDE

    def _own(self, waiter: Any) -> bool:
        """An operation, a task of the run, a gather of those, or a shield around one."""
        if isinstance(waiter, Promise):
            return True
        crew = getattr(waiter, "crew", None)
        if crew is not None:
            return crew is self._run.crew
        if isinstance(waiter, _GATHERING):
            return all(self._own(child) for child in waiter._children)  # noqa: SLF001
        inner = _shielded(waiter)
        return inner is not None and self._own(inner)


def _innermost(coro: Any) -> Any:
    for inner in _chain(coro):
        coro = inner
    return coro


def _chain(coro: Any) -> Iterator[Any]:
    """The coroutine, the one it waits for, and so on."""
    while hasattr(coro, "cr_await") or hasattr(coro, "gi_yieldfrom"):
        yield coro
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


def _shielded(waiter: Any) -> Any:
    """What asyncio.shield's outer future stands for."""
    for callback, _ in getattr(waiter, "_callbacks", None) or ():
        if getattr(callback, "__qualname__", "") == "shield.<locals>._outer_done_callback":
            return next(
                (cell.cell_contents for cell in callback.__closure__ if asyncio.isfuture(cell.cell_contents)), None
            )
    return None
