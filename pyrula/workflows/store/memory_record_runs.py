"""Runs of records in memory: what is known of each, and the rules by which it changes. All calls are synchronous, so
each is atomic."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyrula.workflows.store.lanes import HANDED_OVER
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.memory_board import Board, Chain
from pyrula.workflows.store.messages import MAX_UNREAD, Applied, Child, Delivered, Message, Unread, Wait
from pyrula.workflows.store.record_changes import RecordChange, RecordId
from pyrula.workflows.store.records import ENDED, MAX_ADDRESSED, TOLD_SECONDS, Registration
from pyrula.workflows.store.refusals import InboxFullError, RunFinishedError, RunNotFoundError, not_waiting
from pyrula.workflows.store.runs import RETENTION_SECONDS, Query

__all__ = ["Address", "Record", "RecordRuns"]


@dataclass(slots=True)
class Record:
    """One run of a record."""

    created_at: float
    status: RunStatus = RunStatus.QUEUED
    last: int = 0
    done_by_clients: int = 0
    restarts: int = 0
    cancel: bool = False
    holder: str = ""
    number: int = 0
    attempt: int = 1
    waits: tuple[Wait, ...] = ()
    inbox: dict[int, Unread] = field(default_factory=dict)
    known: dict[tuple[str, str], tuple[Applied | None, float | None]] = field(default_factory=dict)
    interrupts: dict[str, bytes] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    value: bytes = b"null"
    error: bytes | None = None
    params: bytes = b""
    rows: Sequence[tuple[int, bytes]] = ()
    finished_at: float | None = None
    until: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


@dataclass(slots=True)
class Lane:
    """A lane of which a record was handed over: its floor, its head if it is away, and what is queued behind that, ids
    of runs with their sizes."""

    floor: int = -1
    head: str = ""
    queue: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(self.queue.values())


@dataclass(slots=True)
class Address:
    """A source's runs."""

    registration: Registration
    incarnation: int
    below: int
    news: int = 0
    board: dict[int, int] = field(default_factory=dict)
    questions: dict[str, tuple[Query, float]] = field(default_factory=dict)
    lanes: dict[bytes, Lane] = field(default_factory=dict)


