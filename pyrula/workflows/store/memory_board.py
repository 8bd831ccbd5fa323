"""Submitted runs in memory: the records and what every part of the store needs of them. All calls are synchronous, so
each is atomic."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.events import encode_event
from pyrula.workflows.store.history import History
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import PARKED, TERMINAL, RunStatus
from pyrula.workflows.store.memory_buffers import Batches
from pyrula.workflows.store.memory_cohorts import Queued
from pyrula.workflows.store.memory_gates import Gates
from pyrula.workflows.store.memory_ready import Class, SortKey
from pyrula.workflows.store.messages import (
    Applied,
    Child,
    Interrupt,
    Lease,
    Message,
    Parent,
    Unread,
    Wait,
    child_result,
    earliest,
    wakes,
)
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.registry import Enlisted
from pyrula.workflows.store.runs import RETENTION_SECONDS, Query, Schedule

Holder = tuple[str, int]

_CANCEL = Message("cancel", "cancel")


@dataclass(slots=True)
class Known:
    """A message id that was met: an update's answer, and when it was consumed."""

    applied: Applied | None = None
    consumed_at: float | None = None


@dataclass(slots=True)
class Chain:
    """A chain of runs, as its live link stands."""

    id: str
    name: str
    version: str | None
    owner: str
    metadata: bytes
    params: bytes
    submitted: bytes
    idempotency_key: str | None
    parent: Parent | None
    key: SortKey
    created_at: float
    stamp: Stamp | None = None
    paid: bool = False
    since: float = 0.0
    link: int = 1
    status: RunStatus = RunStatus.QUEUED
    epoch: int = 0
    worker: str | None = None
    number: int = 0
    attempt: int = 1
    deaths: int = 0
    alone: bool = False
    doomed: bool = False
    retried: bool = False
    cancel: bool = False
    counter: int = 0
    left_by: Holder | None = None
    ended_by: Holder | None = None
    continued_by: Holder | None = None
    finished_at: float | None = None
    retention: float = RETENTION_SECONDS
    queued_at: float = 0.0
    value: bytes = b"null"
    error: bytes | None = None
    waits: list[Wait] = field(default_factory=list)
    rows: dict[int, bytes] = field(default_factory=dict)
    inbox: dict[int, Unread] = field(default_factory=dict)
    known: dict[tuple[str, str], Known] = field(default_factory=dict)
    interrupts: dict[str, bytes] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    links: dict[int, tuple[float, History, list[bytes]]] = field(default_factory=dict)
    failed: bool = False
    """Paused since it failed."""
    behind: bool = False
    """In a lane's queue, and so in no other."""
    lane: bytes | None = None
    """Of a record's run."""
    ahead: "Callable[[Chain], tuple[int, str]] | None" = None
    """How many are ahead of it there, and the head."""
    on_end: "Callable[[Chain], None] | None" = None
    """Lets its lane go on."""

    @property
    def run_id(self) -> str:
        return str(RunId(0, self.id, self.link))

    @property
    def finished(self) -> bool:
        return self.status in TERMINAL

    def unread(self, seen: int = 0) -> tuple[Unread, ...]:
        return tuple(unread for number, unread in self.inbox.items() if number > seen)

    def open_interrupts(self) -> tuple[Interrupt, ...]:
        return () if self.finished else tuple(Interrupt(*pair) for pair in self.interrupts.items())

    def history(self) -> History:
        rows = tuple(sorted(self.rows.items()))
        status, attempt = self.status, self.attempt
        return History(
            self.run_id, self.name, self.version, status, self.params, rows, attempt, self.owner, self.metadata
        )


@dataclass(slots=True)
class Asked:
    """A question, for workers of the class that its run had."""

    query: Query
    cls: Class
    until: float


