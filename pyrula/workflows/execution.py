"""Drives one body against one journal.

The straight path: the body is awaited in the caller's own task, by hand, in a context of its own in which `RUN` is set;
the caller's context stays as it was. A body that never suspends costs no turn of the loop.
"""

import asyncio
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any
from weakref import finalize

from pyrula.workflows.context import Context
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.attended import Attended, LetGo
from pyrula.workflows.engine.crew import Crew
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.engine.drive import ENDED, Drive
from pyrula.workflows.engine.exits import EXITS, OwnExit, is_interrupt
from pyrula.workflows.engine.host import (
    COMPLETED,
    UNTIL_DURABLE,
    ChildRequest,
    ContinueAsNew,
    Continued,
    Host,
    Outcome,
    Output,
    RunHost,
)
from pyrula.workflows.engine.install import install, uninstall
from pyrula.workflows.engine.invoke import invoke_body
from pyrula.workflows.engine.parts import DriveLike
from pyrula.workflows.engine.retry import first, without_end
from pyrula.workflows.engine.run import RUN
from pyrula.workflows.errors import ConfigurationError, NonDeterminismError, RunCancelled

__all__ = [
    "COMPLETED",
    "UNTIL_DURABLE",
    "ChildRequest",
    "ContinueAsNew",
    "Drive",
    "Execution",
    "Host",
    "LetGo",
    "Outcome",
    "Output",
    "RunHost",
    "install",
    "makes_tasks",
    "uninstall",
    "without_end",
]


