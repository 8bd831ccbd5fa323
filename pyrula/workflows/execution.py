"""Drives one body against one journal.

The straight path: the body is awaited in the caller's own task, by hand, in a context of its own in which `RUN` is set;
the caller's context stays as it was. A body that never suspends costs no turn of the loop.
"""

import asyncio
from collections.abc import Iterator
from contextvars import Context as Variables
from contextvars import copy_context
from copy import copy
from typing import Any, Final
from weakref import finalize

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.context import Context
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.crew import Crew
from pyrula.workflows.engine.drive import Drive
from pyrula.workflows.engine.host import COMPLETED, Host, Outcome, Output
from pyrula.workflows.engine.install import install, uninstall
from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.errors import NonDeterminismError, RunCancelled, SerializationError, StepError
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
        return self.start() or await self.finish()

    def start(self) -> Outcome | None:
        """Runs the body until it suspends. Its outcome if it ended before that, else `finish()` has to be awaited."""
        if self.stopped is not None:
            return self._stopped()
        journal = self.journal
        # A journal with a head is of a run that had several tasks: only settled points tell where its entries belong.
        straight = id(self.definition) not in _making_tasks and (journal is None or ("head", "") not in journal.notes)
        variables = copy_context()
        if not straight:
            variables.run(RUN.set, self)  # before the body begins: its first turn is the run's already
            self.unfinished = self._with_crew(variables)
            return None
        self.body = body = _call(self)
        steps = body.__await__()
        try:
            yielded = variables.run(next, steps, _ENDED)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the body raised is its outcome
            outcome = self._raised(error)
        else:
            if yielded is not _ENDED:
                self.unfinished = self._suspended(steps, variables, yielded)
                return None
            if self.journal is None and self.stopped is None and self.crew is None:
                self.stopped = "completed"
                value = self._result
                return COMPLETED if value is None else Outcome("completed", value)
            outcome = self._returned()
        if self.crew is None:
            return outcome
        self.unfinished = self._crew_ends(outcome)
        return None

    async def finish(self) -> Outcome:
        """The rest of a run that `start()` gave no outcome of, in the same task."""
        rest, self.unfinished = self.unfinished, None
        assert rest is not None
        return await rest

    async def _crew_ends(self, outcome: Outcome) -> Outcome:
        await self._crew_gone()
        return outcome

    async def _suspended(self, steps: Any, variables: Variables, yielded: Any) -> Outcome:
        if self.on_suspend is not None:
            self.on_suspend()
        drive = Drive(self, steps, variables)
        self.drive = drive
        raised: BaseException | None = None
        try:
            await drive.carry(yielded)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the body raised is its outcome
            raised = error
        self.drive = None
        cancelled = drive.was_cancelled(raised)
        if cancelled:
            self.stop("cut")
        outcome = self._returned() if raised is None else self._raised(raised)
        self.leftovers = self.still_alive()
        if drive.own:
            await drive.absorb()
        if self.crew is not None:
            await self._crew_gone()
        if cancelled:
            raise raised if isinstance(raised, asyncio.CancelledError) else asyncio.CancelledError
        return outcome

    async def _with_crew(self, variables: Variables) -> Outcome:
        """The body as a task of its own from the start."""
        Crew(self).start(self._as_root(), variables)
        if self.on_suspend is not None:
            self.on_suspend()
        await self._crew_gone()
        return self._stopped()

    async def _as_root(self) -> None:
        # The run is over in the very turn in which its body ends: nothing is delivered, nothing asked for after it.
        try:
            await _call(self)
            self._returned()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the body raised is its outcome
            self._raised(error)

    async def _crew_gone(self) -> None:
        """Until the run's tasks have ended or been left behind. A cancellation cuts the run and is raised after it."""
        assert self.crew is not None
        teardown, cancelled = self.crew.teardown, None
        while not teardown.gone:
            try:
                await teardown.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop("cut")
        self.leftovers = self.still_alive()
        _remember(self.definition)
        if cancelled is not None:
            raise cancelled

    def cut(self) -> None:
        """Drain, or the lease is lost: `run()` then returns "cut" promptly, whatever the body does."""
        self.stop("cut")

    def retry(self) -> "Execution":
        """After "failed": the next round, an object of the same class with what its subclass added.

        If the failure came from a step, the journal is cut back to before that step's error, else it is kept whole.
        """
        again = copy(self)
        again.reset()
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

    def _returned(self) -> Outcome:
        if self.stopped is None:
            machine = self.machine
            if machine is None and self.journal is not None and self.journal.recorded:
                machine = self.begin()
            if machine is not None and machine.left:
                self.stop("paused", machine.returned_early())
            else:
                self.stop("completed", self._result)
        return self._stopped()

    def _raised(self, error: BaseException) -> Outcome:
        if self.stopped is None:
            machine = self.machine or (self.begin() if self.journal is not None else None)
            refused = _first(error, NonDeterminismError)
            if refused is not None:
                self.stop("paused", refused)
            elif machine is not None and machine.left:
                early = machine.returned_early()
                early.__cause__ = error
                self.stop("paused", early)
            elif _first(error, RunCancelled) is not None:
                self.stop("cancelled", error)
            else:
                self.stop("failed", error)
        return self._stopped()

    def _stopped(self) -> Outcome:
        status = self.stopped
        assert status is not None
        if status == "completed":
            return Outcome(status, self._result)
        return Outcome(status, None, self.error if status in ("failed", "paused") else None)


_ENDED: Final = object()


async def _call(run: Execution) -> None:
    """The body, in the run's own context."""
    RUN.set(run)
    if run.kwargs is None:
        value = await run.definition.fn(Context(run), *run.args)
    else:
        value = await run.definition.fn(Context(run), *run.args, **run.kwargs)
    if run.stopped is None:
        run._result = value  # noqa: SLF001 - it is of this module's class


_making_tasks: set[int] = set()


def _remember(definition: WorkflowDefinition[Any, Any]) -> None:
    """Runs of it get a task from the start from now on."""
    if id(definition) not in _making_tasks:
        _making_tasks.add(id(definition))
        finalize(definition, _making_tasks.discard, id(definition))


def _first(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error if it is of that kind, or the first such member of a group."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := _first(one, kind)) is not None), None)
    return None


def _rows_to_drop(journal: Journal, failure: BaseException) -> set[int]:
    """From the entry of the step error that made the run fail on. What waited then gets new attempts and time-outs."""
    rows = journal.entries()
    end = _end_of_kept(rows, failure)
    delivered = {entry.op for index, entry in rows if index < end and entry.clock is not None}
    dropped = set()
    for index, entry in rows:
        fresh = entry.kind == "attempt" or (entry.kind == "deadline" and entry.opkind == "timeout")
        if index >= end or (fresh and entry.op and entry.op not in delivered):
            dropped.add(index)
    return dropped


def _end_of_kept(rows: list[tuple[int, Entry]], failure: BaseException) -> int:
    for error in _chain(failure):
        if isinstance(error, (StepError, SerializationError)):
            for index, entry in reversed(rows):
                if entry.kind == "error" and entry.opkind == "step" and _same(error, entry):
                    return index
    return rows[-1][0] + 1 if rows else 0


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
