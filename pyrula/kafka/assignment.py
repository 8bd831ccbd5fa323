"""What one membership of a group has been assigned, and how it is let go.

Letting go has one order: start nothing more, wait for what runs while the group waits for us, cut the rest, and only
then commit, so that nothing completes behind the commit's back. Every wait is bounded, since the group goes on without
a member that takes longer, and so does whoever wants the process to end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from aiokafka import TopicPartition

from pyrula.kafka.client import GroupClient, Membership
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.partition import Partition
from pyrula.kafka.record import RawRecord
from pyrula.kafka.replayers import Replayers
from pyrula.workflows.errors import LeaseLost, StoreError
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.store.port import SourceStore, Token

log = logging.getLogger("pyrula.kafka")

# After the drain: so long for bodies to end, rows to be durable and the last commit; then so long for the store to
# hear of it. Together less than what the group waits beyond the drain at least.
SETTLE_SECONDS = 3.5
RELEASE_SECONDS = 1.0


@dataclass(slots=True)
class Assignment:
    """The partitions of one membership. `unopened` tells why some of them don't run."""

    membership: Membership
    assigned: frozenset[TopicPartition]
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    unopened: dict[TopicPartition, str] = field(default_factory=dict)
    probes: dict[TopicPartition, asyncio.Future[RawRecord | None]] = field(default_factory=dict)
    opening: set[asyncio.Task[None]] = field(default_factory=set)
    # What the store was told that we hold, by source: a claim that nobody lets go of looks like a crash.
    claimed: dict[bytes, Token] = field(default_factory=dict)


class LettingGo:
    """Lets go of a group's assignments, one after the other."""

    def __init__(
        self,
        client: GroupClient,
        pools: Mapping[str, Replayers],
        store: SourceStore,
        commits: GroupCommit,
        options: KafkaOptions,
        commit: Callable[[Assignment], Coroutine[Any, Any, None]],
    ) -> None:
        self._client = client
        self._pools = pools
        self._store = store
        self._commits = commits
        self._drain_timeout = options.drain_timeout
        self._commit = commit

    async def let_go(self, assignment: Assignment) -> None:
        """Drain if the group still has us, cut what is left, commit, release."""
        for task in list(assignment.opening):
            task.cancel()
        await asyncio.gather(*assignment.opening, return_exceptions=True)
        partitions = list(assignment.partitions.values())
        # Reading on would only fill buffers that are about to go.
        self._client.pause(assignment.assigned)
        for partition in partitions:
            self._pools[partition.tp.topic].remove(partition)
            partition.lanes.ready.clear()
            if not self._client.lists(partition.tp):
                self._forsake(assignment, partition)
        self._client.standing.wake()
        try:
            await self._drain(assignment, partitions)
            self._cut(partitions)
            await self._settle(assignment, partitions)
            await self._release(assignment)
        finally:
            for partition in partitions:
                partition.close()
            self._client.standing.wake()

    def _forsake(self, assignment: Assignment, partition: Partition) -> None:
        """The topic is gone. It may be made again while we drain, and a commit would skip records of the new one."""
        tp = partition.tp
        log.warning("%s[%d] was deleted: nothing more of it is run or committed", tp.topic, tp.partition)
        del assignment.partitions[tp]
        partition.closed = True
        for run in list(partition.running.values()):
            run.cut()

    async def _drain(self, assignment: Assignment, partitions: Sequence[Partition]) -> None:
        """Wait for what runs, up to drain_timeout, and no longer than the group waits for us."""
        deadline = monotonic() + self._drain_timeout
        while any(one.in_flight > one.waiting for one in partitions) and monotonic() < deadline:
            if self._client.membership != assignment.membership:
                log.warning("group %s: expelled; nothing of its assignment is committed", self._client.group)
                return
            await asyncio.sleep(0.02)

    def _cut(self, partitions: Sequence[Partition]) -> None:
        """End the bodies that still run: neither failed nor charged, they replay wherever the partition goes.

        From here on nothing completes, so the commit that follows covers all that ever did.
        """
        left = 0
        for partition in partitions:
            partition.closed = True
            left += len(partition.running)
            for run in list(partition.running.values()):
                run.cut()
        if left:
            log.warning("group %s: %d runs were cut and will be replayed", self._client.group, left)

    async def _settle(self, assignment: Assignment, partitions: Sequence[Partition]) -> None:
        """What must be over before others take the partitions, as far as it can be waited for."""
        work: dict[str, Coroutine[Any, Any, None]] = {"bodies to end": _ended(partitions)}
        journaled = [partition for partition in partitions if partition.journaled]
        if journaled and self._commits.outage is None:
            # Rows of steps that finished before the cut must not be lost, or those steps would run again.
            work["rows to be durable"] = _flushed(journaled)
        if self._client.membership == assignment.membership:
            work["the last commit"] = self._commit(assignment)
        await self._bounded(work, SETTLE_SECONDS)

    async def _release(self, assignment: Assignment) -> None:
        held = {**assignment.claimed, **{one.source: one.token for one in assignment.partitions.values()}}
        if held:
            releases = (self._release_one(source, token) for source, token in held.items())
            await self._bounded({"the store to be told": _all(releases)}, RELEASE_SECONDS)

    async def _release_one(self, source: bytes, token: Token) -> None:
        try:
            await self._store.release_source(source, token)
        except LeaseLost:
            pass
        except StoreError as error:
            log.warning("group %s: a partition could not be released: %s", self._client.group, error)

    async def _bounded(self, work: Mapping[str, Coroutine[Any, Any, None]], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(coroutine): what for what, coroutine in work.items()}
        done, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            log.warning("group %s: let go without waiting longer for %s", self._client.group, tasks[task])
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            if (error := task.exception()) is not None:
                log.warning("group %s: let go without %s: %r", self._client.group, tasks[task], error)


async def _ended(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        await partition.emptied()


async def _flushed(partitions: Sequence[Partition]) -> None:
    flushes = [partition.flushed() for partition in partitions]
    for flush in flushes:
        # One partition's rows may be of no use any more, or refused; the others' are waited for all the same.
        with suppress(StoreError):
            await flush


async def _all(work: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*work)
