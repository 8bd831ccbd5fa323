"""The state of one run while it is in memory.

`RUN` is the run whose code executes now. It is set in the context of the body and of all tasks the body starts;
everything of the engine's own (steps, timers, callbacks) executes in a context in which it is None.

`straight` is true while the run has one task and nothing special is going on; an operation then takes the short way.
`stopped` is set once, by the first of: a cut, a mismatch, an overfull journal, the end of the body. After it nothing of
the run writes its journal, starts a step or sends a message.
"""

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from functools import partial
from math import inf
from types import coroutine
from typing import Any, Final

from pyrula.workflows.clock import Clock
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import StepDefinition, WorkflowDefinition, watch_plain_calls
from pyrula.workflows.engine.host import FeedingHost, Host, Outcome, Output, RunHost, Status
from pyrula.workflows.engine.parts import CrewLike, DeskLike, DriveLike
from pyrula.workflows.engine.places import still_armed
from pyrula.workflows.engine.remains import Remains
from pyrula.workflows.errors import (
    LeaseLost,
    NonDeterminismError,
    PlainCallWarning,
    PyrulaError,
    SerializationError,
)
from pyrula.workflows.model import MAX_ENTRIES, MAX_JOURNAL
from pyrula.workflows.replay.journal import Entry, Fields, Journal
from pyrula.workflows.replay.machine import Machine

__all__ = ["RUN", "Run", "enter_run", "log", "present_run", "under_alarm"]

log = logging.getLogger("pyrula.workflows")

RUN: "ContextVar[Run | None]" = ContextVar("RUN", default=None)
# Bound once: what each operation pays.
present_run: "Final[Callable[[], Run | None]]" = RUN.get
enter_run: "Final[Callable[[Run | None], object]]" = RUN.set


