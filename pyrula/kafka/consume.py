"""One group of one cluster in this process: polls for all its bindings, opens and lets go of partitions, commits.

A call to the client's poll is always pending, also while every partition is paused or drains, so the group never takes
this member for dead. What poll returns goes at once to the partitions' own buffers. Everything of an assignment belongs
to its membership and ends with it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition

from pyrula.kafka.binding import Binding
from pyrula.kafka.client import BrokerError, Committed, GroupClient, Membership, MembershipLost, MetadataTooLarge
from pyrula.kafka.commit_map import DEFAULT_LIMIT, encode
from pyrula.kafka.events import Observer, RecordEvent
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.opening import NotOpened, Opened, Opener
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Bounds, Partition, Raw
from pyrula.kafka.record import record_identity
from pyrula.kafka.replayers import Replayers
from pyrula.workflows.errors import LeaseLost, StoreUnavailable
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.store.port import SourceStore

log = logging.getLogger("pyrula.kafka")

POLL_SECONDS = 1.0
PROBE_SECONDS = 10.0
# Records taken from the client in one go.
MAX_RECORDS = 2_000
RETRY_SECONDS = 1.0
# A journal lives 30 days from its last write; an idle group extends it this often.
REFRESH_SECONDS = 12 * 3600.0


@dataclass(slots=True)
class Assignment:
    """The partitions of one membership. `unopened` tells why some of them don't run."""

    membership: Membership
    assigned: frozenset[TopicPartition]
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    unopened: dict[TopicPartition, str] = field(default_factory=dict)
    probes: dict[TopicPartition, asyncio.Future[Raw | None]] = field(default_factory=dict)
    opening: set[asyncio.Task[None]] = field(default_factory=set)
    draining: bool = False


