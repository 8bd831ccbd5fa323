"""Executing a step: attempts, delays between them, time-outs, and what is journaled of it.

It is awaited in place by a body of one task, and by a task of its own otherwise. It executes in a copy of the body's
context in which no run is set. Attempt n+1 starts only when attempt n is gone, be it a thread or a coroutine that
swallows its cancellation; a result that comes after the time-out is dropped.

A failed attempt is noted before the delay, so that a record which is delivered again goes on with the next attempt,
after what is left of the delay.
"""

import asyncio
import traceback
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from inspect import isawaitable
from random import random
from types import CoroutineType, coroutine
from typing import Any, Final

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import StepDefinition
from pyrula.workflows.engine.remains import wake
from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.engine.threads import call_in_thread
from pyrula.workflows.errors import SerializationError, StepError
from pyrula.workflows.replay.journal import Entry

__all__ = ["error_from", "pause", "perform"]

_MESSAGE_LIMIT: Final = 2_000
_TRACE_LIMIT: Final = 8_000

_Definition = StepDefinition[Any, Any]

Answer = tuple[str, bytes, Any]
"""An entry's kind and JSON, and the value or exception the body gets."""


class _AttemptError(Exception):
    """An attempt's own BaseException: a CancelledError though nobody cancelled it, a SystemExit in a thread."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__qualname__
        super().__init__(str(error) or f"the step raised {self.kind}")


async def perform(run: Run, op: str, definition: _Definition, args: Any, kwargs: Any) -> Answer:
    """Executes the step to its end, its retries included. Raises only what is meant for the run: a cancellation."""
    host, codec = run.host, definition.return_codec
    journal = run.journal
    assert journal is not None
    note = journal.note("attempt", op)
    number, started = 1, None
    if note is not None:
        failed, due, started = loads(note.value or b"[0,0,0]")
        number = failed + 1
        await pause(due - run.clock.now().timestamp())
    if started is None and definition.total_timeout is not None:
        started = run.clock.now().timestamp()
    while True:
        waiter = host.durable(run)
        if waiter is not None:
            await run.acknowledged(waiter)
        seconds, shortened = definition.timeout, False
        failure: Exception
        try:
            if started is not None and definition.total_timeout is not None:
                left = started + definition.total_timeout - run.clock.now().timestamp()
                if seconds is None or left < seconds:
                    seconds, shortened = left, True
                    if left <= 0:
                        raise _TimedOut(f"the total time of {definition.total_timeout:g} s is used up")
            value = await _attempt(run, definition, args, kwargs, seconds)
        except Exception as error:  # noqa: BLE001 - any of them is the step's failure
            failure = error
        else:
            try:
                data, decoded = codec.encode(value, f"step `{definition.name}`")
            except SerializationError as error:
                text = _clean(str(error), _MESSAGE_LIMIT)
                refused = SerializationError(text)
            else:
                return "value", data, decoded
            return "error", dumps({"serialization": text}), refused
        now = run.clock.now().timestamp()
        delay = definition.retry.delay_for(failure, number, random())
        last = shortened and isinstance(failure, _TimedOut)
        if started is not None and definition.total_timeout is not None:
            last = last or started + definition.total_timeout <= now + delay
        if last or number >= definition.retry.max_attempts or not definition.retry.retryable(failure):
            return _failure(definition.name, number, failure)
        if run.stopped is not None:
            await run.refuse()
        if _given_up_by_body(run, op):
            raise asyncio.CancelledError
        run.write(Entry("attempt", op, "", "", None, None, dumps([number, now + delay, started])))
        await pause(delay)
        number += 1


def _given_up_by_body(run: Run, op: str) -> bool:
    """Whether nobody waits for the step any more, although it swallowed its cancellation."""
    crew, machine = run.crew, run.machine
    if crew is None or machine is None or asyncio.current_task() not in crew.executing:
        return False
    return op not in machine.waiting


def error_from(entry: Entry) -> Exception:
    """The exception that an `error` entry stands for."""
    fields = loads(entry.value or b"{}")
    if "serialization" in fields:
        return SerializationError(fields["serialization"])
    return StepError(
        entry.name, fields["attempts"], fields["type"], fields["message"], fields["trace"], fields["timed_out"]
    )


def _failure(name: str, attempts: int, failure: Exception) -> Answer:
    if isinstance(failure, _AttemptError):
        kind = failure.kind
    else:
        cls = type(failure)
        kind = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        text = str(failure)
    except Exception:  # noqa: BLE001 - a message that can't be had is no reason to lose the error
        text = "(its text can't be had)"
    kind, message = _clean(kind, _MESSAGE_LIMIT), _clean(text, _MESSAGE_LIMIT)
    trace = _clean("".join(traceback.format_exception(failure))[-_TRACE_LIMIT:], _TRACE_LIMIT)
    timed_out = isinstance(failure, _TimedOut)
    data = dumps({"type": kind, "message": message, "trace": trace, "attempts": attempts, "timed_out": timed_out})
    return "error", data, StepError(name, attempts, kind, message, trace, timed_out)


def _clean(text: str, limit: int) -> str:
    """Cut, and without lone surrogates, which JSON can't hold."""
    return text[:limit].encode("utf-8", "replace").decode()


