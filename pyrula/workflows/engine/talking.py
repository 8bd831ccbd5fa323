"""The part of `ctx` by which a run is talked to: signals, interrupts, updates, queries, children, and its next link.

All of it goes through the run's crew: it waits for what others do.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import timedelta
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from pydantic import BaseModel

from pyrula.workflows.annotations import caller, is_async
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import Codec
from pyrula.workflows.definition import WorkflowDefinition, definition_of
from pyrula.workflows.engine.crew import Crew
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.engine.host import ContinueAsNew, Continued
from pyrula.workflows.engine.letters import (
    ChildResultOperation,
    InterruptOperation,
    SignalOperation,
    StartChildOperation,
)
from pyrula.workflows.engine.run import Run, log, present_run
from pyrula.workflows.engine.update import UpdateHandler
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.params import Params, encode_unchecked
from pyrula.workflows.stamps import stamp_of
from pyrula.workflows.store.payloads import InterruptAnswer, encode_payload

__all__ = ["ChildHandle", "Talking"]

R = TypeVar("R")


class ChildHandle(Generic[R]):
    """A child run that was started. Made by `ctx.start_child`."""

    __slots__ = ("_error", "_known", "_lock", "_operation", "_run", "_value", "run_id")

    def __init__(self, run: Run, run_id: str, operation: Callable[[], ChildResultOperation]) -> None:
        self.run_id = run_id
        self._run = run
        self._operation = operation
        self._lock = asyncio.Lock()
        self._known = False
        self._value: Any = None
        self._error: Exception | None = None

    async def result(self) -> R:
        """Waits for the child's end. Raises DurableInvocationError or DurableInvocationCancelled if that is none."""
        async with self._lock:
            if not self._known:
                await self._run.admit()
                try:
                    self._value = await Crew.of(self._run).ask(self._operation())
                except Exception as error:  # noqa: BLE001 - the child's, for all who ask
                    self._error = error
                self._known = True
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value


