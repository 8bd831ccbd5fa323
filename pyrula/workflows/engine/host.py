"""What a run's host gives and takes."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.replay.journal import Fields
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.messages import Applied, Child, Interrupt

__all__ = [
    "COMPLETED",
    "UNTIL_DURABLE",
    "ChildRequest",
    "ContinueAsNew",
    "Continued",
    "FeedingHost",
    "Host",
    "Outcome",
    "Output",
    "RunHost",
    "Status",
]

Status: TypeAlias = Literal["completed", "failed", "cancelled", "continued_as_new", "paused", "parked", "cut"]


class Output(NamedTuple):
    """A message that `ctx.send` buffered, as it will be produced."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    timestamp_ms: int | None


class ChildRequest(NamedTuple):
    """A child to be submitted. `params` is JSON; `version` None: its workflow isn't imported here."""

    run_id: str
    name: str
    params: bytes
    version: str | None
    on_parent_close: Literal["cancel", "abandon"]
    stamp: Stamp | None = None


class ContinueAsNew(NamedTuple):
    """What the next link of a chain begins with. `params` is JSON."""

    params: bytes
    version: str


class Continued(BaseException):
    """Raised through the body by `ctx.continue_as_new`, so that its `finally` blocks run.

    `into` is called when they have, and what the run's update handlers had begun is done, too.
    """

    def __init__(self, into: Callable[[], ContinueAsNew]) -> None:
        super().__init__("the run continues as new")
        self.into = into


class Outcome:
    """How a body ended.

    `value` is what the body returned for "completed", a ContinueAsNew for "continued_as_new", and the payload of the
    message for a run that was "paused" by one. `error` is set for "failed", and for "paused" if it wasn't a message.
    """

    __slots__ = ("error", "status", "value")

    def __init__(self, status: Status, value: Any = None, error: BaseException | None = None) -> None:
        self.status = status
        self.value = value
        self.error = error

    def __repr__(self) -> str:
        return f"Outcome({self.status!r}, value={self.value!r}, error={self.error!r})"


class _UntilDurable(list[Any]):
    """Gives itself to whoever drives the body, from no frame of its own."""

    __slots__ = ()
    __await__ = list.__iter__


_itself: Any = _UntilDurable()
_itself.append(_itself)
UNTIL_DURABLE: Final[Awaitable[None]] = _itself
"""What a body awaits whose host goes on with it by `Execution.resume` as soon as its rows are acknowledged."""


class Host(Protocol):
    """Who keeps the journals of runs; one object serves many. If it has a method `attend`, see `Run.attend`; if its
    `sends` is there and false, a run can't send."""

    def append(self, run: "Any", index: int, entry: Fields | None) -> None:
        """Queues a row for the next group commit, in order; None deletes the row."""

    def durable(self, run: "Any") -> Awaitable[None] | None:
        """None when all rows of the run are acknowledged, else what to await for it; that may raise LeaseLost.

        UNTIL_DURABLE only where the body itself asks, in the task that its run was started in, and if the host resumes
        it.
        """

    def record(self, run: "Any") -> object | None:
        """What `ctx.record` shows."""


class FeedingHost(Host, Protocol):
    """A host of runs that may feed triggers."""

    async def trigger(self, run: "Any", definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
        """Feeds an event, perhaps again after a crash: the run that it started, "" if none. What it raises fails the
        run."""

    def triggered(self, run: "Any", event: TriggerEvent) -> None:
        """The answer to this event is in the rows that were queued: once they are durable it is never fed again."""


class RunHost(Host, Protocol):
    """A host of runs that can be talked to and parked; a host without `park_after`, or with None, gets none of these
    calls.

    The plain methods only queue. What has to be atomic is called in one stretch without suspension: all that was queued
    since the last write goes into the next one, undivided.
    """

    park_after: float
    """Seconds. A run whose waits all last longer may leave the memory; math.inf: none does."""

    def consume(self, run: "Any", number: int) -> None:
        """The message of that number was delivered, or needn't be any more."""

    def apply(self, run: "Any", applied: Applied) -> None:
        """An update has ended."""

    def open(self, run: "Any", interrupt: Interrupt) -> None:
        """An interrupt waits for its answer."""

    # A host whose runs are retried after their end has `reopen(run, interrupt)`, too: one that was given up is raised
    # again, and waits for its answer once more. Where it still waits, nothing happens.

    def close(self, run: "Any", wait_id: str) -> None:
        """An interrupt was given up; perhaps for the second time."""

    def adopt(self, run: "Any", child: Child) -> None:
        """The run will have this child."""

    def event(self, run: "Any", type: str, **data: Any) -> None:  # noqa: A002 - the public name
        """Something for the run's history; see store/events.py."""

    def idle(self, run: "Any") -> None:
        """The run could be parked now: `run.hold()`."""

    def new_child_id(self, run: "Any", name: str, stamp: Stamp | None) -> str:
        """The id of a child-to-be."""

    async def submit(self, run: "Any", request: ChildRequest) -> None:
        """Submits a child, perhaps again after a crash. What it raises fails the run."""

    def tenant(self, run: "Any") -> tuple[str, Any]:
        """The run's owner and metadata."""


COMPLETED = Outcome("completed")
"""Of every body that returned None."""
