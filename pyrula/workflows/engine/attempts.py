"""Executing a step to its end: attempts, the delays between them, and what is journaled of it.

It is awaited in place by a body of one task, and by a task of its own otherwise. Attempt n+1 starts only when attempt n
is gone. A failed attempt is noted before the delay, so that a record which is delivered again goes on with the next
attempt, after what is left of the delay.
"""

import asyncio
import inspect
import traceback
from contextvars import copy_context
from random import random
from typing import Any, Final

from pyrula.workflows.codec import Codec, dumps, loads
from pyrula.workflows.definition import StepDefinition
from pyrula.workflows.engine.attempt import pause, start, start_async
from pyrula.workflows.engine.exits import TimedOut
from pyrula.workflows.engine.host import RunHost
from pyrula.workflows.engine.run import Run
from pyrula.workflows.errors import SerializationError, StepError
from pyrula.workflows.replay.journal import Entry

__all__ = ["begin", "error_from", "perform"]

_MESSAGE_LIMIT: Final = 2_000
_TRACE_LIMIT: Final = 8_000

_Definition = StepDefinition[Any, Any]

Answer = tuple[str, bytes, Any]
"""An entry's kind and JSON, and the value or exception the body gets."""

_LATER: Final[Answer] = ("later", b"", None)

Begun = tuple[Any, Exception | None]
"""A first attempt: what to await for its value, or what it has failed with."""


def begin(run: Run, definition: _Definition, codec: Codec, args: Any, kwargs: Any) -> Answer:
    """The first attempt of a step of which nothing is known. Its answer, or ("begun", b"", what `perform` goes on with)
    if it hasn't ended yet or has failed."""
    try:
        if definition.is_async:
            ended, value = start_async(run, copy_context(), definition.fn, args, kwargs, definition.timeout)
        else:
            ended, value = start(run, definition, args, kwargs, definition.timeout)
        if not ended:
            return "begun", b"", (value, None)
    except Exception as error:  # noqa: BLE001 - any of them is the step's failure
        return "begun", b"", (None, error)
    try:
        data, decoded = codec.encode(value, definition.title)
    except SerializationError as error:
        return _refused(error)
    return "value", data, decoded


async def perform(
    run: Run,
    op: str,
    definition: _Definition,
    args: Any,
    kwargs: Any,
    in_place: bool = False,
    begun: Begun | None = None,
) -> Answer:
    """Executes the step to its end, its retries included. Raises only what is meant for the run: a cancellation.

    In place, the answer "later" says that its next attempt is so far off that the run shouldn't wait for it here.
    """
    host, codec = run.host, definition.return_codec
    journal, talking = run.journal, run.talking
    assert journal is not None
    number, started = 1, None
    note = journal.note("attempt", op) if journal.notes else None
    if note is not None:
        failed, due, started = loads(note.value or b"[0,0,0]")
        number = failed + 1
        if await _rest(run, op, due, in_place):
            return _LATER
    if started is None and definition.total_timeout is not None:
        started = run.clock.now().timestamp()
    while True:
        waiter = host.durable(run) if begun is None else None
        if waiter is not None:
            await run.acknowledged(waiter)
        seconds, shortened = definition.timeout, False
        failure: Exception
        since = 0.0
        if talking is not None:
            since = run.clock.monotonic()
            talking.event(run, "step_started", op=op, step=definition.name, attempt=number)
        try:
            if started is not None and definition.total_timeout is not None:
                left = started + definition.total_timeout - run.clock.now().timestamp()
                if seconds is None or left < seconds:
                    seconds, shortened = left, True
                    if left <= 0:
                        raise TimedOut(f"the total time of {definition.total_timeout:g} s is used up")
            if begun is None:
                ended, value = start(run, definition, args, kwargs, seconds)
                if not ended:
                    value = await value
            else:
                (value, raised), begun = begun, None
                if raised is not None:
                    raise raised
                value = await value
        except Exception as error:  # noqa: BLE001 - any of them is the step's failure
            failure = error
        else:
            try:
                data, decoded = codec.encode(value, definition.title)
            except SerializationError as error:
                answer = _refused(error)
            else:
                if talking is not None:
                    _tell(run, talking, op, definition, number, since)
                return "value", data, decoded
            if talking is not None:
                _tell(run, talking, op, definition, number, since, str(answer[2]))
            return answer
        now = run.clock.now().timestamp()
        delay = definition.retry.delay_for(failure, number, random())
        last = (shortened and isinstance(failure, TimedOut)) or not _fits(failure, definition, args, kwargs)
        if started is not None and definition.total_timeout is not None:
            last = last or started + definition.total_timeout <= now + delay
        if last or number >= definition.retry.max_attempts or not definition.retry.retryable(failure):
            answer = _failure(definition.name, number, failure)
            if talking is not None:
                _tell(run, talking, op, definition, number, since, answer[2].message)
            return answer
        if run.stopped is not None:
            await run.refuse()
        if _given_up_by_body(run, op):
            raise asyncio.CancelledError
        run.write(Entry("attempt", op, "", "", None, None, dumps([number, now + delay, started])))
        if talking is not None:
            _tell(run, talking, op, definition, number, since, _text(failure), delay)
        if await _rest(run, op, now + delay, in_place):
            return _LATER
        number += 1