class GroupConsumer:
    """The one member of a group in this process, shared by all bindings of the group."""

    def __init__(
        self,
        group: str,
        pools: Mapping[str, Replayers],
        *,
        store: SourceStore,
        commits: GroupCommit,
        options: KafkaOptions,
        budget: Callable[[], tuple[int, int]],
        observer: Callable[[], Observer | None],
    ) -> None:
        self.group = group
        self.pools = pools
        self.client = GroupClient(options, group, sorted(pools), options.isolation_level)
        self.assignment: Assignment | None = None
        self.problem: str | None = None
        self.failure: BaseException | None = None
        self._stopping = False
        self._store = store
        self._commits = commits
        self._options = options
        self._budget = budget
        self._observer = observer
        self._metadata_limit = DEFAULT_LIMIT
        self._commit_lock = asyncio.Lock()
        self._commit_due = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self._let_go: asyncio.Future[Any] | None = None

    @property
    def partitions(self) -> Sequence[Partition]:
        """Partitions that run now."""
        return () if self.assignment is None else tuple(self.assignment.partitions.values())

    async def start(self) -> None:
        """Join the group. `tasks` must then live as long as the worker."""
        await self.client.start(self._assigned, self._revoked)
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self._poll(), name=f"poll {self.group}"),
            loop.create_task(self._commit_regularly(), name=f"commit {self.group}"),
        ]

    async def stop(self) -> None:
        """Drain, commit, leave the group. Polling goes on until then."""
        self._stopping = True
        assignment = self.assignment
        if assignment is not None:
            await self._end(assignment)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.stop()

    async def _poll(self) -> None:
        client = self.client
        refreshed = monotonic()
        while True:
            try:
                batch = await client.poll(POLL_SECONDS, MAX_RECORDS)
            except BrokerError as error:
                log.warning("%s", error)
                self.problem = str(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.problem = None
            assignment = self.assignment
            if assignment is None:
                continue
            for tp, records in batch.items():
                self._dispatch(assignment, tp, records)
            if not batch or monotonic() - refreshed > POLL_SECONDS:
                refreshed = monotonic()
                for tp, partition in assignment.partitions.items():
                    self._advance(tp, partition)

    def _dispatch(self, assignment: Assignment, tp: TopicPartition, records: list[ConsumerRecord[Any, Any]]) -> None:
        partition = assignment.partitions.get(tp)
        if partition is None:
            probe = assignment.probes.get(tp)
            if probe is not None and not probe.done():
                probe.set_result(records[0])
            return
        pool = self.pools[tp.topic]
        expected = partition.tracker.position
        if records[0].offset > expected:
            self._watch_gap(tp, partition, expected, records[0].offset)
        partition.receive(records)
        self._advance(tp, partition)
        pool.offer(partition)

    def _advance(self, tp: TopicPartition, partition: Partition) -> None:
        """Offsets that reading has passed without a record (markers, compaction) are no records."""
        position = self.client.position(tp)
        if position is not None and position > partition.tracker.position and not partition.closed:
            partition.tracker.advance(position)
            partition.changed = True

    def _watch_gap(self, tp: TopicPartition, partition: Partition, expected: int, found: int) -> None:
        """A hole in the log is compaction, a marker, or retention that overtook us: only the last is a loss."""
        task = asyncio.get_running_loop().create_task(self._explain_gap(tp, partition, expected, found))
        partition.background.add(task)
        task.add_done_callback(partition.background.discard)

    async def _explain_gap(self, tp: TopicPartition, partition: Partition, expected: int, found: int) -> None:
        try:
            first, _ = (await self.client.offsets([tp]))[tp]
        except BrokerError:
            return
        if expected < first:
            self._tell_lost(tp, partition.binding, expected, min(first, found))

    def _tell_lost(self, tp: TopicPartition, binding: Binding, start: int, stop: int) -> None:
        text = f"{stop - start} offsets from {start} to {stop - 1} were deleted by retention before they were read"
        log.warning("%s[%d]: %s", tp.topic, tp.partition, text)
        observer = self._observer()
        if observer is not None:
            observer(RecordEvent("lost", binding.name, tp.topic, tp.partition, start, None, "", 0, text))

    def _assigned(self, partitions: frozenset[TopicPartition], membership: Membership) -> None:
        if self._stopping:
            return
        assignment = Assignment(membership, partitions)
        self.assignment = assignment
        log.info("group %s, generation %d: %d partitions assigned", self.group, membership.generation, len(partitions))
        self._reopen(assignment, partitions)

    def _reopen(self, assignment: Assignment, partitions: frozenset[TopicPartition]) -> None:
        task = asyncio.get_running_loop().create_task(self._open(assignment, partitions), name=f"open {self.group}")
        assignment.opening.add(task)
        task.add_done_callback(partial(self._opening_ended, assignment))

    def _opening_ended(self, assignment: Assignment, task: asyncio.Task[None]) -> None:
        assignment.opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error

    async def _open(self, assignment: Assignment, partitions: frozenset[TopicPartition]) -> None:
        if self._let_go is not None:
            await asyncio.wait([self._let_go])
        bindings = {tp: self.pools[tp.topic].binding for tp in partitions}
        sources = {
            tp: record_identity(binding.cluster, binding.group, tp.topic, tp.partition)
            for tp, binding in bindings.items()
        }

        async def probe(tp: TopicPartition, offset: int) -> Raw | None:
            return await self._probe(assignment, tp, offset)

        opener = Opener(self.client, self._store, assignment.membership, bindings, sources, probe)
        while self.assignment is assignment:
            try:
                opened = await opener.open(partitions)
                break
            except MembershipLost as error:
                log.warning("%s: its assignment is dropped", error)
                return
            except (BrokerError, StoreUnavailable) as error:
                log.warning("group %s: partitions can't be opened yet: %s", self.group, error)
                for tp in partitions:
                    assignment.unopened[tp] = str(error)
                await asyncio.sleep(RETRY_SECONDS)
        else:
            return
        for tp, answer in opened.items():
            if isinstance(answer, NotOpened):
                assignment.unopened[tp] = answer.reason
                log.error("%s", answer.reason)
            else:
                assignment.unopened.pop(tp, None)
                self._run(assignment, tp, sources[tp], answer)
        self._share_out()

    def _run(self, assignment: Assignment, tp: TopicPartition, source: bytes, opened: Opened) -> None:
        pool = self.pools[tp.topic]
        if opened.lost:
            self._tell_lost(tp, pool.binding, opened.start - opened.lost, opened.start)
        client = self.client

        def fetch(on: bool) -> None:
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
            rows=opened.claim.rows,
            known=opened.known,
            commits=self._commits,
            bounds=self._bounds(),
            fetch=fetch,
            fenced=self.fenced,
        )
        assignment.partitions[tp] = partition
        pool.add(partition)
        client.seek(tp, opened.start)
        client.resume(tp)

    def _bounds(self) -> Bounds:
        records, size = self._budget()
        return Bounds(records, size, self._options.window_offsets, self._options.window_bytes)

    def _share_out(self) -> None:
        for partition in self.partitions:
            partition.bounds = self._bounds()
            partition.check_bounds()

    async def _probe(self, assignment: Assignment, tp: TopicPartition, offset: int) -> Raw | None:
        answer: asyncio.Future[Raw | None] = asyncio.get_running_loop().create_future()
        assignment.probes[tp] = answer
        self.client.seek(tp, offset)
        self.client.resume(tp)
        try:
            return await asyncio.wait_for(answer, PROBE_SECONDS)
        except TimeoutError:
            return None
        finally:
            del assignment.probes[tp]
            self.client.pause([tp])

    async def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        assignment = self.assignment
        if assignment is not None:
            await self._end(assignment)

    async def _end(self, assignment: Assignment) -> None:
        """Let go: drain if the group still has us, commit, cut what is left, release."""
        assignment.draining = True
        self.assignment = None
        opening = list(assignment.opening)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        partitions = list(assignment.partitions.values())
        for partition in partitions:
            self.pools[partition.tp.topic].remove(partition)
            partition.lanes.ready.clear()
        self._let_go = asyncio.get_running_loop().create_future()
        try:
            if await self._drain(assignment, partitions):
                await self._commit(assignment)
            await self._cut(partitions)
            if self.client.membership == assignment.membership:
                await self._release(partitions)
        finally:
            for partition in partitions:
                partition.close()
            self._let_go.set_result(None)

    async def _drain(self, assignment: Assignment, partitions: Sequence[Partition]) -> bool:
        """Wait for what runs, up to drain_timeout. False when the group went on without us meanwhile."""
        deadline = monotonic() + self._options.drain_timeout
        while self.client.membership == assignment.membership:
            if not any(partition.in_flight for partition in partitions) or monotonic() >= deadline:
                return True
            await asyncio.sleep(0.02)
        log.warning("group %s: expelled while draining; nothing of it is committed", self.group)
        return False

    async def _cut(self, partitions: Sequence[Partition]) -> None:
        """End the bodies that still run: neither failed nor charged, they replay wherever the partition goes."""
        left = 0
        for partition in partitions:
            partition.closed = True
            left += len(partition.running)
            for run in list(partition.running.values()):
                run.cut()
        if left:
            log.warning("group %s: %d runs were cut and will be replayed", self.group, left)
        deadline = monotonic() + 5.0
        # Once an assignment; an event would cost every run.
        while any(partition.running for partition in partitions) and monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # Rows of steps that finished before the cut must not be lost, or those steps would run again.
        flushes = [partition.flushed() for partition in partitions if partition.journaled]
        if flushes and self._commits.outage is None:
            await asyncio.wait([asyncio.ensure_future(flush) for flush in flushes], timeout=5.0)

    async def _release(self, partitions: Sequence[Partition]) -> None:
        answers = await asyncio.gather(
            *(self._store.release_source(partition.source, partition.token) for partition in partitions),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, LeaseLost):
                log.warning("group %s: a partition could not be released: %s", self.group, answer)

    def commit_soon(self) -> None:
        """Don't wait for the interval."""
        self._commit_due.set()

    async def _commit_regularly(self) -> None:
        refreshed = monotonic()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._commit_due.wait(), self._options.commit_interval)
            self._commit_due.clear()
            assignment = self.assignment
            if assignment is None:
                continue
            await self._commit(assignment)
            if monotonic() - refreshed > REFRESH_SECONDS:
                refreshed = monotonic()
                await asyncio.gather(
                    *(self._store.refresh_source(p.source, p.token) for p in self.partitions), return_exceptions=True
                )

    async def _commit(self, assignment: Assignment) -> None:
        """Commit what has changed and drop what the store no longer needs. Never raises."""
        async with self._commit_lock:
            changed = [p for p in assignment.partitions.values() if p.changed and not p.closed]
            if not changed:
                return
            offsets: dict[TopicPartition, Committed] = {}
            for partition in changed:
                partition.changed = False
                offsets[partition.tp] = self._offset_of(partition)
            try:
                await self.client.commit(offsets, assignment.membership)
            except MembershipLost as error:
                log.warning("%s; what was done since the last commit may run again elsewhere", error)
                return
            except MetadataTooLarge:
                self._metadata_limit //= 2
                log.warning(
                    "group %s: the broker takes less metadata with an offset than %d bytes; trying %d",
                    self.group, self._metadata_limit * 2, self._metadata_limit
                )  # fmt: skip
                self._changed_again(changed)
                self._commit_due.set()
                return
            except BrokerError as error:
                log.warning("%s; it is tried again", error)
                self._changed_again(changed)
                return
            await asyncio.gather(*(self._prune(partition, offsets[partition.tp].offset) for partition in changed))

    def _changed_again(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            partition.changed = True

    def _offset_of(self, partition: Partition) -> Committed:
        tracker = partition.tracker
        committed = tracker.committable()
        ranges = tracker.done_above()
        witness = partition.witness() if ranges else None
        text = encode(committed, ranges, witness, self._store.instance_id, self._metadata_limit)
        return Committed(committed, text)

    async def _prune(self, partition: Partition, below: int) -> None:
        """After the broker acknowledged `below`, its journal entries can go."""
        moved = below > partition.committed
        partition.committed = max(below, partition.committed)
        if not moved:
            return
        if partition.journaled:
            try:
                await self._store.prune_source(partition.source, partition.token, below, None)
            except StoreUnavailable as error:
                log.warning("%s: journal not pruned: %s", partition.tp, error)
                return
            except LeaseLost:
                self.fenced(partition)
                return
        partition.pruned(below)

    def fenced(self, partition: Partition) -> None:
        """The store has another token for the partition: drop all of it, and open it again if it is still ours."""
        assignment = self.assignment
        if assignment is None or assignment.partitions.get(partition.tp) is not partition:
            return
        log.warning("%s: another claim has replaced ours; its runs are dropped", partition.tp)
        del assignment.partitions[partition.tp]
        self.client.pause([partition.tp])
        self.pools[partition.tp.topic].remove(partition)
        for run in list(partition.running.values()):
            run.cut()
        partition.close()
        if self.client.membership == assignment.membership:
            self._reopen(assignment, frozenset({partition.tp}))
