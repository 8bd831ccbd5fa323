"""The operations of a run with several tasks: how each is executed, and how its entry is given back on replay.

`start` is called when the run is live, never before; `give_up` when the body stopped waiting. What was executed is
handed to the crew, which delivers it when the run is settled.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Protocol

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import StepDefinition
from pyrula.workflows.engine.attempts import error_from, perform
from pyrula.workflows.engine.places import Place
from pyrula.workflows.engine.remains import Torn
from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.replay.journal import Entry
from pyrula.workflows.replay.operation import Operation
from pyrula.workflows.store.messages import Wait

__all__ = ["AnsweredOperation", "CrewOperation", "InstantOperation", "Promise", "SleepOperation", "StepOperation"]


class Promise(asyncio.Future[Any]):
    """What a task waits on while it waits for an operation."""


class Deliverer(Protocol):
    """What an operation needs of its crew."""

    run: Run
    loop: asyncio.AbstractEventLoop

    def on_completed(self, operation: "CrewOperation", kind: str, data: bytes, answer: Any) -> None:
        """The operation was executed: entry kind, JSON, and the value or exception for the body."""

    def on_broken(self, error: BaseException) -> None:
        """It couldn't be executed, for a reason that isn't the operation's own."""

    def on_executing(self, task: "asyncio.Task[Any]") -> None:
        """A task of the engine executes it."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer in the engine's context."""


class CrewOperation(Operation):
    """An operation that a task waits for by awaiting its promise. `place` is the task's, None if no task waits."""

    __slots__ = ("place", "promise")

    promise: Promise

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.place: Place | None = None

    def start(self, crew: Deliverer) -> None:
        """Execute it. Called once."""

    def give_up(self) -> None:
        """Stop what `start` began, as far as it can be stopped."""

    @property
    def under_way(self) -> bool:
        """Whether it has an effect just now, which a cancel of the run doesn't interrupt."""
        return False

    def wait(self, crew: Deliverer) -> Wait | None:
        """What it waits for if that is kept elsewhere than in memory, so that the run may be parked."""
        return None

    def replayed(self, entry: Entry) -> Any:
        """The value of its entry; raises what the entry says was raised."""
        return loads(entry.value or b"null")

    def deliver(self, kind: str, answer: Any) -> None:
        """Give the answer to whom it is for."""
        if kind == "value":
            self.promise.set_result(answer)
        else:
            self.promise.set_exception(answer)
            self.promise.exception()  # counts as retrieved, also if the task is cancelled before it wakes


class StepOperation(CrewOperation):
    """A step, executed by a task of the engine's."""

    __slots__ = ("_args", "_definition", "_kwargs", "_run", "_task", "_variables")

    def __init__(self, definition: StepDefinition[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__("step", definition.name)
        self._definition = definition
        self._args = args
        self._kwargs = kwargs
        self._variables = copy_context()
        self._variables.run(RUN.set, None)
        self._run: Run | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, crew: Deliverer) -> None:
        self._run = crew.run
        kept = crew.run.journal.note("answer", self.id) if crew.run.journal is not None else None
        if kept is not None and kept.name == self.name:
            self._give_kept(crew, kept)
            return
        execution = self._execute(crew)
        # Not by the loop's factory: with an eager one it would begin inside the body's turn.
        self._task = asyncio.Task(execution, loop=crew.loop, context=self._variables, name=f"step {self.name}")
        crew.on_executing(self._task)

    def _give_kept(self, crew: Deliverer, kept: Entry) -> None:
        kind, value = loads(kept.value or b"[]")
        data = dumps(value)
        entry = Entry(kind, self.id, self.kind, self.name, 0, None, data)
        try:
            crew.on_completed(self, kind, data, self.replayed(entry))
        except Exception as error:  # noqa: BLE001 - the step's own error, or an annotation that was changed
            if kind == "value":
                crew.on_broken(error)
            else:
                crew.on_completed(self, kind, data, error)

    @property
    def under_way(self) -> bool:
        return self._task is not None and self._run is not None and self._run.resting(self.id) is None

    def wait(self, crew: Deliverer) -> Wait | None:
        due = crew.run.resting(self.id)
        return None if due is None else Wait("retry", self.name, due)

    async def _execute(self, crew: Deliverer) -> None:
        try:
            answer = await perform(crew.run, self.id, self._definition, self._args, self._kwargs)
        except Torn:
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - not the step's own: those are answers
            crew.on_broken(error)
        else:
            crew.on_completed(self, *answer)

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def replayed(self, entry: Entry) -> Any:
        if entry.kind == "error":
            raise error_from(entry)
        return self._definition.return_codec.decode(entry.value or b"null")


class SleepOperation(CrewOperation):
    """A sleep for some seconds or until a time."""

    __slots__ = ("_seconds", "_timer", "_until")

    def __init__(self, kind: str, seconds: float | None, until: float | None) -> None:
        super().__init__(kind, "")
        self._seconds = seconds
        self._until = until
        self._timer: asyncio.TimerHandle | None = None

    def start(self, crew: Deliverer) -> None:
        left = crew.run.time_left(self.id, self.kind, self._seconds, self._until)
        crew.run.attend(left)
        if left <= 0:
            crew.on_completed(self, "value", b"null", None)
        else:
            self._timer = crew.call_later(left, lambda: crew.on_completed(self, "value", b"null", None))

    def give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def wait(self, crew: Deliverer) -> Wait | None:
        note = crew.run.journal.note("deadline", self.id) if crew.run.journal is not None else None
        return None if note is None or self._timer is None else Wait("sleep", "", loads(note.value or b"0"))


class InstantOperation(CrewOperation):
    """A value that is there at once: the time, a random number, a UUID."""

    __slots__ = ("_make",)

    def __init__(self, kind: str, make: Callable[[], Any]) -> None:
        super().__init__(kind, "")
        self._make = make

    def start(self, crew: Deliverer) -> None:
        value = self._make()
        crew.on_completed(self, "value", dumps(value), value)


class AnsweredOperation(CrewOperation):
    """One that was executed on the straight path while the run got a second task."""

    __slots__ = ("_answer",)

    def __init__(self, kind: str, name: str, op: str, answer: tuple[str, bytes, Any]) -> None:
        super().__init__(kind, name)
        self.id = op
        self._answer = answer

    def start(self, crew: Deliverer) -> None:
        crew.on_completed(self, *self._answer)
