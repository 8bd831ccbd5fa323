"""For tests of workflows: an environment with a clock of its own, and a check of saved histories against today's code.

Rules of the environment: time stands still while anything executes, and moves only when nothing can go on: to the next
deadline of a run when somebody waits for one, or as far as `advance` says. What a step itself waits for is real.
"""

import asyncio
import copy
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from pyrula.workflows.client import RunHandle
from pyrula.workflows.client.explain import explained
from pyrula.workflows.clock import ManualClock, to_seconds
from pyrula.workflows.context import Context
from pyrula.workflows.definition import StepDefinition, WorkflowDefinition, step_of
from pyrula.workflows.errors import PyrulaError, PyrulaWarning
from pyrula.workflows.execution import Output
from pyrula.workflows.inline import Driver, Starter
from pyrula.workflows.params import Params
from pyrula.workflows.replaying import check_fit, check_history
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["History", "MockNameWarning", "NothingMoves", "WorkflowTestEnv", "replay"]


_END_OF_TIME = datetime.max.replace(tzinfo=UTC).timestamp()  # no clock shows what comes after the year 9999
_UNTOLD = frozenset({RunStatus.SIGNAL_WAITING, RunStatus.INTERRUPT_WAITING, RunStatus.PAUSED})


class NothingMoves(PyrulaError):
    """What was waited for can't come: no run executes and none has a deadline. The text says what each waits for."""


class MockNameWarning(PyrulaWarning):
    """A step without a mock is about to run, and a name much like its own was mocked that no step has had so far."""


class WorkflowTestEnv(Starter):
    """Runs workflows in memory, on a virtual clock.

    >>> env = WorkflowTestEnv()
    >>> run = await env.start(trial, {"user": "ada"})
    >>> await run.result()

    `client` is a client of all its runs. Waiting for a result, an update or the like skips over sleeps and time-outs,
    and over the windows of Collect and Debounce, which close at their time.
    """

    def __init__(self, *, start: datetime | None = None) -> None:
        self.clock = ManualClock(start)
        self.store = MemoryStore(self.clock)
        self._driver = _VirtualDriver(self.store, self.clock)
        super().__init__(self._driver)

    def now(self) -> datetime:
        """The virtual time."""
        return self.clock.now()

    @property
    def fired(self) -> list[RunHandle[Any]]:
        """The runs that time has started, of workflows with a trigger: each window that closed, oldest first."""
        return [self.client.handle(name, run_id) for name, run_id in self._driver.fired]

    def mock(self, step: Callable[..., Any] | str, replacement: Callable[..., Any]) -> None:
        """Have this called instead of a step, which is a function or its name; it may be async, and may raise.

        Name, retries and return annotation stay the step's own. A step that runs itself while a much similar name is
        mocked, and met by no step yet, gives a MockNameWarning."""
        self._driver.mocks.add(step, replacement)

    async def advance(self, by: timedelta | float) -> None:
        """Move the clock. What falls due meanwhile does so at its own time, in order."""
        await self._driver.advance(to_seconds(by, "WorkflowTestEnv.advance()"))

    async def run_until_complete(self, run: RunHandle[Any]) -> RunStatus:
        """Drive a run until it ends, or waits on a signal, an answer or a person. Its status then."""

        async def there() -> RunStatus | None:
            status = await self.store.status(run.run_id)
            return status if status in TERMINAL or status in _UNTOLD else None

        try:
            status = await self._driver.until(run.run_id, there, None)
        except NothingMoves:
            status = None
        return status or await self.store.status(run.run_id)

    @property
    def sent(self) -> tuple[Output, ...]:
        """What runs that have completed sent by `ctx.send`, oldest first. Nothing of it is produced anywhere."""
        return tuple(self._driver.sent_by_runs)

    async def waiting(self) -> dict[str, str]:
        """What each run that hasn't ended waits for, by run id."""
        return await self._driver.waiting()