class RecordRuns:
    """All that is known of records' runs; shared by the store's twins."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.addresses: dict[tuple[int, str], Address] = {}
        self.runs: dict[RecordId, Record] = {}
        self.gone: dict[RecordId, float] = {}

    def expire(self) -> None:
        """Drop what has outlived its time."""
        now = self.board.now()
        for record in [one for one, run in self.runs.items() if run.until is not None and run.until <= now]:
            del self.runs[record]
        for record in [one for one, until in self.gone.items() if until <= now]:
            del self.gone[record]

    def address_of(self, record: RecordId) -> Address:
        """Raises RunNotFoundError."""
        address = self.addresses.get((record.shard, record.address))
        if address is None:
            raise RunNotFoundError(str(record))
        return address

    def is_live(self, run_id: str) -> bool:
        """Whether a run that was handed over hasn't ended."""
        chain = self.board.chains.get(run_id)
        return chain is not None and not chain.finished

    def is_elsewhere(self, record: RecordId) -> bool:
        """Whether it was handed over. One that ended may be of a former record of that position, as with `see`."""
        self.board.expire()
        run_id = str(record)
        if run_id not in self.board.chains:
            return False
        address = self.addresses.get((record.shard, record.address))
        if self.is_live(run_id) or address is None:
            return True
        if record.position < address.below or address.board.get(record.position) == HANDED_OVER:
            return True
        lane = self.board.chains[run_id].lane
        return lane is not None and lane in address.lanes and record.position <= address.lanes[lane].floor

    def ahead(self, chain: Chain) -> tuple[int, str]:
        """How many runs of its lane are ahead of one that is queued there, and the head."""
        record = RecordId.parse(chain.id)
        assert record is not None
        assert chain.lane is not None
        lane = self.address_of(record).lanes[chain.lane]
        return list(lane.queue).index(chain.id) + 1, lane.head

    def leave_lane(self, chain: Chain) -> None:
        """The run of a record ends, and its lane goes on: behind a head the next of the queue becomes the head, and
        ready unless it is paused."""
        record = RecordId.parse(chain.id)
        assert record is not None
        address = self.addresses.get((record.shard, record.address))
        if address is None or chain.lane is None or chain.lane not in address.lanes:
            return
        lane = address.lanes[chain.lane]
        if chain.behind:
            del lane.queue[chain.id]
            chain.behind = False
        elif lane.head == chain.id:
            lane.head = next(iter(lane.queue), "")
            if lane.head:
                del lane.queue[lane.head]
                following = self.board.chains[lane.head]
                following.behind = False
                if following.status is RunStatus.QUEUED:
                    self.board.enqueue(following)

    def see(self, record: RecordId) -> Record | None:
        """None if there may be such a run of which nothing is known."""
        self.expire()
        run = self.runs.get(record)
        address = self.addresses.get((record.shard, record.address))
        below, board = (0, {}) if address is None else (address.below, address.board)
        # one that ended is on the board until it is passed: else it is of a former record of that position
        if run is not None and not (run.ended and record.position >= below and record.position not in board):
            return run
        if address is None or record in self.gone:
            raise RunNotFoundError(str(record))
        if address.incarnation != record.incarnation or record.position < below:
            raise RunNotFoundError(str(record))
        return None

    def pass_on(self, run_id: str, message: Message) -> None:
        """A child's result, to the run of a record that may be gone."""
        record = RecordId.parse(run_id)
        if record is not None and not self.is_elsewhere(record):
            with suppress(RunNotFoundError, RunFinishedError):
                self.put(record, message)

    def tell_changed(self, record: RecordId) -> None:
        """Whoever waits for the run is to look."""
        self.board.changed(str(record))

    def put(self, record: RecordId, message: Message | None) -> Delivered:
        """A message; None: its end is to be written down."""
        run, address = self.see(record), self.addresses.get((record.shard, record.address))
        text = str(record)
        if run is None:
            assert address is not None
            if message is not None and message.kind == "resume":
                raise not_waiting(text, RunStatus.QUEUED, message.name, [])
            if len(address.board) >= MAX_ADDRESSED:
                crowd = f"can't be addressed: {MAX_ADDRESSED} other runs of its partition are, and haven't ended"
                raise InboxFullError(text, RunStatus.QUEUED, crowd)
            run = self.runs[record] = Record(self.board.now())
        if message is None:
            if not run.ended:
                self.notify(record, run)
            return Delivered(text, run.status)
        if message.kind == "cancel":
            duplicate = run.cancel
            if not (run.ended or run.cancel):
                run.cancel = True
                run.events.append(self.board.event("cancel_requested"))
                self._post(record, run, message)
            return Delivered(text, run.status, duplicate)
        applied, known = self._known(run, message)
        if known and (applied is not None or message.kind != "update" or not run.ended):
            return Delivered(text, run.status, True, applied)
        if message.kind == "resume":
            message = self._resume_of(record, run, message)
        elif run.ended:
            raise RunFinishedError(text, run.status, f"has ended as {run.status}")
        if message.kind == "pause":
            asked = any(unread.message.kind == "pause" for unread in run.inbox.values())
            if run.status is RunStatus.PAUSED or asked:
                return Delivered(text, run.status, True)
            self._post(record, run, message)
            return Delivered(text, run.status)
        if message.kind != "child" and len(run.inbox) >= MAX_UNREAD:
            raise InboxFullError(text, run.status, f"has {len(run.inbox)} unread messages")
        if message.kind == "resume":
            del run.interrupts[message.name]
        run.known[message.kind, message.id] = (None, None)
        self._post(record, run, message)
        return Delivered(text, run.status)

    def _known(self, run: Record, message: Message) -> tuple[Applied | None, bool]:
        found = run.known.get((message.kind, message.id))
        if found is None or (found[0] is not None and found[0].outcome == "rejected"):
            return None, False
        return found[0], True

    def _resume_of(self, record: RecordId, run: Record, message: Message) -> Message:
        waiting = [] if run.ended else list(run.interrupts)
        if message.name in waiting:
            return message
        if message.name == "" and len(waiting) == 1:
            return message._replace(name=waiting[0])
        raise not_waiting(str(record), run.status, message.name, waiting)

    def _post(self, record: RecordId, run: Record, message: Message) -> None:
        run.last += 1
        run.inbox[run.last] = Unread(run.last, message, self.board.now())
        self.notify(record, run)

    def notify(self, record: RecordId, run: Record) -> None:
        """A client has done something to the run: its holder is to look."""
        address = self.addresses.get((record.shard, record.address))
        if address is None:
            return
        run.done_by_clients += 1
        address.board[record.position] = run.done_by_clients
        self.tell_holder(address, str(record))

    def tell_holder(self, address: Address, run_id: str) -> None:
        """There is something to look at."""
        address.news += 1
        for callback in self.board.on_inbox.get(address.registration.worker, ())[:]:
            callback(run_id)

    def write(self, change: RecordChange) -> bool:
        """A change; its rows are written by who has the journal, if this is no repetition (False)."""
        record, now = change.run_id, self.board.now()
        if self.is_elsewhere(record):
            return False
        try:
            run = self.see(record)
        except RunNotFoundError:
            run = None
        if run is None:
            run = self.runs[record] = Record(now)
        if run.ended or (run.holder == change.holder and change.number <= run.number):
            return False
        run.holder, run.number, run.status, run.waits = change.holder, change.number, change.status, tuple(change.waits)
        run.error = change.error
        run.attempt = change.attempt or run.attempt
        self._consume(run, change.consumed, now)
        for applied in change.applied:
            run.known["update", applied.update_id] = (applied, now)
        run.interrupts.update(change.opened)
        for wait_id in change.closed:
            run.interrupts.pop(wait_id, None)
        for child in change.children:
            run.children.setdefault(child.run_id, child)
        run.events += change.events
        self.address_of(record).board.setdefault(record.position, run.done_by_clients)
        if change.end is not None:
            self._end(record, run, change)
        self.tell_changed(record)
        return True

    def _consume(self, run: Record, numbers: Sequence[int], now: float) -> None:
        for number in numbers:
            unread = run.inbox.pop(number, None)
            if unread is None:
                continue
            kind, message_id = unread.message[:2]
            if kind == "child":
                run.children.pop(message_id, None)
            if (kind, message_id) in run.known:
                run.known[kind, message_id] = (run.known[kind, message_id][0], now)
        if numbers:
            run.known = {
                key: found for key, found in run.known.items() if found[1] is None or found[1] + RETENTION_SECONDS > now
            }

    def _end(self, record: RecordId, run: Record, change: RecordChange) -> None:
        assert change.end is not None
        status, run.value, run.error, seconds, run.params, run.rows = change.end
        run.status, run.waits, run.interrupts = RunStatus(status), (), {}
        run.finished_at = self.board.now()
        if not seconds and not run.done_by_clients:
            self.address_of(record).board.pop(record.position, None)
            del self.runs[record]
        else:
            run.until = run.finished_at + (seconds or TOLD_SECONDS)
            self.address_of(record).board[record.position] = ENDED
        children, run.children = run.children, {}
        for child in children.values():
            if child.on_parent_close == "cancel":
                self.board.cancel(child.run_id, Message("cancel", "cancel"))
