"""Committing what is done, and dropping what the store then no longer needs.

One commit is in flight at a time, so a group's offset never goes back. A commit belongs to an assignment and is sent
under its membership only. Pruning follows a commit that the broker acknowledged, and never holds the next one up: a
store that is down must not keep finished records from being committed.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from aiokafka import TopicPartition

from pyrula.kafka.assignment import Assignment
from pyrula.kafka.client import BrokerError, Committed, GroupClient, MembershipLost, MetadataTooLarge
from pyrula.kafka.commit_map import CommitMap, decode, encode
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Partition
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.store.port import SourceStore

log = logging.getLogger("pyrula.kafka")

# A journal lives 30 days from its last write; an idle group extends it this often.
REFRESH_SECONDS = 12 * 3600.0
# A text that leaves less room than this may not tell everything.
_CUT_SHORT = 32


class Committer:
    """Commits for one group. `fenced` is told of a partition that the store has another token for."""

    def __init__(
        self, client: GroupClient, store: SourceStore, options: KafkaOptions, fenced: Callable[[Partition], None]
    ) -> None:
        self._client = client
        self._store = store
        self._interval = options.commit_interval
        self._after = options.commit_after
        self._counted = 0
        self._fenced = fenced
        self._lock = asyncio.Lock()
        self._due = asyncio.Event()
        self._unpruned: set[Partition] = set()
        self._pruning: asyncio.Task[None] | None = None

    def count(self, completed: int) -> None:
        """So many records are complete in all: after commit_after of them a commit doesn't wait for its interval."""
        if completed - self._counted >= self._after:
            self._counted = completed
            self._due.set()

    async def commit_regularly(self, current: Callable[[], Assignment | None]) -> None:
        """For ever: commit for the assignment that `current` gives, every commit_interval or when it is due."""
        refreshed = monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._due.wait()
            self._due.clear()
            assignment = current()
            if assignment is None:
                continue
            await self.commit(assignment)
            if monotonic() - refreshed > REFRESH_SECONDS:
                refreshed = monotonic()
                held = list(assignment.partitions.values())
                await asyncio.gather(
                    *(self._store.refresh_source(one.source, one.token) for one in held), return_exceptions=True
                )

    async def commit_last(self, assignment: Assignment) -> None:
        """The commit of an assignment that ends; returns when the store has been told, too."""
        transactors = [one.transactor for one in assignment.partitions.values() if one.transactor is not None]
        await asyncio.gather(self.commit(assignment), *(transactor.finish() for transactor in transactors))
        if self._pruning is not None:
            await asyncio.wait([self._pruning])

    async def commit(self, assignment: Assignment) -> None:
        """Commit what has changed. What can't be committed now is part of the next commit; nothing is raised for it."""
        async with self._lock:
            partitions = assignment.partitions.values()
            changed = [partition for partition in partitions if partition.changed and partition.transactor is None]
            if not changed:
                return
            offsets: dict[TopicPartition, Committed] = {}
            for partition in changed:
                partition.changed = False
                offsets[partition.tp] = self.offset_of(partition)
            try:
                await self._client.commit(offsets, assignment.membership)
            except BaseException as error:
                for partition in changed:
                    partition.changed = True
                if not isinstance(error, MembershipLost | MetadataTooLarge | BrokerError):
                    raise
                self._refused(error)
                return
            for partition in changed:
                partition.committed = max(partition.committed, offsets[partition.tp].offset)
        self._prune_soon(changed)

    def _refused(self, error: MembershipLost | MetadataTooLarge | BrokerError) -> None:
        if isinstance(error, MembershipLost):
            log.warning("%s; what was done since the last commit may run again elsewhere", error)
        elif isinstance(error, MetadataTooLarge):
            self._due.set()
        else:
            log.warning("%s; it is tried again", error)

    def committed(self, partition: Partition, offset: int) -> None:
        """An offset was committed in a transaction."""
        partition.committed = max(partition.committed, offset)
        self._prune_soon([partition])

    def too_large(self, size: int) -> None:
        """So much metadata was refused in a transaction."""
        self._client.lower_metadata_limit(size)

    def offset_of(self, partition: Partition) -> Committed:
        """What there is to commit of a partition now."""
        tracker = partition.tracker
        committed = tracker.committable()
        store, limit = self._store.instance_id, self._client.metadata_limit
        anchor = partition.log_witness.anchor(committed)
        ranges = tracker.done_above()
        text = encode(committed, ranges, partition.log_witness.witness(), store, limit, anchor=anchor)
        if len(text) > limit - _CUT_SHORT:
            found = decode(text, committed, sys.maxsize)
            told = found.ranges[-1][1] if isinstance(found, CommitMap) and found.ranges else committed
            partition.spill((max(start, told), end) for start, end in ranges if end > told)
        return Committed(committed, text)

    def _prune_soon(self, partitions: list[Partition]) -> None:
        self._unpruned.update(partitions)
        if self._pruning is None:
            task = asyncio.get_running_loop().create_task(self._prune(), name=f"prune {self._client.group}")
            self._pruning = task
            task.add_done_callback(self._pruned)

    def _pruned(self, task: "asyncio.Task[None]") -> None:
        self._pruning = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("group %s: journals were not pruned: %r", self._client.group, error)

    async def _prune(self) -> None:
        while self._unpruned:
            partitions, self._unpruned = self._unpruned, set()
            await asyncio.gather(*(self._prune_one(partition) for partition in partitions))

    async def _prune_one(self, partition: Partition) -> None:
        """After the broker acknowledged an offset, the journal entries below it can go."""
        below = partition.committed
        if below <= partition.pruned_below:
            return
        if partition.journaled:
            try:
                await self._store.prune_source(partition.source, partition.token, below, None)
            except LeaseLost:
                self._fenced(partition)
                return
            except StoreError as error:
                log.warning("%s[%d]: journal not pruned: %s", partition.tp.topic, partition.tp.partition, error)
                return
        partition.pruned(below)
        if partition.addresses is not None:
            try:
                await partition.addresses.passed(below)
            except LeaseLost:
                self._fenced(partition)
            except StoreError as error:
                log.warning("%s[%d]: its board is not cleared: %s", partition.tp.topic, partition.tp.partition, error)

    async def stop(self) -> None:
        """End what still goes on in the background."""
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.wait([self._pruning])