async def _rest(run: Run, op: str, due: float, in_place: bool) -> bool:
    """Waits for the next attempt, where whoever wants to know can see it. True if that is better done elsewhere."""
    delay = due - run.clock.now().timestamp()
    run.attend(delay)
    talking = run.talking
    if talking is None or delay <= 0:
        await pause(delay)
        return False
    if in_place:  # where a message can't reach it
        run.straight = False
        return True
    rests = run.remains.rests
    rests[op] = due
    if run.crew is not None:
        run.crew.on_rest()
    try:
        await pause(delay)
    finally:
        del rests[op]
    return False


def _tell(
    run: Run,
    host: RunHost,
    op: str,
    definition: _Definition,
    attempt: int,
    since: float,
    error: str | None = None,
    retry_in: float | None = None,
) -> None:
    """An attempt has ended."""
    seconds = round(run.clock.monotonic() - since, 6)
    if run.stopped is not None:
        return
    if error is None:
        host.event(run, "step_completed", op=op, step=definition.name, attempt=attempt, seconds=seconds)
    else:
        host.event(
            run, "step_failed", op=op, step=definition.name, attempt=attempt, seconds=seconds, error=error,
            retry_in=retry_in,
        )  # fmt: skip


def _fits(failure: Exception, definition: _Definition, args: Any, kwargs: Any) -> bool:
    """Whether the step takes such arguments: if not, no attempt ever succeeds."""
    if not isinstance(failure, TypeError):
        return True
    try:
        inspect.signature(definition.fn).bind(*args, **kwargs)
    except ValueError:
        return True  # it has no signature
    except TypeError:
        return False
    return True


def _given_up_by_body(run: Run, op: str) -> bool:
    """Whether nobody waits for the step any more, although it swallowed its cancellation."""
    crew, machine = run.crew, run.machine
    if crew is None or machine is None or asyncio.current_task() not in crew.executing:
        return False
    return op not in machine.waiting


def _refused(error: SerializationError) -> Answer:
    """The answer for a value that can't be journaled."""
    text = _clean(str(error), _MESSAGE_LIMIT)
    return "error", dumps({"serialization": text}), SerializationError(text)


def error_from(entry: Entry) -> Exception:
    """The exception that an `error` entry stands for."""
    fields = loads(entry.value or b"{}")
    if "serialization" in fields:
        return SerializationError(fields["serialization"])
    return StepError(
        entry.name, fields["attempts"], fields["type"], fields["message"], fields["trace"], fields["timed_out"]
    )


def _failure(name: str, attempts: int, failure: Exception) -> Answer:
    cls = type(failure)
    kind = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    kind, message = _clean(kind, _MESSAGE_LIMIT), _text(failure)
    trace = _clean("".join(traceback.format_exception(failure))[-_TRACE_LIMIT:], _TRACE_LIMIT)
    timed_out = isinstance(failure, TimedOut)
    data = dumps({"type": kind, "message": message, "trace": trace, "attempts": attempts, "timed_out": timed_out})
    return "error", data, StepError(name, attempts, kind, message, trace, timed_out)


def _text(failure: Exception) -> str:
    try:
        text = str(failure)
    except Exception:  # noqa: BLE001 - a message that can't be had is no reason to lose the error
        text = "(its text can't be had)"
    return _clean(text, _MESSAGE_LIMIT)


def _clean(text: str, limit: int) -> str:
    """Cut, and without lone surrogates, which JSON can't hold."""
    return text[:limit].encode("utf-8", "replace").decode()