class Run:
    """One body, one journal. See `Execution`, which drives it."""

    __slots__ = (
        "_remains",
        "_run_id",
        "alarms",
        "args",
        "attempt",
        "attempting",
        "body",
        "clock",
        "crew",
        "definition",
        "desk",
        "drive",
        "flush",
        "host",
        "in_place",
        "journal",
        "kwargs",
        "leftovers",
        "machine",
        "origin",
        "outputs",
        "result",
        "resumable",
        "stopped",
        "straight",
        "told",
        "unfinished",
    )

    def __init__(
        self,
        definition: WorkflowDefinition[Any, Any],
        run_id: str | Callable[[], str],
        host: Host,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        *,
        journal: Journal | None = None,
        origin: object = None,
        attempt: int = 1,
        clock: Clock,
    ) -> None:
        self.definition = definition
        self._run_id = run_id
        self.host = host
        self.args = args
        self.kwargs = kwargs
        self.journal = journal
        self.origin = origin
        self.attempt = attempt
        self.attempting = False  # a step's code has suspended, on the straight path
        self.clock = clock
        self.flush: Any = None
        self.outputs: list[Output] | None = None
        self.leftovers: tuple[asyncio.Future[Any], ...] = ()
        self.machine: Machine | None = None
        self.straight = True
        self.told = False  # whether the host hears of steps, once the body has asked for something
        self.stopped: Status | None = None
        self.result: Any = None
        self.body: Any = None
        self.drive: DriveLike | None = None
        self.crew: CrewLike | None = None
        self.desk: DeskLike | None = None
        self.in_place: str | None = None  # the operation that is executed on the straight path
        self.alarms: list[asyncio.TimerHandle] | None = None
        self.resumable = False  # by its host, whenever the body waits for nothing but its rows
        self.unfinished: Coroutine[Any, Any, Outcome] | None = None
        self._remains: Remains | None = None
        if journal is not None:
            note = journal.note("attempt", "")
            if note is not None:
                self.attempt = loads(note.value or b"1")

    def reset(self) -> None:
        """As before the body began; what the host added stays."""
        self.leftovers = ()
        self.outputs = self.machine = self.stopped = self.result = self.body = None
        self.drive = self.crew = self.alarms = self.unfinished = self._remains = self.in_place = None
        self.straight = True
        self.attempting = False
        if self.desk is not None:
            self.desk.reset()

    def begin_again(self) -> None:
        """Becomes another run, whose host sets what it is given and what it has of it. Only if it began with an empty
        journal and completed, never left its straight path, sent nothing and left nothing behind, and nobody knows it.
        """
        self.stopped = self.flush = None
        self.straight = True
        if self.machine is not None:
            self.machine.begin_again()

    @property
    def error(self) -> BaseException | None:
        """What the run failed with, or was paused for."""
        return self.result if isinstance(self.result, BaseException) and self.stopped != "completed" else None

    @property
    def talking(self) -> RunHost | None:
        """The host, if it takes more than rows."""
        host: Any = self.host
        return None if getattr(host, "park_after", None) is None else host

    def attend(self, seconds: float = inf) -> None:
        """The body is about to do what others may take part in, or to wait for so long. A host that keeps only rows of
        most runs may take another place from now on (`host`)."""
        attend = getattr(self.host, "attend", None)
        if attend is not None:
            attend(self, seconds)

    @property
    def feeding(self) -> FeedingHost | None:
        """The host, if it takes events for triggers."""
        host: Any = self.host
        return host if hasattr(host, "triggered") else None

    @property
    def remains(self) -> Remains:
        """Made when there is something to keep track of."""
        if self._remains is None:
            self._remains = Remains()
        return self._remains

    @property
    def full(self) -> bool:
        """Whether its journal is at one of its limits."""
        return self.journal is not None and _full(self.journal)

    def resting(self, op: str) -> float | None:
        """When a step's next attempt is due, while it waits for that."""
        return None if self._remains is None else self._remains.rests.get(op)

    @property
    def run_id(self) -> str:
        """The run's id; made when it is first asked for."""
        run_id = self._run_id
        if not isinstance(run_id, str):
            self._run_id = run_id = run_id()
        return run_id

    def begin(self) -> Machine:
        """The machine, made when the body asks for its first operation."""
        journal = self.journal
        if journal is None:
            self.journal = journal = Journal()
        elif _full(journal):
            self.straight = False
        self.told = self.talking is not None
        self.machine = machine = Machine(journal)
        return machine

    def move(self, host: Host) -> None:
        """Another host has the run from now on."""
        self.host = host
        self.told = self.talking is not None

    def write(self, entry: Fields) -> None:
        """Adds a row to the journal and queues it."""
        journal = self.journal
        assert journal is not None
        index = journal.append(entry)
        self.host.append(self, index, entry)
        if index >= _WARN_ROWS or journal.size >= _WARN_BYTES:
            self._watch_growth(journal)

    def _watch_growth(self, journal: Journal) -> None:
        share = max(len(journal) / MAX_ENTRIES, journal.size / MAX_JOURNAL)
        level = 3 if share >= 1 else 2 if share >= 0.25 else 1 if share >= 0.1 else 0
        if level > journal.warned:
            journal.warned = level
            log.warning(
                "run %s (%s): its journal has %d entries and %d bytes, the limits are %d and %d",
                self.run_id, self.definition.name, len(journal), journal.size, MAX_ENTRIES, MAX_JOURNAL,
            )  # fmt: skip
        if level == 3:
            self.straight = False

    def stop(self, status: Status, result: Any = None) -> bool:
        """Nothing the body does counts from here on. `result`: a value or an error. False if it was stopped before."""
        if self.stopped is not None:
            return False
        self.stopped = status
        self.result = result
        self.straight = False
        if self.crew is not None:
            self.crew.on_stop()
        if self.drive is not None:
            self.drive.cut()
        if self.desk is not None:
            self.desk.settle_questions()
        return True

    async def admit(self) -> None:
        """Whether an operation may be asked for by who asks: raises, or never returns, if not."""
        if self.stopped is not None:
            await self.refuse()
        if present_run() is not self:
            raise PyrulaError(
                f"run {self.run_id}: an operation on ctx was asked for outside of the run's own tasks (from a step, or "
                "a task made with another context); await it in the body or in tasks that the body starts"
            )
        machine = self.machine or self.begin()
        journal = machine.journal
        if _full(journal):
            if not machine.left:
                await self.fail(
                    SerializationError(
                        f"run {self.run_id}: its journal is full ({len(journal):,} entries of {MAX_ENTRIES:,}, "
                        f"{journal.size:,} bytes of {MAX_JOURNAL:,}); split the work over several runs"
                    )
                )
        elif self.crew is None:
            if self.alarms:
                self.alarms = still_armed(self.alarms)
                if self.alarms:
                    raise under_alarm(self)
            self.straight = self.drive is None or self.drive.trusted
        if self.crew is None and self.drive is not None and asyncio.current_task() is not self.drive.task:
            raise PyrulaError(
                f"run {self.run_id}: an operation on ctx was asked for by a task that Pyrula didn't make, so it has no "
                "place in the run; the loop's task factory was replaced after the worker had started"
            )

    def on_timer(self) -> None:
        """A timer was armed in the body that may cancel its task in a way that isn't known."""
        if self.alarms is None:
            self.alarms = []

    def on_alarm(self, alarm: asyncio.TimerHandle) -> None:
        """A timer was armed that would cancel the present task."""
        if self.crew is not None:
            self.crew.on_alarm(alarm)
        else:
            self.alarms = [*(self.alarms or ()), alarm]
            self.straight = False

    def time_left(self, op: str, kind: str, seconds: float | None, until: float | None) -> float:
        """The seconds until an operation's deadline, which is noted the first time."""
        machine = self.machine or self.begin()
        now = self.clock.now().timestamp()
        note = machine.journal.note("deadline", op)
        if note is not None:
            deadline: float = loads(note.value or b"0")
            return deadline - now
        deadline = now + seconds if seconds is not None else until or now
        if deadline > now:
            self.write(Entry("deadline", op, kind, "", None, None, dumps(deadline)))
        return deadline - now

    async def refuse(self) -> None:
        """Answers an operation that is asked for in tear-down: raises Torn, or never returns."""
        await self.remains.refuse(f"run {self.run_id} is being torn down ({self.stopped})")

    def still_alive(self) -> "tuple[asyncio.Future[Any], ...]":
        """The leftovers: threads and resisting tasks that haven't ended."""
        return () if self._remains is None else self._remains.alive()

    async def fail(self, error: BaseException) -> None:
        """Ends the run with an error that the body can't handle."""
        self.stop("paused" if isinstance(error, NonDeterminismError) else "failed", error)
        await self.refuse()

    @coroutine
    def acknowledged(self, waiter: Awaitable[None]) -> Generator[Any, Any, None]:
        """Waits until all rows are durable. If they won't be, as when the lease is lost, the run is cut."""
        if asyncio.isfuture(waiter):
            # Others wait for the same one, and a cancellation here would cancel it for them.
            own: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiter.add_done_callback(partial(_hand_on, own), context=Context())
            waiter = own
        try:
            yield from waiter.__await__()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be built on those rows
            self.on_lost_rows(error)
        if self.stopped is not None:
            yield from self.refuse().__await__()

    def on_lost_rows(self, error: Exception) -> None:
        """Rows that were queued aren't durable, and never will be."""
        if self.stop("cut", error) and not isinstance(error, LeaseLost):
            log.warning("run %s (%s) is cut: its journal isn't durable: %r", self.run_id, self.definition.name, error)