class _VirtualDriver(Driver):
    """Skips the time in which nothing moves."""

    sends = True

    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        super().__init__(store, clock)
        self.mocks = _Mocks()
        self.sent_by_runs: list[Output] = []
        self.fired: list[tuple[str, str]] = []
        self._clock = clock
        self._known: dict[str, None] = {}

    def serve(self, definition: WorkflowDefinition[Any, Any]) -> None:
        if self.served.find(definition.name, definition.version) is None or self._original(definition) is None:
            self.served.add(_with_mocks(definition, self.mocks))

    def _original(self, definition: WorkflowDefinition[Any, Any]) -> WorkflowDefinition[Any, Any] | None:
        served = self.served.find(definition.name, definition.version)
        return served if served is not None and getattr(served, "__wrapped__", None) is definition.fn else None

    def on_event(self, run_id: str, workflow: str, type: str, at: float, data: dict[str, Any]) -> None:  # noqa: A002
        self._known[run_id] = None

    def on_outputs(self, run_id: str, outputs: Sequence[Output]) -> None:
        self.sent_by_runs += outputs

    def on_triggered(self, workflow: str, run_id: str) -> None:
        self.fired.append((workflow, run_id))

    async def sent(self, run_id: str) -> None:
        self._known[run_id] = None
        await super().sent(run_id)

    async def pass_time(self, left: float | None, woken: asyncio.Event | None) -> bool:
        due = await self.next_due()
        if due is not None and due >= _END_OF_TIME:
            due = None
        ahead = None if due is None else max(0.0, due - self.store.now())
        if ahead is not None and (left is None or ahead <= left):
            self._clock.advance(ahead)
            return True
        if left is not None:
            self._clock.advance(left)
            return True
        if woken is not None and await self._answered(woken):
            return True
        waits = await self.waiting()
        told = "; ".join(f"run {run_id} {text}" for run_id, text in waits.items())
        raise NothingMoves(f"nothing moves any more, not with time either: {told or 'there is no unfinished run'}")

    async def _answered(self, woken: asyncio.Event) -> bool:
        """Give a function that answers interrupts its chance."""
        try:
            async with asyncio.timeout(1.0):
                await woken.wait()
        except TimeoutError:
            return False
        return True

    async def _next_of_all(self) -> float | None:
        """Timers, windows and schedules."""
        moments = [plan.due for plan in await self.store.schedules() if not plan.paused]
        return min((moment for moment in (await self.next_due(), *moments) if moment is not None), default=None)

    async def advance(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds

        async def move() -> None:
            await self._settled()
            while True:
                due = await self._next_of_all()
                left = until - self._clock.monotonic()
                ahead = left if due is None else max(0.0, due - self.store.now())
                self._clock.advance(max(0.0, min(ahead, left)))
                await self._settled()
                if ahead >= left:
                    return

        async with self._prepared():
            await self._drive(move())

    async def waiting(self) -> dict[str, str]:
        told = {}
        for run_id in list(self._known):
            try:
                detail = await self.store.detail(run_id)
            except RunNotFoundError:
                continue
            if detail.status in TERMINAL or detail.run_id in told:
                continue
            outlook = await self.store.outlook(run_id)
            told[detail.run_id] = f"({detail.name}) {explained(detail, outlook, None)}"
        return told


class _Mocks:
    """What stands in for steps, by the step's name."""

    def __init__(self) -> None:
        self._replacements: dict[str, Callable[..., Any]] = {}
        self._spelt: set[str] = set()  # given as text, so that they may be misspelt
        self._met: set[str] = set()

    def add(self, step: Callable[..., Any] | str, replacement: Callable[..., Any]) -> None:
        if isinstance(step, str):
            self._spelt.add(step)
        name = step if isinstance(step, str) else step_of(step).name
        self._replacements[name] = replacement

    def of(self, definition: StepDefinition[..., Any]) -> Callable[..., Any] | None:
        """None: the step itself is to run."""
        self._met.add(definition.name)
        return self._replacements.get(definition.name)

    def perhaps_meant(self, definition: StepDefinition[..., Any]) -> str | None:
        """The name that was mocked instead of this step's, by the look of it."""
        unmet = self._spelt - self._met
        function = getattr(definition.fn, "__name__", "")
        if function in unmet:
            return function
        return next(iter(get_close_matches(definition.name, unmet, 1)), None)


class _MockingContext(Context):
    """A ctx whose steps may be replaced."""

    __slots__ = ("_mocks",)

    _mocks: _Mocks

    async def step(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        definition = step_of(fn)
        replacement = self._mocks.of(definition)
        if replacement is None:
            if (mocked := self._mocks.perhaps_meant(definition)) is not None:
                warnings.warn(
                    f"step {definition.name!r} runs itself: it has no mock, and no step is named {mocked!r}, which has "
                    f"one. If this one was meant, write env.mock({definition.name!r}, ...)",
                    MockNameWarning,
                    stacklevel=2,
                )
        else:
            definition = _replaced(definition, replacement)
        return await super().step(definition, *args, **kwargs)


def _replaced(definition: StepDefinition[..., Any], replacement: Callable[..., Any]) -> StepDefinition[..., Any]:
    other = copy.copy(definition)
    other.fn = replacement
    other.is_async = step_of(replacement).is_async
    other.inline = True
    other.codec = definition.return_codec
    return other


def _with_mocks(definition: WorkflowDefinition[Any, Any], mocks: _Mocks) -> WorkflowDefinition[Any, Any]:
    fn = definition.fn

    async def body(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        mocking = _MockingContext(ctx._run)  # noqa: SLF001 - it is one
        mocking._mocks = mocks  # noqa: SLF001
        return await fn(mocking, *args, **kwargs)

    definition.hints()  # resolved by the function that declares them: `body` has none, and the copy takes these along
    other = copy.copy(definition)
    other.fn = body
    return other


async def replay(
    workflow: WorkflowDefinition[..., Any], history: History, *, timeout: float | timedelta = 10.0
) -> None:
    """Run a saved history against today's code: `await handle.history()`, or `History.load(file)`.

    Raises NonDeterminismError if they don't fit, ValueError if the body takes other params now. No step is executed:
    what the body asks for beyond its history is never answered. `timeout` is for a body that never comes to rest. The
    history of a record's run is for `pyrula.kafka.testing.replay_record_run`, which has the binding read the record.
    """
    if not isinstance(workflow, WorkflowDefinition):
        raise TypeError(
            f"replay() takes the workflow, not {workflow!r:.100}; a Binding, with the history of a record's run, is "
            "for pyrula.kafka.testing.replay_record_run(binding, history)"
        )
    check_history(workflow, history, "replay()")
    if RecordId.parse(history.run_id) is not None:
        raise ValueError(
            f"run {history.run_id} is a record's, which its binding reads: write "
            "`await pyrula.kafka.testing.replay_record_run(binding, history)` instead of replay()"
        )
    seconds = to_seconds(timeout, "replay(timeout=)", zero=False)
    await check_fit(workflow, history, Params.of(workflow).decode(history.params), seconds=seconds)
