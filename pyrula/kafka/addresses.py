"""The addressed runs of one partition in this process: what clients do to them is noticed here and brought to the run.

The partition's holder is told of every run that somebody has addressed (`address_book` says when to look). What the
board says that isn't known yet is read then, and questions are answered. A record that nobody addresses costs nothing
here.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from pyrula.kafka.answering import answered
from pyrula.kafka.attended import AttendedRun
from pyrula.kafka.attending import AttendingStore, Leaving, Slots, Verdict
from pyrula.kafka.away import AwayLanes
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord, served_name
from pyrula.kafka.run_host import PARK_AFTER
from pyrula.kafka.stored_record import encode_record
from pyrula.workflows.clock import Clock
from pyrula.workflows.engine.retry import rows_for_retry
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.execution import Execution, LetGo, Outcome
from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.store.lanes import HANDED_OVER, NO_QUEUE, HandedOver, HandingOver, LaneBounds, LaneState
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.payloads import Failure, encode_failure, encode_refusal, failure_of
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.record_places import answer_where
from pyrula.workflows.store.records import ENDED, WHERE, Registration
from pyrula.workflows.store.runs import Query
from pyrula.workflows.worker.patience import ask_until_answered
from pyrula.workflows.worker.questions import answer

__all__ = ["Addresses", "Registered"]

log = logging.getLogger("pyrula.kafka")

QUERY_SECONDS: Final = 10.0
REPLAYS: Final = 4
"""So many queries of a partition's ended runs are answered at the same time."""
MOST_BYTES: Final = 4 << 20


class Registered:
    """A partition whose runs can be reached, and what was known of them then."""

    __slots__ = ("board", "lanes", "registration")

    def __init__(self, registration: Registration, board: dict[int, int], lanes: dict[bytes, LaneState]) -> None:
        self.registration = registration
        self.board = board
        self.lanes = lanes


