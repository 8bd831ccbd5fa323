"""One group of one cluster in this process: polls for all its bindings, opens and lets go of partitions, commits.

A call to the client's poll is always pending, also while every partition is paused or drains, so the group never takes
this member for dead. What poll returns goes at once to the partitions' own buffers. Everything of an assignment belongs
to its membership and ends with it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic

from aiokafka import TopicPartition

from pyrula.kafka.address_book import AddressBook
from pyrula.kafka.assignment import Assignment, LettingGo
from pyrula.kafka.binding import Binding
from pyrula.kafka.buffer import Bounds
from pyrula.kafka.client import BrokerError, GroupClient, Membership, MembershipLost, OutOfRange, Unreadable
from pyrula.kafka.committer import Committer
from pyrula.kafka.deaths import read_marks
from pyrula.kafka.events import Observer, RecordEvent, tell
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.opening import NotOpened, Opened, Opener, Postponed, stopped_by_loss
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Partition
from pyrula.kafka.record import RawRecord, record_identity
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.stores import WorkerStore
from pyrula.kafka.transactions import MANY, Transactor
from pyrula.workflows.errors import StoreError
from pyrula.workflows.group_commit import GroupCommit

log = logging.getLogger("pyrula.kafka")

POLL_SECONDS = 1.0
PROBE_SECONDS = 10.0
# Records taken from the client in one go.
MAX_RECORDS = 2_000
RETRY_SECONDS = 1.0
# A partition with a batch that can't be read is left alone for so long.
UNREADABLE_SECONDS = 10.0
# Producers that are being closed may take so long at the end.
STOP_SECONDS = 1.0
WATCH_SECONDS = 1.0


class GroupConsumer:
    """The one member of a group in this process, shared by all bindings of the group."""

    def __init__(
        self,
        group: str,
        pools: Mapping[str, Replayers],
        *,
        store: WorkerStore,
        commits: GroupCommit,
        options: KafkaOptions,
        budget: Callable[[], tuple[int, int]],
        observer: Callable[[], Observer | None],
        book: AddressBook | None = None,
    ) -> None:
        self.group = group
        self._book = book
        self.client = GroupClient(options, group, sorted(pools), options.isolation_level)
        self.assignment: Assignment | None = None
        self._trouble: str | None = None
        self._ailing: str | None = None
        self.failure: BaseException | None = None
        self._stopping = False
        self._store = store
        self._commits = commits
        self._options = options
        self._budget = budget
        self._observer = observer
        self._committer = Committer(self.client, store, options, self.fenced)
        self.tasks: list[asyncio.Task[None]] = []
        self._serve_with(pools)
        self._leaving: Assignment | None = None
        self._departure: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def problem(self) -> str | None:
        """Why nothing is read now; None while it works."""
        return self._ailing or self._trouble

    @property
    def partitions(self) -> Sequence[Partition]:
        """Partitions that run now."""
        return () if self.assignment is None else tuple(self.assignment.partitions.values())

    def lag(self, partition: Partition) -> int:
        """Offsets of a partition that are in the log and can't be committed yet, as far as its end is known."""
        return max(0, (self.client.end(partition.tp) or 0) - partition.tracker.committable())

    async def start(self) -> None:
        """Join the group. `tasks` must then live as long as the worker."""
        await self.client.start(self._assigned, self._revoked)
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self._poll(), name=f"poll {self.group}"),
            loop.create_task(self._committer.commit_regularly(self._current), name=f"commit {self.group}"),
            loop.create_task(self._watch(), name=f"watch {self.group}"),
        ]

    def _serve_with(self, pools: Mapping[str, Replayers]) -> None:
        self.pools = pools
        self._distinct_pools = list(dict.fromkeys(pools.values()))
        for pool in self._distinct_pools:
            pool.standing = self.client.standing
        self._letting_go = LettingGo(
            self.client, pools, self._store, self._commits, self._options, self._committer.commit_last
        )

    async def rebind(self, pools: Mapping[str, Replayers]) -> None:
        """Serve the same topics by other pools: what is assigned is let go of, as if revoked, and opened anew."""
        assignment = self.assignment
        await self._let_go()
        self._serve_with(pools)
        if assignment is not None and self.assignment is None and self.client.membership == assignment.membership:
            self._assigned(assignment.assigned, assignment.membership)

    async def stop(self) -> None:
        """Drain, commit, leave the group. Polling goes on until then."""
        self._stopping = True
        await self._let_go()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._committer.stop()
        await self.client.stop()
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=STOP_SECONDS)

    async def _watch(self) -> None:
        """The client's own tasks must live: it tells nobody when one of them ends, and then reads nothing for ever."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            ailment = self.client.ailment()
            if ailment is None or self._stopping:
                continue
            self._ailing = f"group {self.group}: the client doesn't work, {ailment}; it is made anew"
            log.error("%s", self._ailing)
            await self._let_go()
            try:
                await self.client.rebuild(self._assigned, self._revoked)
            except BrokerError as error:
                log.warning("%s; it is tried again", error)
            else:
                self._ailing = None

    def _current(self) -> Assignment | None:
        """What is to be committed for, also while it drains."""
        return self.assignment or self._leaving

    async def _poll(self) -> None:
        client = self.client
        refreshed = monotonic()
        while True:
            try:
                batch = await client.poll(POLL_SECONDS, MAX_RECORDS)
            except OutOfRange as error:
                for tp, position in error.positions.items():
                    self._out_of_range(tp, position)
                continue
            except Unreadable as error:
                self._unreadable(error.partition, str(error))
                continue
            except BrokerError as error:
                log.warning("%s", error)
                self._trouble = str(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._trouble = None
            assignment = self.assignment
            if assignment is None:
                continue
            for tp, records in batch.items():
                self._dispatch(assignment, tp, records)
            self._committer.count(sum([pool.stats.completed for pool in self._distinct_pools]))
            if not batch or monotonic() - refreshed > POLL_SECONDS:
                refreshed = monotonic()
                for tp, partition in list(assignment.partitions.items()):
                    self._advance(tp, partition)

    def _dispatch(self, assignment: Assignment, tp: TopicPartition, records: list[RawRecord]) -> None:
        partition = assignment.partitions.get(tp)
        if partition is None:
            probe = assignment.probes.get(tp)
            if probe is not None and not probe.done():
                probe.set_result(records[0])
            return
        if assignment.unopened:
            assignment.unopened.pop(tp, None)
        partition.receive(records)
        self._advance(tp, partition)
        self.pools[tp.topic].offer(partition)

    def _advance(self, tp: TopicPartition, partition: Partition) -> None:
        """Offsets that reading has passed without a record (markers, compaction) are no records."""
        position = self.client.position(tp)
        if position is not None and position > partition.tracker.position:
            partition.tracker.advance(position)
            partition.changed = True

    def _unreadable(self, tp: TopicPartition, why: str) -> None:
        """Set a partition aside for a while, so that the others go on."""
        self.client.pause([tp])
        assignment = self.assignment
        if assignment is None:
            return
        for other, one in assignment.partitions.items():
            reached, position = one.tracker.position, self.client.position(other)
            if position is not None and position > reached:
                self.client.seek(other, reached)
        partition, probe = assignment.partitions.get(tp), assignment.probes.get(tp)
        if probe is not None and not probe.done():
            probe.set_result(None)
        if partition is not None:
            if tp not in assignment.unopened:
                log.error("%s[%d] at offset %d: %s", tp.topic, tp.partition, partition.tracker.position, why)
            assignment.unopened[tp] = f"at offset {partition.tracker.position} {why}"
            partition.buffer.halt(True)
            asyncio.get_running_loop().call_later(UNREADABLE_SECONDS, partition.buffer.halt, False)

    def _out_of_range(self, tp: TopicPartition, position: int) -> None:
        assignment = self.assignment
        if assignment is None:
            return
        self.client.pause([tp])
        partition, probe = assignment.partitions.get(tp), assignment.probes.get(tp)
        if probe is not None and not probe.done():
            probe.set_result(None)
        if partition is not None:
            partition.buffer.halt(True)
            task = asyncio.get_running_loop().create_task(self._find_log(assignment, partition, position))
            partition.background.add(task)
            task.add_done_callback(partition.background.discard)

    async def _find_log(self, assignment: Assignment, partition: Partition, position: int) -> None:
        """Where the log is, now that `position` is not in it. What was read before stays in progress if it can."""
        tp, binding = partition.tp, partition.binding
        while True:
            try:
                first, end = (await self.client.offsets([tp]))[tp]
                break
            except BrokerError as error:
                log.warning("%s", error)
                await asyncio.sleep(RETRY_SECONDS)
        if position >= first:
            self._restart(partition, f"the log has no offset {position} ({first} to {end}): it was cut or made again")
        elif binding.on_out_of_range == "stop":
            assignment.unopened[tp] = stopped_by_loss(tp, position, first)
            log.error("%s", assignment.unopened[tp])
        else:
            self._tell_lost(tp, binding, position, first)
            partition.tracker.advance(first)
            partition.changed = True
            self.client.seek(tp, first)
            partition.buffer.halt(False)

    def _tell_lost(self, tp: TopicPartition, binding: Binding, start: int, stop: int) -> None:
        text = f"{stop - start} offsets from {start} to {stop - 1} were deleted by retention before they were read"
        log.warning("%s[%d]: %s", tp.topic, tp.partition, text)
        observer = self._observer()
        if observer is not None:
            tell(observer, RecordEvent("lost", binding.name, tp.topic, tp.partition, start, None, "", 0, text))

    def _assigned(self, partitions: frozenset[TopicPartition], membership: Membership) -> None:
        if self._stopping:
            return
        assignment = Assignment(membership, partitions)
        self.assignment = assignment
        log.info("group %s, generation %d: %d partitions assigned", self.group, membership.generation, len(partitions))
        self._open_soon(assignment, partitions)

    def _open_soon(
        self, assignment: Assignment, partitions: frozenset[TopicPartition], former: Partition | None = None
    ) -> None:
        coroutine = self._open(assignment, partitions, former)
        task = asyncio.get_running_loop().create_task(coroutine, name=f"open {self.group}")
        assignment.opening.add(task)
        task.add_done_callback(partial(self._opening_ended, assignment))

    def _opening_ended(self, assignment: Assignment, task: asyncio.Task[None]) -> None:
        assignment.opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error

    async def _open(
        self, assignment: Assignment, partitions: frozenset[TopicPartition], former: Partition | None
    ) -> None:
        """Open the partitions and let them run, each as soon as it can be; ends when all do, or with the assignment."""
        if former is not None:
            await former.emptied()
        bindings = {tp: self.pools[tp.topic].binding for tp in partitions}
        sources = {
            tp: record_identity(binding.cluster, binding.group, tp.topic, tp.partition)
            for tp, binding in bindings.items()
        }

        async def probe(tp: TopicPartition, offset: int) -> RawRecord | None:
            return await self._probe(assignment, tp, offset)

        transactors: dict[TopicPartition, Transactor] = {}

        async def fence(tp: TopicPartition) -> None:
            transactor = Transactor(self._options, self.group, tp, self._retire)
            await transactor.start()
            if (former := transactors.pop(tp, None)) is not None:
                self._retire(former)
            transactors[tp] = transactor

        opener = Opener(self.client, self._store, assignment, bindings, sources, probe, self._book, fence)
        try:
            await self._open_with(opener, assignment, sources, partitions, transactors)
        finally:
            for transactor in transactors.values():
                self._retire(transactor)

    async def _open_with(
        self,
        opener: Opener,
        assignment: Assignment,
        sources: Mapping[TopicPartition, bytes],
        partitions: frozenset[TopicPartition],
        transactors: dict[TopicPartition, Transactor],
    ) -> None:
        left = partitions
        while left and self.assignment is assignment:
            try:
                answers = await opener.open(left)
            except MembershipLost as error:
                log.warning("%s: its assignment is dropped", error)
                return
            except (BrokerError, StoreError) as error:
                answers = dict.fromkeys(left, Postponed(str(error)))
            left = self._opened(assignment, sources, answers, transactors)
            if left:
                await asyncio.sleep(RETRY_SECONDS)

    def _opened(
        self,
        assignment: Assignment,
        sources: Mapping[TopicPartition, bytes],
        answers: Mapping[TopicPartition, Opened | NotOpened | Postponed],
        transactors: dict[TopicPartition, Transactor],
    ) -> frozenset[TopicPartition]:
        """Let run what was opened. Answers the partitions to be tried again."""
        if self.assignment is not assignment:
            return frozenset()
        again: dict[str, list[TopicPartition]] = {}
        for tp, answer in answers.items():
            if isinstance(answer, Opened):
                assignment.unopened.pop(tp, None)
                self._run(assignment, tp, sources[tp], answer, transactors.pop(tp, None))
                continue
            assignment.unopened[tp] = answer.reason
            if isinstance(answer, NotOpened):
                log.error("%s", answer.reason)
            else:
                again.setdefault(answer.reason, []).append(tp)
        for reason, postponed in again.items():
            names = ", ".join(f"{tp.topic}[{tp.partition}]" for tp in sorted(postponed)[:5])
            log.warning(
                "group %s: %d partitions can't be opened yet (%s): %s", self.group, len(postponed), names, reason
            )
        self._share_out()
        return frozenset(tp for tp, answer in answers.items() if isinstance(answer, Postponed))

    def _run(
        self,
        assignment: Assignment,
        tp: TopicPartition,
        source: bytes,
        opened: Opened,
        transactor: Transactor | None,
    ) -> None:
        pool = self.pools[tp.topic]
        if opened.lost:
            self._tell_lost(tp, pool.binding, opened.start - opened.lost, opened.start)
        client = self.client
        marks, rows = read_marks(opened.claim)

        def fetch(on: bool) -> None:
            if self.assignment is not assignment:
                return
            if on:
                client.resume(tp)
            else:
                client.pause([tp])

        partition = Partition(
            tp,
            pool.binding,
            shard=self._store.shard_of(source),
            token=opened.claim.token,
            source=source,
            tracker=OffsetTracker(opened.start, opened.done),
            rows=rows,
            marks=marks,
            spilled=opened.spilled,
            known=opened.known,
            anchor=opened.anchor,
            commits=self._commits,
            bounds=self._bounds(),
            fetch=fetch,
            fenced=self.fenced,
            standing=client.standing,
            triggers=self._store,
        )
        assignment.partitions[tp] = partition
        if transactor is not None:
            partition.transactor = transactor
            transactor.serve(partition, self._committer, self._restart)
            self._warn_of_many(assignment)
        if self._book is not None and opened.registered is not None:
            self._book.open(partition, opened.registered, lambda: client.end(tp))
        pool.add(partition)
        client.seek(tp, opened.start)
        client.resume(tp)

    def _warn_of_many(self, assignment: Assignment) -> None:
        if sum(one.transactor is not None for one in assignment.partitions.values()) == MANY + 1:
            log.warning(
                "group %s: more than %d partitions with exactly_once in one process, each with a producer of its own; "
                "more workers would share them out", self.group, MANY
            )  # fmt: skip

    def _retire(self, transactor: Transactor) -> None:
        task = asyncio.get_running_loop().create_task(transactor.close(), name=f"close producer of {self.group}")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _bounds(self) -> Bounds:
        records, size = self._budget()
        return Bounds(records, size, self._options.window_offsets, self._options.window_bytes)

    def _share_out(self) -> None:
        # What a fetch brings comes on top of a buffer that is nearly full, for each partition.
        self.client.limit_fetches(self._bounds().bytes // 2)
        for partition in self.partitions:
            partition.buffer.bounds = self._bounds()
            partition.check_bounds()

    async def _probe(self, assignment: Assignment, tp: TopicPartition, offset: int) -> RawRecord | None:
        answer: asyncio.Future[RawRecord | None] = asyncio.get_running_loop().create_future()
        assignment.probes[tp] = answer
        self.client.seek(tp, offset)
        self.client.resume(tp)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await answer
        except TimeoutError:
            return None
        finally:
            del assignment.probes[tp]
            self.client.pause([tp])

    async def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        """Let go of what is assigned. Returns when it is done, also if somebody else began it: a revocation that
        comes while the worker drains to stop must hold up the group as long as that takes."""
        assignment, self.assignment = self.assignment, None
        if assignment is not None:
            self._leaving = assignment
            self._departure = asyncio.get_running_loop().create_task(
                self._letting_go.let_go(assignment), name=f"let go {self.group}"
            )
            self._departure.add_done_callback(self._departed)
        if self._departure is not None:
            await asyncio.wait([self._departure])

    def _departed(self, task: asyncio.Task[None]) -> None:
        self._leaving = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error

    def fenced(self, partition: Partition) -> None:
        """The store has another token for the partition."""
        self._restart(partition, "another claim has replaced ours")

    def _restart(self, partition: Partition, why: str) -> None:
        """Drop all there is of a partition, and open it again if it is still ours."""
        assignment, tp = self.assignment, partition.tp
        if assignment is None or assignment.partitions.get(tp) is not partition:
            return
        log.warning("%s[%d]: %s; its runs are dropped and it is opened again", tp.topic, tp.partition, why)
        del assignment.partitions[tp]
        self.client.pause([tp])
        self.pools[tp.topic].remove(partition)
        partition.closed = True
        for run in list(partition.running.values()):
            run.cut()
        partition.close()
        self._open_soon(assignment, frozenset({tp}), former=partition)
