"""What clients and workers need of a store: submitted runs, from the queue to retention.

Rules every implementation keeps, held to them by ``tests/conformance/runs``:

- *Atomic.* One call for one run takes effect whole or not at all, and nothing relies on two in a row.
- *Idempotent.* A call whose answer was lost may be sent again, by the store or by its caller: submit by run id and
  idempotency key, a message by its id, a change by its number, finish and park by their lease.
- *Fenced.* A holder's write whose (run, worker, epoch) isn't the present one raises LeaseLost and changes nothing.
- *Final.* Who finishes first decides; terminal states change by `retry` only.
- *Chains.* An id of any link stands for its chain: messages, status and result are the live link's.
- *Wake-ups are hints.* They come after the write and may be lost; who waits polls too.

Every method raises StoreUnavailable when the store can't be reached, RunNotFoundError for an id that names no run.
The port knows nothing of definitions, of what is in a journal row, or of JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.backfills import BackfillStore
from pyrula.workflows.store.batches import BatchStore
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import RunLister
from pyrula.workflows.store.messages import (
    Applied,
    Change,
    Child,
    Delivered,
    End,
    Interrupt,
    Lease,
    Message,
    Parent,
    Reply,
    Unread,
    Wait,
)
from pyrula.workflows.store.outlook import Outlook
from pyrula.workflows.store.record_changes import RecordFinder
from pyrula.workflows.store.redrive import RedriveStore
from pyrula.workflows.store.registry import Registry

RETENTION_SECONDS = 7 * 24 * 3600.0

# Links that have continued, of each chain: what loops for ever must not fill the store with its past.
LINKS_KEPT = 20
MIN_PRIORITY, MAX_PRIORITY = -100, 100


@dataclass(frozen=True, slots=True)
class Submission:
    """A run to be queued. The caller makes the id by `RunStore.new_run_id`, so that sending it again is harmless.

    `version` None: unstamped, any worker of the name may claim it. `stamp`: the gates it has to pass. `priority`, from
    MIN_PRIORITY to MAX_PRIORITY, orders the runs of one owner: the highest first, then the oldest.
    """

    run_id: str
    name: str
    params: bytes = b"{}"
    version: str | None = None
    idempotency_key: str | None = None
    owner: str = ""
    metadata: bytes = b"null"
    parent: Parent | None = None
    message: Message | None = None
    stamp: Stamp | None = None
    priority: int = 0


class Origin(NamedTuple):
    """What never changes of a run, over its whole chain."""

    name: str
    owner: str


class Submitted(NamedTuple):
    """`run_id` is the first run's if one was there (`created` False). `same_params`: it was submitted with these."""

    run_id: str
    created: bool
    same_params: bool = True


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run as its new holder gets it: all that replay needs.

    `deaths` counts workers that died with the run in flight since its journal last grew; with `alone` it must be run
    with nothing beside it, and the holder says so (`Change.alone`) before it starts; a `doomed` one died alone too, so
    all the holder does is finish it as failed. `retried`: the verb `retry` was used and nothing written since.
    """

    lease: Lease
    name: str
    version: str
    params: bytes
    rows: tuple[tuple[int, bytes], ...]
    messages: tuple[Unread, ...]
    attempt: int
    owner: str
    metadata: bytes
    created_at: float
    parent: Parent | None = None
    deaths: int = 0
    alone: bool = False
    doomed: bool = False
    retried: bool = False
    interrupts: tuple[Interrupt, ...] = ()
    children: tuple[Child, ...] = ()


class Claims(NamedTuple):
    """`next_due` is when the next timer falls due (None: none is set)."""

    runs: tuple[ClaimedRun, ...]
    next_due: float | None = None


class Finished(NamedTuple):
    """`status` is what stands; `unread` the messages that were never read; `next` the next link, held by the same
    worker already, if the run continued as new."""

    status: RunStatus
    unread: tuple[Unread, ...] = ()
    next: ClaimedRun | None = None


class Result(NamedTuple):
    """A finished run's end."""

    run_id: str
    status: RunStatus
    value: bytes
    error: bytes | None