class Addresses:
    """The addressed runs of one partition, from its opening to its end."""

    def __init__(
        self,
        partition: Partition,
        registered: Registered,
        store: AttendingStore,
        slots: Slots,
        verdict: Verdict,
        clock: Clock,
        end: Callable[[], int | None],
        hands_over: bool,
        bounds: LaneBounds,
    ) -> None:
        self.partition = partition
        self._hands_over = hands_over and store.hands_over and not partition.binding.exactly_once
        self._bounds = bounds if self._hands_over else NO_QUEUE
        self.registration = registered.registration
        self.news = -1
        self._end = end
        self._store = store
        self._slots = slots
        self._verdict = verdict
        self._clock = clock
        self._counts: dict[int, int] = {}
        if registered.lanes:
            partition.away = self._away_lanes(registered.lanes)
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._answering: set[asyncio.Task[None]] = set()
        self._replaying = asyncio.Semaphore(REPLAYS)
        for position, count in registered.board.items():
            if count in (ENDED, HANDED_OVER):
                attended = self._of(position)
                attended.ended, attended.handed_over = True, count == HANDED_OVER
                self._counts[position] = count
            elif not partition.is_over(position):
                self._of(position)

    def _of(self, position: int) -> AttendedRun:
        attended = self.partition.addressed.get(position)
        if attended is None:
            departure = self._hand_over if self._hands_over else None
            attended = AttendedRun(
                self.partition, position, self._store, self._slots, self._verdict, self._clock, departure
            )
            self.partition.addressed[position] = attended
            self._counts.setdefault(position, 0)
        assert isinstance(attended, AttendedRun)
        return attended

    # what the partition and its endings call

    def attend(self, run: Execution, seconds: float) -> None:
        """The body is about to do what others may take part in, or to wait for so long."""
        if seconds > PARK_AFTER and run.host is self.partition:
            assert isinstance(run, RecordRun)
            self._of(run.origin.offset).begin(run)

    def on_outcome(self, run: RecordRun, outcome: Outcome) -> None:
        """A body has ended. One that is to be kept for what it returned is attended from now on."""
        if run.host is not self.partition or self.partition.binding.keep == "all":
            self._of(run.origin.offset).on_outcome(run, outcome)

    def on_failure(self, record: RawRecord, error: BaseException, run: RecordRun | None) -> None:
        """What a record's run failed with, once and for all; no run: it wasn't made one."""
        if record.offset in self.partition.addressed or self.partition.binding.keep != "none":
            self._of(record.offset).on_failure(record, error, run)

    def retry_later(self, run: RecordRun, delay: float) -> bool:
        """Whether the next round of a run is left to the store: a long delay, where it may be handed over."""
        if delay <= PARK_AFTER or not self._hands_over:
            return False
        self._of(run.origin.offset).retry_later(run, delay)
        return True

    def hold(self, record: RawRecord, text: str, run: RecordRun | None) -> None:
        """A record can't go on until somebody says so, then by this run."""
        self._of(record.offset).hold(record, text, run)

    def block(
        self, record: RawRecord, error: BaseException, attempt: int, run: RecordRun | None, then: Callable[[bool], None]
    ) -> bool:
        """Whether a record's run that failed once and for all, and its lane with it, may be left to the store; then
        `then` is told whether it has it. No run: it was not made one."""
        if not self._hands_over:
            return False
        journal = None if run is None or run.journal is None else Journal.load(rows_for_retry(run.journal, error))
        failure = encode_failure(failure_of(error))
        self._of(record.offset).block(Leaving(record, max(attempt, 1), 0, journal, failure=failure), then)
        return True

    async def _hand_over(self, leaving: Leaving) -> HandedOver:
        """To the store, with its lane; what is behind it then waits until the lane is home."""
        partition, binding, record = self.partition, self.partition.binding, leaving.record
        journal = leaving.journal
        if journal is not None and journal.size > MOST_BYTES:
            return HandedOver(False)  # one script has to take it whole, while the server does nothing else
        away = self._lanes()
        lane = None if binding.release_lane else away.lane(record)
        run_id = RecordId.parse(partition.run_id(record.offset))
        assert run_id is not None
        handing = HandingOver(
            run_id,
            lane,
            served_name(binding.cluster, binding.group, partition.tp.topic),
            encode_record(record, partition.tp),
            leaving.attempt,
            leaving.seen,
            leaving.waits,
            () if journal is None else journal.rows(),
            leaving.failure,
        )
        answer = await ask_until_answered(lambda: self._store.hand_over(self.registration, partition.token, handing))
        if answer.taken and not partition.closed:
            self._counts[record.offset] = HANDED_OVER
            if lane is not None:
                away.left(lane, record.offset, str(run_id))
        return answer

    def _lanes(self) -> AwayLanes:
        if not isinstance(self.partition.away, AwayLanes):
            self.partition.away = self._away_lanes({})
        return self.partition.away

    def _away_lanes(self, found: dict[bytes, LaneState]) -> AwayLanes:
        slots, verdict = self._slots, self._verdict
        return AwayLanes(self.partition, self.registration, found, self._store, self._bounds, slots.offer, verdict)

    async def passed(self, below: int) -> None:
        """Everything under an offset is committed."""
        positions, away = [position for position in self._counts if position < below], self.partition.away
        lanes = away if isinstance(away, AwayLanes) and away.under(below) else None
        if positions or lanes is not None:
            gone = await self._store.pass_records(self.registration, self.partition.token, below, positions)
            if lanes is not None:
                lanes.forget(gone)
            for position in positions:
                del self._counts[position]
                self.partition.addressed.pop(position, None)

    def close(self) -> None:
        """The partition was let go."""
        for attended in self.partition.addressed.values():
            attended.let_go()
        for task in (self._looking, *self._answering):
            if task is not None:
                task.cancel()
        if isinstance(self.partition.away, AwayLanes):
            self.partition.away.close()

    # what clients did

    def look(self) -> None:
        """Somebody has done something to a run of the partition, or asked it."""
        self._look_again = True
        if self._looking is None and not self.partition.closed:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name=f"look at {self.partition.tp}")

    async def _look(self) -> None:
        shard, address = self.partition.shard, self.registration.address
        try:
            while self._look_again and not self.partition.closed:
                self._look_again = False
                board = await self._store.board(shard, address)
                for position, count in board.items():
                    await self._notice(position, count)
                for query in await self._store.take_questions(shard, address):
                    task = asyncio.get_running_loop().create_task(
                        answer(self._store, query, self._ask, QUERY_SECONDS), name=f"query {query.name}"
                    )
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
        except LeaseLost:
            pass  # the next flush or commit hears of it, too
        except StoreError as error:
            self.news = -1
            log.warning("%s[%d]: its runs' messages can't be read: %s", *self.partition.tp, error)
        finally:
            self._looking = None

    async def _notice(self, position: int, count: int) -> None:
        partition = self.partition
        if count == HANDED_OVER:
            self._counts[position] = count  # redriven, perhaps: it goes from the board with its commit
        if partition.closed or count in (ENDED, HANDED_OVER) or self._counts.get(position) == count:
            return
        self._counts[position] = count
        if partition.is_over(position) and position not in partition.addressed:
            del self._counts[position]
            record = RecordId.parse(partition.run_id(position))
            assert record is not None
            await self._store.forget_record(self.registration, partition.token, record)
            return
        attended = self._of(position)
        run = partition.running.get(position)
        if run is not None and run.host is partition:
            attended.begin(run)
        attended.look()

    async def _ask(self, query: Query) -> bytes:
        record = RecordId.parse(query.run_id)
        partition = self.partition
        if record is None or str(record) != partition.run_id(record.position):
            return answer_where(None, [])
        attended = partition.addressed.get(record.position)
        run = partition.running.get(record.position)
        if query.name == WHERE:
            return self._where(record.position, attended, run)
        if isinstance(attended, AttendedRun) and run is None:
            run = attended.run
        if run is None and partition.is_over(record.position):
            return await self._ask_journal(record, query)
        if run is None:
            return encode_refusal(Failure("", "the run hasn't begun"))
        try:
            return await run.query(query.name, query.payload)
        except LetGo:
            return encode_refusal(Failure("", "the run was let go; ask again whoever has its partition now"))

    async def _ask_journal(self, record: RecordId, query: Query) -> bytes:
        if await self._store.read_record(record, 0) is None:
            return encode_refusal(Failure("", "the run has ended, and nothing of it is kept"))
        async with self._replaying:
            return await answered(self.partition.binding, await self._store.history(query.run_id), query, self._clock)

    def _where(self, position: int, attended: Any, run: RecordRun | None) -> bytes:
        partition = self.partition
        if run is not None:
            began = self._clock.now().timestamp() - (monotonic() - run.started)
            return answer_where(RunStatus.RUNNING, [["started", began, {"worker": "", "attempt": run.attempt}]])
        if isinstance(attended, AttendedRun) and not attended.ended:
            return answer_where(attended.status, [])
        end = self._end()
        if partition.is_over(position) or (end is not None and position >= end):
            return answer_where(None, [])
        return answer_where(RunStatus.QUEUED, [])
