"""Prepares an event loop for runs: the settler, the task factory, and an eye on timers that would cancel operations."""

import asyncio
import asyncio.futures
import asyncio.tasks
import sys
from types import CodeType, FrameType
from typing import Any, Final

from pyrula.workflows.engine.crew import Crew, RunTask
from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.engine.settler import Settler, settlers
from pyrula.workflows.errors import NonDeterminismError

__all__ = ["install", "uninstall"]

# Bound methods that cancel a task when its time is up: asyncio's and async_timeout's, anyio's.
_ALARMS: Final = frozenset(("Timeout._on_timeout", "CancelScope._timeout"))


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Prepares a loop for runs. Idempotent; ConfigurationError for a loop that can't show its ready queue.

    A task factory that was set before stays in use for everything outside of runs.
    """
    if loop not in settlers:
        settler = Settler(loop)
        settler.factory = _Factory(loop.get_task_factory())
        loop.set_task_factory(settler.factory)
        loop.call_at = _Timers(loop.call_at)  # type: ignore[assignment, method-assign]
        settlers[loop] = settler


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Undoes `install`, unless somebody else has put their own over it."""
    if settlers.pop(loop, None) is None:
        return
    factory = loop.get_task_factory()
    if isinstance(factory, _Factory):
        loop.set_task_factory(factory.former)
    if isinstance(loop.call_at, _Timers):
        del loop.call_at


class _Factory:
    """Makes the tasks of runs itself."""

    __slots__ = ("former",)

    def __init__(self, former: Any) -> None:
        self.former = former

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        context = options.get("context")
        run = RUN.get() if context is None else context.get(RUN)
        if run is None or type(coro).__name__ == "async_generator_athrow":
            # The latter closes an async generator for the garbage collector, in whatever context that happens to run.
            if self.former is not None:
                task: asyncio.Task[Any] = self.former(loop, coro, **options)
                return task
            return asyncio.Task(coro, loop=loop, **options)
        _refuse_as_completed(sys._getframe(1))  # noqa: SLF001
        options.pop("eager_start", None)
        return Crew.of(run).make_task(coro, **options)


class _Timers:
    """`loop.call_at`, noting the timers in a run that would cancel operations."""

    __slots__ = ("_call_at",)

    def __init__(self, call_at: Any) -> None:
        self._call_at = call_at

    def __call__(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        run = RUN.get() if context is None else context.get(RUN)
        if run is None:
            handle: asyncio.TimerHandle = self._call_at(when, callback, *args, context=context)
            return handle
        frame = sys._getframe(1)  # noqa: SLF001
        alarm = getattr(callback, "__qualname__", "") in _ALARMS or _is_timed_wait(run, frame)
        handle = self._call_at(when, callback, *args, context=context)
        if alarm:
            run.on_alarm(handle)
        elif callback is not _WAKE_SLEEPER:
            run.on_timer()
        return handle


_WAKE_SLEEPER: Final = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]  # noqa: SLF001


def _codes(*functions: Any) -> frozenset[CodeType]:
    """The code of functions and of what is defined inside them."""
    found: set[CodeType] = set()
    waiting = [function.__code__ for function in functions if hasattr(function, "__code__")]
    while waiting:
        code = waiting.pop()
        found.add(code)
        waiting.extend(const for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(found)


_AS_COMPLETED: Final = _codes(
    asyncio.as_completed, getattr(getattr(asyncio.tasks, "_AsCompletedIterator", None), "__init__", None)
)
_WAIT: Final = _codes(asyncio.tasks._wait)  # type: ignore[attr-defined]  # noqa: SLF001
_WAIT_FOR: Final = _codes(asyncio.wait_for)
_TASKS, _BASE_EVENTS = vars(asyncio.tasks), vars(asyncio.base_events)


def _asyncio_frame(frame: FrameType | None, codes: frozenset[CodeType]) -> FrameType | None:
    """The frame of one of these functions among asyncio's own at the top of the stack."""
    while frame is not None and (frame.f_globals is _TASKS or frame.f_globals is _BASE_EVENTS):
        if frame.f_code in codes:
            return frame
        frame = frame.f_back
    return None


def _refuse_as_completed(frame: FrameType) -> None:
    found = _asyncio_frame(frame, _AS_COMPLETED)
    if found is None:
        return
    while found.f_back is not None and found.f_back.f_code in _AS_COMPLETED:
        found = found.f_back
    for one in found.f_locals.get("fs") or found.f_locals.get("aws") or ():
        if asyncio.iscoroutine(one):
            one.close()
    raise NonDeterminismError(
        "asyncio.as_completed makes its tasks in the order of a set of coroutines, which differs between processes: "
        "a replay would swap their values; use ctx.as_completed, or make tasks first"
    )


def _is_timed_wait(run: Run, frame: FrameType) -> bool:
    """Whether the timer is that of asyncio.wait_for. asyncio.wait with a time-out is refused for tasks of the run."""
    found = _asyncio_frame(frame, _WAIT | _WAIT_FOR | _AS_COMPLETED)
    if found is None:
        return False
    if found.f_code in _WAIT_FOR:
        return True
    waited = found.f_locals.get("fs") or found.f_locals.get("todo") or ()
    if any(isinstance(one, RunTask) and one.crew.run is run for one in waited):
        name = "wait" if found.f_code in _WAIT else "as_completed"
        raise NonDeterminismError(
            f"asyncio.{name} with a time-out on tasks of the run: its end depends on a clock, which a replay can't "
            f"repeat; use ctx.{name}(..., timeout=), whose end is journaled"
        )
    return False