class Board:
    """All runs of a memory store, shared by its twins."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.chains: dict[str, Chain] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.queue = Gates()
        self.held: dict[str, dict[str, None]] = {}
        self.beats: dict[str, int] = {}
        self.strays: dict[str, set[Lease]] = {}
        self.counters = itertools.count(1)
        self.queries: dict[str, Asked] = {}
        self.answers: dict[str, tuple[bytes, float]] = {}
        self.plans: dict[str, Schedule] = {}
        self.workers: dict[str, tuple[float, tuple[Enlisted, ...]]] = {}
        self.batches = Batches(self.now)
        self.on_ready: list[Callable[[], None]] = []
        self.on_inbox: dict[str, list[Callable[[str], None]]] = {}
        self.on_change: dict[str, list[Callable[[], None]]] = {}
        self._timers: list[tuple[float, str]] = []
        self._ends: list[tuple[float, int, str]] = []
        self._serial = itertools.count()
        self._outbox: deque[tuple[str, Message]] = deque()
        self._relaying = False
        # a child's result for whom this board doesn't know
        self.pass_elsewhere: Callable[[str, Message], None] = lambda run_id, message: None

    def now(self) -> float:
        return self.clock.now().timestamp()

    def microseconds(self) -> int:
        return round(self.now() * 1e6)

    def event(self, kind: str, **data: object) -> bytes:
        return encode_event(kind, self.now(), **data)

    def find(self, run_id: str) -> Chain:
        self.expire()
        wanted = RunId.parse(run_id)
        chain = self.chains.get(wanted.chain)
        if chain is None or wanted.link > chain.link:
            raise RunNotFoundError(run_id)
        return chain

    def expire(self) -> None:
        """Drop what has outlived its retention."""
        now = self.now()
        while self._ends and self._ends[0][0] <= now:
            at, _, chain_id = heapq.heappop(self._ends)
            chain = self.chains.get(chain_id)
            if chain is None:
                continue
            if chain.finished_at is not None and chain.finished_at + chain.retention <= at:
                self.forget(chain)
                continue
            chain.links = {link: kept for link, kept in chain.links.items() if kept[0] + RETENTION_SECONDS > at}

    def forget(self, chain: Chain) -> None:
        del self.chains[chain.id]
        if chain.idempotency_key is not None:
            self.keys.pop((chain.name, chain.idempotency_key), None)

    def expire_later(self, chain: Chain) -> None:
        heapq.heappush(self._ends, (self.now() + chain.retention, next(self._serial), chain.id))

    def held_by(self, lease: Lease) -> Chain:
        """The chain, if this lease is the present one."""
        try:
            chain = self.find(lease.run_id)
        except RunNotFoundError:
            raise LeaseLost(f"run {lease.run_id} is not in the store any more") from None
        if not (
            chain.status is RunStatus.RUNNING
            and (chain.worker, chain.epoch) == lease[1:]
            and chain.run_id == lease.run_id
        ):
            raise LeaseLost(f"run {lease.run_id} is not held by {lease.worker} in epoch {lease.epoch} any more")
        return chain

    def enqueue(self, chain: Chain) -> None:
        chain.status = RunStatus.QUEUED
        chain.queued_at = chain.since = self.now()
        chain.waits = []
        cls = (chain.name, chain.version)
        queued = Queued(chain.id, cls, chain.owner, chain.key, chain.stamp, chain.paid)
        self.queue.enqueue(queued, self.microseconds())
        self.changed(chain.id)
        self.tell_ready()

    def put_behind(self, chain: Chain) -> None:
        """It is queued in its lane, where no claim finds it."""
        chain.status, chain.behind = RunStatus.QUEUED, True
        chain.queued_at = chain.since = self.now()
        self.changed(chain.id)

    def let_go(self, chain: Chain) -> None:
        """Nobody holds the run any more."""
        if chain.worker is not None:
            held = self.held.get(chain.worker, {})
            held.pop(chain.id, None)
            if not held:
                self.held.pop(chain.worker, None)
        chain.worker = None
        self.queue.release(chain.id, chain.name, chain.stamp, self.microseconds())

    def wait(self, chain: Chain, status: RunStatus, waits: list[Wait]) -> None:
        chain.status = status
        chain.waits = waits
        chain.since = self.now()
        deadline = earliest(waits)
        if deadline is not None and round(deadline * 1e6) <= self.microseconds():
            self.enqueue(chain)
            return
        if deadline is not None:
            heapq.heappush(self._timers, (deadline, chain.id))
        self.changed(chain.id)
        # a slot may be free now
        self.tell_ready()

    def next_due(self) -> float | None:
        """When the next timer falls due: a run's, or a gate's."""
        run, gate = self._next_run(), self.queue.next_due()
        return min((due for due in (run, gate and gate[0] / 1e6) if due is not None), default=None)

    def _next_run(self) -> float | None:
        while self._timers:
            due, chain_id = self._timers[0]
            chain = self.chains.get(chain_id)
            if chain is not None and chain.status in PARKED and earliest(chain.waits) == due:
                return due
            heapq.heappop(self._timers)
        return None

    def fire(self) -> None:
        """Queue the runs whose time has come, and open the gates that have a token."""
        now = self.microseconds()
        self.queue.forget_full(now)
        while True:
            run, gate = self._next_run(), self.queue.next_due()
            moment = None if run is None else round(run * 1e6)
            if moment is not None and moment <= now and (gate is None or moment <= gate[0]):
                _, chain_id = heapq.heappop(self._timers)
                self.enqueue(self.chains[chain_id])
            elif gate is not None and gate[0] <= now:
                self.queue.fire(now)
                self.tell_ready()
            else:
                return

    def put(self, chain: Chain, message: Message) -> None:
        """Into the inbox, and wake whoever it concerns."""
        chain.counter += 1
        chain.inbox[chain.counter] = Unread(chain.counter, message, self.now())
        if chain.status is RunStatus.RUNNING and chain.worker is not None:
            for callback in self.on_inbox.get(chain.worker, ())[:]:
                callback(chain.run_id)
        elif (chain.status in PARKED and wakes(chain.waits, message.kind, message.name)) or (
            chain.status is RunStatus.PAUSED and message.kind == "cancel"
        ):
            self.enqueue(chain)

    def end(self, chain: Chain, status: RunStatus, value: bytes, error: bytes | None) -> None:
        """The run's last word: result, parent, children, retention."""
        self.queue.dequeue(chain.id, self.microseconds())
        self.let_go(chain)
        # a slot may be free now
        self.tell_ready()
        chain.status, chain.waits = status, []
        chain.value, chain.error = value, error
        chain.finished_at = self.now()
        self.expire_later(chain)
        if chain.on_end is not None:
            chain.on_end(chain)
        self.changed(chain.id)
        children, chain.children = chain.children, {}
        if chain.parent is not None:
            payload = child_result(chain.run_id, status, value, error)
            self._outbox.append((chain.parent.run_id, Message("child", chain.id, chain.parent.wait, payload)))
        for child in children.values():
            if child.on_parent_close == "cancel":
                self._outbox.append((child.run_id, _CANCEL))
        self._relay()

    def _relay(self) -> None:
        # what one of these ends adds to the outbox, and is sent on in its turn
        if self._relaying:
            return
        self._relaying = True
        while self._outbox:
            run_id, message = self._outbox.popleft()
            if message is _CANCEL:
                self.cancel(run_id, message)
            else:
                self.pass_on(run_id, message)
        self._relaying = False

    def pass_on(self, run_id: str, message: Message) -> None:
        """A child's result, to a parent that may be gone."""
        try:
            chain = self.find(run_id)
        except RunNotFoundError:
            self.pass_elsewhere(run_id, message)
            return
        key = (message.kind, message.id)
        if not chain.finished and key not in chain.known:
            chain.known[key] = Known()
            self.put(chain, message)

    def cancel(self, run_id: str, message: Message) -> None:
        try:
            chain = self.find(run_id)
        except RunNotFoundError:
            return
        if chain.finished or chain.cancel:
            return
        chain.cancel = True
        if chain.epoch == 0 or chain.failed:
            chain.failed = False
            chain.events.append(self.event("cancelled"))
            self.end(chain, RunStatus.CANCELLED, b"null", None)
        else:
            chain.events.append(self.event("cancel_requested"))
            self.put(chain, message)

    def changed(self, chain_id: str) -> None:
        for callback in self.on_change.get(chain_id, ())[:]:
            callback()

    def tell_ready(self) -> None:
        for callback in self.on_ready[:]:
            callback()