@dataclass(frozen=True, slots=True)
class RunDetail:
    """What can be told of a run. `run_id` is the live link's. `error` is the reason if it is paused."""

    run_id: str
    status: RunStatus
    name: str
    version: str | None
    owner: str
    metadata: bytes
    params: bytes
    attempt: int
    created_at: float
    finished_at: float | None
    parent: Parent | None
    waits: tuple[Wait, ...]
    interrupts: tuple[Interrupt, ...]
    unread: tuple[Unread, ...]
    worker: str | None
    deaths: int
    cancel_requested: bool
    value: bytes
    error: bytes | None


class Beat(NamedTuple):
    """What a heartbeat found: leases the worker has lost, and runs that got messages it hasn't seen (they may have been
    taken back)."""

    lost: tuple[Lease, ...]
    unread: tuple[str, ...]


class Suspect(NamedTuple):
    """A worker's counter on one shard, as another one saw it."""

    shard: int
    worker: str
    counter: int


class Query(NamedTuple):
    """A question to a run, for its holder or any worker of its (name, version)."""

    id: str
    run_id: str
    name: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as the store keeps it: `spec` (trigger, params, policy...) is its owner's JSON. `due` is the next fire
    time, None if there is none. `last_run` is the id of the run it started last."""

    id: str
    name: str
    spec: bytes
    due: float | None
    paused: bool = False
    last_run: str | None = None
    revision: int = 0


class Subscription(Protocol):
    """Something listened to."""

    def close(self) -> None:
        """Stop listening. Idempotent."""


class RunSender(Protocol):
    """The client's side."""

    def new_run_id(
        self,
        *,
        name: str,
        idempotency_key: str | None = None,
        parent: str | None = None,
        stamp: Stamp | None = None,
        batch_key: str | None = None,
    ) -> str:
        """An id on the shard where this run belongs: where its gates are, else its idempotency key's, else its batch
        key's, else its parent's, else any."""

    def now(self) -> float:
        """The store's clock, as far as this process knows it."""

    async def submit(self, submission: Submission) -> Submitted:
        """Queue a run, with `message` in its inbox. If the run id or the idempotency key was there before, nothing is
        queued, and the message goes to the run that is there (RunFinishedError if it has ended)."""

    async def deliver(self, run_id: str, message: Message) -> Delivered:
        """Put a message into a run's inbox and wake it if it waits for that.

        Raises RunFinishedError (but gives an applied update's answer, and a cancel the terminal status),
        RunNotWaitingError for a resume of no open interrupt (`name` "": the only open one), InboxFullError. A cancel
        ends a run that never started; a pause stops one that isn't running at once."""

    async def unpause(self, run_id: str) -> RunStatus:
        """Paused to queued, or take back a pause that wasn't read yet. TransitionRefused for what isn't paused."""

    async def retry(self, run_id: str) -> RunStatus:
        """Failed or cancelled to queued, journal and inbox kept. TransitionRefused in any other status."""

    async def status(self, run_id: str) -> RunStatus: ...

    async def result(self, run_id: str) -> Result | None:
        """None while it is unfinished."""

    async def read_update(self, run_id: str, update_id: str) -> Applied | None:
        """An update's answer; None while it has none."""

    async def detail(self, run_id: str) -> RunDetail: ...

    async def origin(self, run_id: str) -> Origin:
        """Cheap: for who only wants to know whose run it is."""

    async def outlook(self, run_id: str) -> Outlook:
        """What stands between the run and its start."""

    async def events(self, run_id: str) -> list[bytes]:
        """Of the live link, oldest first; see events.py."""

    async def events_of(self, run_id: str, start: int, limit: int | None = None) -> list[bytes]:
        """Of exactly this link, from number `start` (0 is the first) on, `limit` at most. A link without events has
        none."""

    async def history(self, run_id: str) -> History:
        """Of exactly this link."""

    async def ask(self, run_id: str, query: Query, *, seconds: float) -> None:
        """Put a question where a worker finds it for so long. Nothing is written to the run."""

    async def read_answer(self, query: Query) -> bytes | None: ...

    def on_change(self, run_id: str, callback: Callable[[], None]) -> Subscription:
        """Called when the run's status changes, an update or a query of it is answered, or that may have been."""