class Execution(Attended):
    """One run in memory: `outcome = await Execution(definition, run_id, host, args, clock=clock).run()`.

    `origin` and `flush` are the host's own and never read here. After `run()`, `outputs` has what was sent, and
    `leftovers` what could not be ended with it: threads, and tasks that resist. None of them acts for the run again.
    """

    __slots__ = ()

    async def run(self) -> Outcome:
        """Runs the body to its end. Raises no ordinary exception."""
        return self.start() or await self.finish()

    def start(self, drive: Drive | None = None) -> Outcome | None:
        """Runs the body until it suspends. Its outcome if it ended before that, else `finish()` has to be awaited in
        the same task, whose `drive` may be given.

        While the body waits UNTIL_DURABLE, a host that made the run `resumable` may call `resume()` instead.
        """
        if self.stopped is not None:
            return self._stopped()
        journal = self.journal
        # A journal with a head is of a run that had several tasks: only settled points tell where its entries belong.
        straight = not makes_tasks(self.definition) and (journal is None or ("head", "") not in journal.notes)
        if journal is not None and journal.keeps_messages:
            self.desk = self.desk or Desk()
            self.desk.restore(journal)
        if self.desk is not None and self.desk.urgent:
            straight = False
        if not straight:
            variables = copy_context()
            variables.run(RUN.set, self)  # before the body begins: its first turn is the run's already
            self.unfinished = self._with_crew(variables)
            return None
        return self.start_straight(Context(self), drive)

    def start_straight(self, context: Context, drive: Drive | None) -> Outcome | None:
        """`start()` of a run of which nothing is known yet: no journal, no message, and not one that `makes_tasks`.

        `context` is the run's own, `Context(run)`. When the answer is COMPLETED, the body has asked for nothing
        (`machine`) and armed no timer (`alarms`), and nobody has kept run or context, then these may be another run's:
        its host sets what is another's, and `stopped` and `straight` back, and starts it.
        """
        variables = copy_context()
        self.body = body = invoke_body(self, context)
        try:
            yielded = variables.run(next, body, ENDED)
        except BaseException as error:
            if is_interrupt(error):
                raise
            outcome = self._raised(error)
        else:
            if yielded is not ENDED:
                self.drive = drive = drive or Drive()
                drive.take(self, variables, yielded)
                if self.desk is not None:
                    self.look()
                return None
            outcome = self._returned()
        if self.crew is None:
            return outcome
        self.unfinished = self._crew_ends(outcome)
        return None

    def resume(self, error: Exception | None = None) -> Outcome | None:
        """Goes on with a body that waits for its rows: they are durable, or will never be, for the reason given.

        The task that the run was started in has to be the loop's present one. The answer is that of `start()`.
        """
        drive = self.drive
        assert drive is not None
        raised: BaseException | None = None
        try:
            yielded = drive.variables.run(next, self.body, ENDED) if error is None else drive.throw(error)
            drive.yielded = yielded
            if drive.task.cancelling():
                drive.count_own()
            if yielded is not ENDED:
                return None
        except BaseException as its_own:
            drive.yielded = ENDED
            if is_interrupt(its_own):
                raise
            raised = its_own
        if self.crew is not None:
            self.unfinished = self._ended(drive, raised)
            return None
        self.drive = drive.variables = None
        if self._remains is not None:
            self.leftovers = self._remains.alive()
        return self._returned() if raised is None else self._raised(raised)

    async def finish(self, cancelled: asyncio.CancelledError | None = None) -> Outcome:
        """The rest of a run that `start()` or `resume()` gave no outcome of, in the task it was started in.

        `cancelled` says that this task was cancelled before it came to wait for the run.
        """
        self.resumable = False
        rest, self.unfinished = self.unfinished, None
        if rest is not None:
            if cancelled is not None:
                self.stop("cut")
            return await rest
        drive = self.drive
        assert drive is not None
        raised: BaseException | None = None
        try:
            await drive.carry(cancelled)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raised = error
        return await self._ended(drive, raised)

    async def _crew_ends(self, outcome: Outcome) -> Outcome:
        await self._crew_gone()
        return outcome

    async def _ended(self, drive: DriveLike, raised: BaseException | None) -> Outcome:
        """The body has ended in the caller's task, after it had suspended."""
        self.drive = None
        cancelled = drive.was_cancelled(raised)
        if not cancelled and self.crew is not None and self._waits_for_handlers(raised):
            try:
                await self.crew.handlers_ended()
            except asyncio.CancelledError:
                cancelled = True
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
        await self._crew_gone()
        return self._stopped()

    async def _as_root(self) -> None:
        # The run is over in the very turn in which its body ends: nothing is delivered, nothing asked for after it.
        assert self.crew is not None
        raised: BaseException | None = None
        try:
            await invoke_body(self, Context(self))
        except BaseException as error:
            if is_interrupt(error):
                raise
            raised = error
        if self._waits_for_handlers(raised):
            with suppress(asyncio.CancelledError):  # it is being torn down
                await self.crew.handlers_ended()
        if raised is None:
            self._returned()
        else:
            self._raised(raised)

    def _waits_for_handlers(self, raised: BaseException | None) -> bool:
        """Whether updates that were taken are brought to their end: not when the run fails."""
        if raised is None or first(raised, (RunCancelled, Continued)) is not None:
            return True
        return self.crew is not None and self.crew.cancelled and isinstance(raised, asyncio.CancelledError)

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
        if self.crew.own:
            _remember(self.definition)
        if cancelled is not None:
            raise cancelled

    def cut(self) -> None:
        """Drain, or the lease is lost: `run()` then returns "cut" promptly, whatever the body does."""
        self.stop("cut")

    def _returned(self) -> Outcome:
        if self.stopped is None:
            if self.crew is None and self.desk is None and (self.journal is None or not self.journal.recorded):
                # What nearly all runs come to: nobody is to be told, and nothing was left to replay.
                self.stopped, self.straight = "completed", False
                return COMPLETED if self.result is None else Outcome("completed", self.result)
            machine = self.machine
            if machine is None and self.journal is not None and self.journal.recorded:
                machine = self.begin()
            if machine is not None and machine.left:
                self.stop("paused", machine.returned_early())
            else:
                self.stop("completed", self.result)
        return self._stopped()

    def _raised(self, error: BaseException) -> Outcome:
        if self.stopped is None:
            machine = self.machine or (self.begin() if self.journal is not None else None)
            # Neither is the record's fault: it waits for code that can go on with it.
            refused = first(error, (NonDeterminismError, ConfigurationError))
            continued = first(error, Continued)
            if refused is not None:
                self.stop("paused", refused)
            elif machine is not None and machine.left:
                early = machine.returned_early()
                early.__cause__ = error
                self.stop("paused", early)
            elif isinstance(continued, Continued):
                self._continue(continued)
            elif first(error, self._cancellations()) is not None:
                self.stop("cancelled", error)
            else:
                if isinstance(error, EXITS):
                    own = OwnExit(error, "the body")
                    own.__cause__ = error
                    error = own
                self.stop("failed", error)
                self.note_failure(error)
        return self._stopped()

    def _continue(self, continued: Continued) -> None:
        try:
            self.stop("continued_as_new", continued.into())
        except Exception as error:  # noqa: BLE001 - the next link's params are made by the body's own code
            self.stop("failed", error)
            self.note_failure(error)

    def _cancellations(self) -> tuple[type[BaseException], ...]:
        """What a body ends with when it was cancelled."""
        aborted = self.crew is not None and self.crew.cancelled
        return (RunCancelled, asyncio.CancelledError) if aborted else (RunCancelled,)

    def _stopped(self) -> Outcome:
        status = self.stopped
        assert status is not None
        if status in ("completed", "continued_as_new"):
            return Outcome(status, self.result)
        if status == "paused" and self.error is None:
            return Outcome(status, self.result)
        return Outcome(status, None, self.error if status in ("failed", "paused") else None)


_making_tasks: set[int] = set()


def makes_tasks(definition: WorkflowDefinition[Any, Any]) -> bool:
    """Whether a run of it has made tasks, so that those that start now get one from the start."""
    return id(definition) in _making_tasks


def _remember(definition: WorkflowDefinition[Any, Any]) -> None:
    """Runs of it get a task from the start from now on."""
    if id(definition) not in _making_tasks:
        _making_tasks.add(id(definition))
        finalize(definition, _making_tasks.discard, id(definition))