def _on_plain_call(step: StepDefinition[..., Any]) -> None:
    run = RUN.get()
    if run is not None:
        warnings.warn(
            f"workflow {run.definition.name!r} calls step `{step.name}` like any function, so that it isn't journaled "
            f"and runs again at each replay: write `await ctx.step({step.name}, ...)`",
            PlainCallWarning,
            stacklevel=3,
        )


watch_plain_calls(_on_plain_call)


def under_alarm(run: Run) -> NonDeterminismError:
    """The error for an operation inside of asyncio.timeout or wait_for."""
    return NonDeterminismError(
        f"run {run.run_id}: an operation on ctx was asked for inside asyncio.timeout or asyncio.wait_for: whether it "
        "is cancelled would depend on a clock, which a replay can't repeat; use `async with ctx.timeout(seconds):`, "
        "whose end is journaled, or the step's own timeout="
    )


def _full(journal: Journal) -> bool:
    return len(journal) >= MAX_ENTRIES or journal.size >= MAX_JOURNAL


def _hand_on(own: "asyncio.Future[None]", done: "asyncio.Future[None]") -> None:
    if own.done():
        return
    error = None if done.cancelled() else done.exception()
    if error is not None:
        own.set_exception(error)
    else:
        own.set_result(None)


_WARN_ROWS: Final = MAX_ENTRIES // 10
_WARN_BYTES: Final = MAX_JOURNAL // 10