class RunHolder(Protocol):
    """The worker's side."""

    async def claim(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> Claims:
        """Up to `n` runs of these (name, version) pairs, or unstamped of these names, in turn over the owners. Due
        timers fire first."""

    async def next_due(self) -> float | None:
        """When the next timer of any run falls due."""

    async def append(self, lease: Lease, change: Change) -> Reply:
        """Write the change. Concurrent calls share round trips, so no further grouping is needed."""

    async def unread(self, lease: Lease, seen: int) -> tuple[Unread, ...]:
        """Messages numbered above `seen`."""

    async def park(self, lease: Lease, change: Change, waits: Sequence[Wait]) -> Reply:
        """Write the change; then, unless a message numbered above `seen` is one that would wake the run, let it go
        until a deadline or such a message."""

    async def pause(self, lease: Lease, change: Change, reason: bytes, *, failed: bool = False) -> None:
        """Write the change and let the run go until `unpause` or a cancel. One that `failed` goes on by `retry`, and a
        cancel ends it at once, since no body is left that could clean up."""

    async def release(self, lease: Lease, change: Change | None = None) -> None:
        """Write the change and give the run back to the queue, uncharged."""

    async def finish(self, lease: Lease, change: Change, end: End) -> Finished:
        """Write the change and end the run: its result stands, its parent gets it, its children are cancelled unless
        abandoned, all its keys live for `retention` more."""

    async def heartbeat(self, worker: str, held: Mapping[Lease, int]) -> Beat:
        """Raise the worker's counters. `held`: every lease it has, with the number of the last message seen. What the
        store thinks it holds beyond that is put back, if a claim's answer was lost."""

    async def beats(self) -> list[Suspect]:
        """All workers' counters."""

    async def reap(self, suspect: Suspect) -> int:
        """Requeue a dead worker's runs, unless its counter has moved. How many there were."""

    async def leave(self, worker: str) -> None:
        """A clean end: the worker's counters go; what it still holds is requeued uncharged."""

    async def relay(self) -> int:
        """Send on what dead processes left in the outbox. How many messages there were."""

    async def questions(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> tuple[Query, ...]:
        """Take questions to runs this worker holds, and to runs of these that nobody holds."""

    async def answer(self, query: Query, answer: bytes) -> None: ...

    def on_ready(self, callback: Callable[[], None]) -> Subscription:
        """Called when runs or questions may be there to be taken."""

    def on_inbox(self, worker: str, callback: Callable[[str], None]) -> Subscription:
        """Called with the run id when a run this worker holds has got a message; "" if any may have."""


class ScheduleStore(Protocol):
    """Schedules: the store keeps them and says which are due; what a fire time is, its caller knows."""

    async def put_schedule(self, schedule: Schedule, *, expected: int | None = None) -> bool:
        """Write it if its stored revision is `expected` (0: it must be new; None: whatever it is). The revision grows.
        False if it was another one, unless the same was written already."""

    async def read_schedule(self, schedule_id: str) -> Schedule | None: ...

    async def delete_schedule(self, schedule_id: str) -> bool: ...

    async def schedules(self) -> list[Schedule]:
        """All, by id."""

    async def due_schedules(self) -> list[Schedule]:
        """Those that are due by the store's clock and not paused. Start the run with the fire time in its idempotency
        key, then write the next fire time with `expected`: one run a fire time, however many workers there are."""


class RunStore(
    RunSender,
    RunHolder,
    ScheduleStore,
    RunLister,
    BatchStore,
    BackfillStore,
    RecordFinder,
    RedriveStore,
    Registry,
    Protocol,
):
    """Everything about submitted runs."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...