class _TimedOut(TimeoutError):
    pass


_TimedOut.__module__, _TimedOut.__qualname__ = "builtins", "TimeoutError"


async def _attempt(
    run: Run, definition: StepDefinition[Any, Any], args: Any, kwargs: Any, seconds: float | None
) -> Any:
    context = copy_context()
    context.run(RUN.set, None)
    if definition.is_async:
        return await _drive(context, context.run(definition.fn, *args, **kwargs), seconds)
    if definition.inline:
        value = context.run(definition.fn, *args, **kwargs)
    else:
        value = await _in_thread(run, lambda: context.run(definition.fn, *args, **kwargs), seconds)
    if isawaitable(value):
        return await _drive(context, value, seconds)
    return value


async def _drive(context: Context, awaitable: Any, seconds: float | None) -> Any:
    """Awaits in `context`, by hand: a step that never suspends costs no timer and no turn of the loop."""
    steps = awaitable if type(awaitable) is CoroutineType else _await(awaitable)
    try:
        yielded = context.run(steps.send, None)
    except StopIteration as stop:
        return stop.value
    except asyncio.CancelledError as error:
        raise _AttemptError(error) from error
    return await _carry(context, steps, yielded, seconds)


async def _await(awaitable: Any) -> Any:
    return await awaitable


@coroutine
def _carry(context: Context, steps: Any, yielded: Any, seconds: float | None) -> Generator[Any, Any, Any]:
    alarm = None if seconds is None else _Alarm(seconds)
    cancelled = False
    try:
        while True:
            try:
                yield yielded
            except BaseException as error:  # noqa: BLE001 - it is passed on to the step
                cancelled = cancelled or isinstance(error, asyncio.CancelledError)
                if alarm is not None:
                    alarm.heard()
                yielded = context.run(steps.throw, error)
            else:
                yielded = context.run(steps.send, None)
    except StopIteration as stop:
        if alarm is not None and alarm.rang:
            raise _too_long(seconds) from None
        return stop.value
    except asyncio.CancelledError as error:
        if alarm is not None and alarm.rang:
            raise _too_long(seconds) from error
        if not cancelled:
            raise _AttemptError(error) from error
        raise
    except Exception as error:
        if alarm is not None and alarm.rang:
            raise _too_long(seconds) from error
        raise
    finally:
        if alarm is not None:
            alarm.timer.cancel()


class _Alarm:
    """Cancels the present task once, after `seconds`, and takes the cancellation back when it is heard."""

    __slots__ = ("_task", "_waiting", "rang", "timer")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self.rang = False
        self._waiting = False
        self.timer = asyncio.get_running_loop().call_later(seconds, self._ring, context=Context())

    def _ring(self) -> None:
        self.rang = self._waiting = True
        self._task.cancel()

    def heard(self) -> None:
        if self._waiting:
            self._waiting = False
            self._task.uncancel()


def _too_long(seconds: float | None) -> _TimedOut:
    return _TimedOut(f"the attempt took longer than {seconds:g} s")


async def _in_thread(run: Run, call: Callable[[], Any], seconds: float | None) -> Any:
    done = call_in_thread(call)
    run.remains.on_thread(done)
    loop = asyncio.get_running_loop()
    limit = None if seconds is None else loop.time() + seconds
    # The future isn't awaited itself: a cancellation would cancel it, and the thread's end could no longer be told.
    waiter = loop.create_future()
    done.add_done_callback(lambda _: wake(waiter), context=Context())
    await waiter
    fine, result = done.result()
    if limit is not None and loop.time() > limit:
        raise _too_long(seconds) from (None if fine else result)
    if fine:
        return result
    if isinstance(result, Exception):
        raise result
    raise _AttemptError(result) from result


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
