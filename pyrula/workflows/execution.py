"""Drives one body against one journal.

The straight path: the body is awaited in the caller's own task, by hand, in a context of its own in which `RUN` is set;
the caller's context stays as it was. A body that never suspends costs no turn of the loop.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextvars import Context as Variables
from contextvars import copy_context
from copy import copy
from typing import Any

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.context import Context
from pyrula.workflows.engine.drive import Drive
from pyrula.workflows.engine.run import RUN, Host, Outcome, Output, Run
from pyrula.workflows.errors import ConfigurationError, NonDeterminismError, RunCancelled, SerializationError, StepError
from pyrula.workflows.replay.journal import Entry, Journal

__all__ = ["Execution", "Host", "Outcome", "Output", "install", "uninstall"]


class Execution(Run):
    """One run in memory: `outcome = await Execution(definition, run_id, host, args, clock=clock).run()`.

    `origin` and `flush` are the host's own and never read here. After `run()`, `outputs` has what was sent, and
    `leftovers` what could not be ended with it: threads, and tasks that resist. None of them acts for the run again.
    """

    __slots__ = ()

    async def run(self) -> Outcome:
        """Runs the body to its end. Raises no ordinary exception."""
        if self.stopped is not None:
            return self._stopped(self.error)
        variables = copy_context()
        variables.run(RUN.set, self)
        try:
            if self.kwargs is None:
                body = self.definition.fn(Context(self), *self.args)
            else:
                body = self.definition.fn(Context(self), *self.args, **self.kwargs)
            yielded = variables.run(body.send, None)
        except StopIteration as stop:
            return self._returned(stop.value)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the body raised is its outcome
            return self._raised(error)
        return await self._suspended(body, variables, yielded)

    async def _suspended(self, body: Coroutine[Any, Any, Any], variables: Variables, yielded: Any) -> Outcome:
        if self.on_suspend is not None:
            self.on_suspend()
        self.drive = drive = Drive(self, body, variables)
        try:
            value = await drive.carry(yielded)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and drive.was_cancelled():
                self.stop("cut")
                raise
            outcome = self._raised(error)
        else:
            outcome = self._returned(value)
        finally:
            self.drive = None
            self.leftovers = self.still_alive()
        return outcome

    def cut(self) -> None:
        """Drain, or the lease is lost: `run()` then returns "cut" promptly, whatever the body does."""
        if self.stop("cut") and self.drive is not None:
            self.drive.cut()

    def retry(self) -> "Execution":
        """After "failed": the next round, an object of the same class with what its subclass added.

        If the failure came from a step, the journal is cut back to before that step's error, else it is kept whole.
        """
        again = copy(self)
        again.outputs = None
        again.leftovers = ()
        again._reset()  # noqa: SLF001 - it is of this class
        journal = self.journal
        if journal is not None and self.error is not None:
            dropped = _rows_to_drop(journal, self.error)
            for index in sorted(dropped, reverse=True):  # a part of the deletions leaves a journal that replays
                self.host.append(again, index, None)
            journal = journal.without(dropped)
        again.attempt = self.attempt + 1
        again.journal = Journal() if journal is None else journal
        again.write(Entry("attempt", "", "", "", None, None, dumps(again.attempt)))
        again.journal = again.journal.without(set())
        return again

    def _returned(self, value: Any) -> Outcome:
        if self.stopped is not None:
            return self._stopped(self.error)
        machine = self.machine
        if machine is not None and machine.left:
            return self._paused(machine.returned_early())
        if machine is None and self.journal is not None and self.journal.recorded:
            return self._paused(self.begin().returned_early())
        self.stopped = "completed"
        return Outcome("completed", value)

    def _raised(self, error: BaseException) -> Outcome:
        if self.stopped is not None:
            return self._stopped(self.error)
        if isinstance(error, NonDeterminismError):
            return self._paused(error)
        machine = self.machine or (self.begin() if self.journal is not None else None)
        if machine is not None and machine.left:
            early = machine.returned_early()
            early.__cause__ = error
            return self._paused(early)
        if isinstance(error, RunCancelled):
            self.stop("cancelled", error)
            return Outcome("cancelled")
        self.stop("failed", error)
        return Outcome("failed", None, error)

    def _paused(self, error: NonDeterminismError) -> Outcome:
        self.stop("paused", error)
        return Outcome("paused", None, error)

    def _stopped(self, error: BaseException | None) -> Outcome:
        status = self.stopped
        assert status is not None
        return Outcome(status, None, error if status in ("failed", "paused") else None)


def _rows_to_drop(journal: Journal, failure: BaseException) -> set[int]:
    """From the entry of the step error that made the run fail on, and what was noted of that step before."""
    rows = journal.entries()
    for error in _chain(failure):
        if not isinstance(error, (StepError, SerializationError)):
            continue
        for index, entry in reversed(rows):
            if entry.kind == "error" and entry.opkind == "step" and _same(error, entry):
                return {at for at, row in rows if at >= index or (row.kind == "attempt" and row.op == entry.op)}
    return set()


def _same(error: StepError | SerializationError, entry: Entry) -> bool:
    fields = loads(entry.value or b"{}")
    if isinstance(error, SerializationError):
        return bool(fields.get("serialization") == str(error))
    return bool(
        entry.name == error.step
        and fields.get("type") == error.error_type
        and fields.get("message") == error.message
        and fields.get("trace") == error.trace
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or beside, and the members of groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        waiting.extend((one.__cause__, one.__context__))


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Prepares a loop for runs. Idempotent; ConfigurationError for a loop that can't show its ready queue."""
    if not isinstance(getattr(loop, "_ready", None), deque):
        raise ConfigurationError(
            f"{type(loop).__module__}.{type(loop).__qualname__} can't run workflows: use asyncio's own event loop "
            "(uvloop isn't supported)"
        )


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Undoes `install`."""