class Talking:
    """What `Context` has beside steps and time."""

    __slots__ = ("_run",)

    _run: Run

    async def wait_for_signal(self, name: str, *, timeout: float | timedelta | None = None) -> Any:
        """The payload of the next signal of that name, also of one that came before. TimeoutError after `timeout`."""
        run = self._run
        seconds = None if timeout is None else to_seconds(timeout, "ctx.wait_for_signal(timeout=)")
        await run.admit()
        return await self._ask(SignalOperation(_checked(name, "a signal's name"), seconds))

    async def interrupt(self, payload: Any = None) -> InterruptAnswer:
        """Waits until somebody resumes the run, and gives their `action` and `value`."""
        data = encode_payload(payload, "the interrupt's payload")
        await self._run.admit()
        answer: InterruptAnswer = await self._ask(InterruptOperation(data))
        return answer

    def on_query(self, name: str, handler: Callable[..., Any]) -> None:
        """`handler` answers queries of that name from now on. It is plain, and changes nothing."""
        if is_async(handler):
            raise TypeError(f"the handler of query {name!r} is async; a query can't wait for anything")
        self._desk().queries[_checked(name, "a query's name")] = handler

    def on_update(self, name: str, handler: Callable[..., Any], validator: Callable[..., Any] | None = None) -> None:
        """`handler` applies updates of that name from now on; an async one may ask for operations.

        A dict is its keyword arguments, None no arguments, anything else its one argument, validated by its
        annotations. `validator` gets the same and refuses by raising; then nothing of the update is on record.
        """
        run = self._run
        if present_run() is not run:
            raise PyrulaError(f"run {run.run_id}: ctx.on_update is called by the body, not by a step or another task")
        made = UpdateHandler(_checked(name, "an update's name"), handler, validator, copy_context(), caller())
        self._desk().updates[name] = made
        if run.stopped is None:
            Crew.of(run).own = True

    @overload
    async def run_child(
        self,
        workflow: WorkflowDefinition[..., R],
        params: Any = None,
        *,
        on_parent_close: Literal["cancel", "abandon"] = "cancel",
    ) -> R: ...
    @overload
    async def run_child(
        self, workflow: str, params: Any = None, *, on_parent_close: Literal["cancel", "abandon"] = "cancel"
    ) -> Any: ...
    async def run_child(
        self, workflow: Any, params: Any = None, *, on_parent_close: Literal["cancel", "abandon"] = "cancel"
    ) -> Any:
        """Runs another workflow as a run of its own, and gives its result."""
        handle = await self.start_child(workflow, params, on_parent_close=on_parent_close)
        return await handle.result()

    @overload
    async def start_child(
        self,
        workflow: WorkflowDefinition[..., R],
        params: Any = None,
        *,
        on_parent_close: Literal["cancel", "abandon"] = "cancel",
    ) -> ChildHandle[R]: ...
    @overload
    async def start_child(
        self, workflow: str, params: Any = None, *, on_parent_close: Literal["cancel", "abandon"] = "cancel"
    ) -> ChildHandle[Any]: ...
    async def start_child(
        self, workflow: Any, params: Any = None, *, on_parent_close: Literal["cancel", "abandon"] = "cancel"
    ) -> ChildHandle[Any]:
        """Starts another workflow as a run of its own. When this run ends before it, it is cancelled, or abandoned.

        Raises ValueError for params that don't fit.
        """
        if on_parent_close not in ("cancel", "abandon"):
            raise ValueError(f"on_parent_close must be 'cancel' or 'abandon', not {on_parent_close!r}")
        run = self._run
        definition = definition_of(workflow)
        if definition is None:
            data, name, version, stamp = encode_unchecked(workflow, params), workflow, None, None
        else:
            data, name, version = Params.of(definition).encode(params), definition.name, definition.version
            stamp = stamp_of(definition, data)
        await run.admit()
        operation = StartChildOperation(name, data, version, on_parent_close, stamp)
        run_id: str = await self._ask(operation)
        codec = Codec.of() if definition is None else definition.return_codec
        return ChildHandle(run, run_id, lambda: ChildResultOperation(run_id, operation.id, codec.decode))

    async def continue_as_new(self, params: Any = None) -> NoReturn:
        """Ends this run and begins the next link of its chain: the same id for others, new params, an empty journal.

        Doesn't return. `finally` blocks run, and updates that are being handled are brought to their end; messages that
        weren't read are kept. `params` may be a function: it is called after all that, so that what a handler has
        changed meanwhile goes along.
        """
        run = self._run
        definition = run.definition
        later = callable(params) and not isinstance(params, (Mapping, BaseModel))
        data = None if later else Params.of(definition).encode(params)
        await run.admit()
        if data is not None and run.crew is not None and run.crew.handling:
            log.warning(
                "run %s (%s) continues as new while %d of its updates are being handled: what their handlers change "
                "from now on is not in the params; give a function, which is called when they have ended: "
                "ctx.continue_as_new(lambda: {...})",
                run.run_id, definition.name, run.crew.handling,
            )  # fmt: skip
        if run.crew is not None:
            run.crew.count()
        else:
            machine = run.machine or run.begin()
            machine.asked += 1

        def into() -> ContinueAsNew:
            return ContinueAsNew(Params.of(definition).encode(params()) if data is None else data, definition.version)

        raise Continued(into)

    @property
    def version(self) -> str:
        """The version of the workflow."""
        return self._run.definition.version

    def _desk(self) -> Desk:
        run = self._run
        run.attend()
        if run.desk is None:
            run.desk = Desk()
        assert isinstance(run.desk, Desk)
        return run.desk

    async def _ask(self, operation: Any) -> Any:
        self._run.attend()
        crew = Crew.of(self._run)
        crew.own = True
        return await crew.ask(operation)


def _checked(name: str, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} must be a text that isn't empty, not {name!r:.100}")
    return name
