"""One attempt of a step: a coroutine awaited by hand, or a thread that is waited for.

It executes in a copy of the body's context in which no run is set. An attempt is gone when its coroutine has ended (one
that swallows its cancellation goes on), or its thread has. What it gives after its time is up is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from inspect import isawaitable
from types import coroutine
from typing import Any, Final

from pyrula.workflows.definition import StepDefinition
from pyrula.workflows.engine.exits import EXITS, OwnExit, TimedOut, is_interrupt
from pyrula.workflows.engine.invoke import as_coroutine, invoke_step
from pyrula.workflows.engine.remains import wake
from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.engine.threads import Ended, call_in_thread

__all__ = ["OwnExit", "pause", "start", "start_async"]


log = logging.getLogger("pyrula.run")

_Definition = StepDefinition[Any, Any]


def start(run: Run, definition: _Definition, args: Any, kwargs: Any, seconds: float | None) -> tuple[bool, Any]:
    """Starts an attempt: (True, its value) if it never suspended, else (False, what to await for the value).

    Either way what the attempt raised is raised, and TimedOut after `seconds`.
    """
    variables = copy_context()
    if definition.is_async:
        return start_async(run, variables, definition.fn, args, kwargs, seconds)
    return False, _of_sync(run, definition, variables, args, kwargs, seconds)


def start_async(
    run: Run, variables: Context, fn: Any, args: Any, kwargs: Any, seconds: float | None
) -> tuple[bool, Any]:
    """`start()` of a function that gives an awaitable, in the attempt's own context."""
    result: list[Any] = []
    steps = invoke_step(fn, args, kwargs, result)
    try:
        yielded = variables.run(next, steps, _ENDED)
    except _OWN_EXITS as error:
        if is_interrupt(error):
            raise
        raise OwnExit(error) from error
    if yielded is _ENDED:
        return True, result[0]
    return False, _carry(run, variables, steps, yielded, seconds, result)


_ENDED: Final = object()
_OWN_EXITS: Final = (asyncio.CancelledError, *EXITS)


async def _of_sync(
    run: Run, definition: _Definition, variables: Context, args: Any, kwargs: Any, seconds: float | None
) -> Any:
    variables.run(RUN.set, None)
    if definition.inline:
        try:
            value = variables.run(definition.fn, *args, **kwargs)
        except EXITS as error:
            if is_interrupt(error):
                raise
            raise OwnExit(error) from error
    else:
        value = await _in_thread(run, definition, lambda: variables.run(definition.fn, *args, **kwargs), seconds)
    if not isawaitable(value):
        return value
    # A function that isn't async but gives an awaitable.
    ended, rest = start_async(run, variables, as_coroutine, (value,), {}, seconds)
    return rest if ended else await rest


async def _in_thread(run: Run, definition: _Definition, call: Callable[[], Any], seconds: float | None) -> Any:
    done = call_in_thread(call)
    if seconds is not None:
        _warn_when_late(run, definition, done, seconds)
    run.remains.on_thread(done)
    # The future isn't awaited itself: a cancellation would cancel it, and the thread's end could no longer be told.
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.add_done_callback(lambda _: wake(waiter), context=Context())
    await waiter
    fine, result, took = done.result()
    if seconds is not None and took > seconds:
        raise _too_long(seconds) from (None if fine else result)
    if fine:
        return result
    if isinstance(result, Exception):
        raise result
    raise OwnExit(result) from result


def _warn_when_late(run: Run, definition: _Definition, done: "asyncio.Future[Ended]", seconds: float) -> None:
    option = "timeout" if seconds == definition.timeout else "total_timeout"

    def warn() -> None:
        log.warning(
            "step `%s` of run %s is past its %s=%g s and can't be stopped: its thread must end by itself; give what it "
            "waits for a time-out of its own, or make it an `async def`",
            definition.name,
            run.run_id,
            option,
            seconds if option == "timeout" else definition.total_timeout,
        )

    timer = asyncio.get_running_loop().call_later(seconds, warn, context=Context())
    done.add_done_callback(lambda _: timer.cancel(), context=Context())


@coroutine
def _carry(
    run: Run, variables: Context, steps: Any, yielded: Any, seconds: float | None, result: list[Any]
) -> Generator[Any, Any, Any]:
    """Awaits by hand, in the attempt's own context."""
    alarm = None if seconds is None else _Alarm(run, seconds)
    task = asyncio.current_task()
    assert task is not None
    # The body may have cancelled its task before it asked for the step; then it is to hear of it.
    pending = run.crew is None and task.cancelling() > (0 if run.drive is None else run.drive.known)
    cancelled = False
    run.attempting = True
    try:
        while True:
            standing = task.cancelling()
            try:
                yield yielded
            except BaseException as error:  # noqa: BLE001 - it is passed on to the step
                if isinstance(error, GeneratorExit):
                    cancelled = True
                elif isinstance(error, asyncio.CancelledError):
                    # Else what the attempt awaits was cancelled, by others or by itself.
                    cancelled = pending or run.stopped is not None or task.cancelling() > standing
                    pending = False
                if alarm is not None:
                    alarm.heard()
                standing = task.cancelling()
                yielded = variables.run(steps.throw, error)
            else:
                standing = task.cancelling()
                yielded = variables.run(steps.send, None)
    except StopIteration:
        if alarm is not None and alarm.rang:
            raise _too_long(seconds) from None
        return result[0]
    except asyncio.CancelledError as error:
        if alarm is not None and alarm.rang:
            raise _too_long(seconds) from error
        if not cancelled:
            raise OwnExit(error) from error
        if run.crew is None and run.drive is not None:
            run.drive.give_way(standing)
        raise
    except EXITS as error:
        if is_interrupt(error) or (cancelled and isinstance(error, GeneratorExit)):
            raise
        raise OwnExit(error) from error
    except Exception as error:
        if alarm is not None and alarm.rang:
            raise _too_long(seconds) from error
        raise
    finally:
        run.attempting = False
        if alarm is not None:
            alarm.timer.cancel()


class _Alarm:
    """Cancels the present task once, after `seconds`, and takes the cancellation back when it is heard."""

    __slots__ = ("_run", "_task", "_waiting", "rang", "timer")

    def __init__(self, run: Run, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._run = run
        self._task = task
        self.rang = False
        self._waiting = False
        self.timer = asyncio.get_running_loop().call_later(seconds, self._ring, context=Context())

    def _ring(self) -> None:
        self.rang = self._waiting = True
        self._count(1)
        self._task.cancel()

    def heard(self) -> None:
        if self._waiting:
            self._waiting = False
            self._count(-1)
            self._task.uncancel()

    def _count(self, more: int) -> None:
        drive = self._run.drive
        if drive is not None and drive.task is self._task:
            drive.own += more


def _too_long(seconds: float | None) -> TimedOut:
    return TimedOut(f"the attempt took longer than {seconds:g} s")


async def pause(seconds: float) -> None:
    """Sleeps outside of any run's context."""
    if seconds <= 0:
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    timer = loop.call_later(seconds, wake, waiter, context=Context())
    try:
        await waiter
    finally:
        timer.cancel()
