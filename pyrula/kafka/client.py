"""The Kafka client of one group: all that Pyrula asks of aiokafka's consumer, and the only code that knows how.

Everything here speaks of a *membership* (generation and member id): what was true of the group when partitions were
assigned. A commit is built and sent only while the coordinator still has that membership. aiokafka resets it when the
group expels the member, and a commit sent after that carries no generation, so that the broker would not refuse it.
Foreign exceptions become those of this module.

Private names of aiokafka are used where its public ones can't tell: the coordinator's generation, the metadata of a
committed offset, a position without waiting for it. ``tests/unit/kafka/test_client.py`` pins them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    CorruptRecordException,
    IllegalGenerationError,
    KafkaConnectionError,
    KafkaError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnsupportedCodecError,
)
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.structs import OffsetAndMetadata

from pyrula.kafka.commit_map import DEFAULT_LIMIT
from pyrula.kafka.fetched import take
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.record import RawRecord
from pyrula.kafka.standing import Standing
from pyrula.workflows.errors import PyrulaError

T = TypeVar("T")

# Leaving is a courtesy: the group notices an absent member by itself.
LEAVE_SECONDS = 1.5

log = logging.getLogger("pyrula.kafka")

LEAST_FETCH = 16 * 1024

ASSIGNORS = {
    "roundrobin": RoundRobinPartitionAssignor,
    "range": RangePartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class Membership(NamedTuple):
    """One assignment of a group: commits made under it are refused by the broker once it is over."""

    generation: int
    member_id: str


class Committed(NamedTuple):
    """What a group's coordinator holds for a partition."""

    offset: int
    metadata: str


class MembershipLost(PyrulaError):
    """The group went on without this member; nothing of its assignment may be committed any more."""


class MetadataTooLarge(PyrulaError):
    """The broker's offset.metadata.max.bytes is lower than the metadata sent. `GroupClient.metadata_limit` has been
    lowered, so the commit goes through after a few tries."""


class OutOfRange(PyrulaError):
    """The log doesn't have the offsets that are to be read next. They are asked for again unless their partitions are
    paused or sought elsewhere."""

    def __init__(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = positions
        super().__init__(positions)


class Unreadable(PyrulaError):
    """A batch of a partition can't be decoded. What had been fetched of others for the same call is lost with it."""

    def __init__(self, partition: TopicPartition, why: str) -> None:
        self.partition = partition
        super().__init__(f"a batch can't be read: {why}")


class BrokerError(PyrulaError):
    """The broker refused or did not answer; the same call may succeed later."""


Assigned = Callable[[frozenset[TopicPartition], Membership], None]
Revoked = Callable[[frozenset[TopicPartition]], Awaitable[None]]


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, client: "GroupClient", assigned: Assigned, revoked: Revoked) -> None:
        self._client = client
        self._assigned = assigned
        self._revoked = revoked

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._revoked(frozenset(revoked))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        # Heartbeats start only after this returns: note the assignment and work on it elsewhere.
        partitions = frozenset(assigned)
        self._client.pause(partitions)
        for partition in partitions:
            # Any position, so that the client doesn't look for one; whoever resumes seeks before.
            self._client.seek(partition, 0)
        self._client.standing.proved(monotonic())
        self._assigned(partitions, self._client.membership)


class GroupClient:
    """One member of one consumer group, with commits by hand and partitions that start paused."""

    def __init__(self, options: KafkaOptions, group: str, topics: Sequence[str], isolation_level: str) -> None:
        self._options = options
        self.group = group
        self.topics = tuple(topics)
        # How much metadata an offset may carry, as far as the broker's refusals have told.
        self.metadata_limit = DEFAULT_LIMIT
        self.standing = Standing(options.session_timeout - options.heartbeat_interval)
        self._isolation_level = isolation_level
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> AIOKafkaConsumer:
        options = self._options
        return AIOKafkaConsumer(
            **options.connection(),
            group_id=self.group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level=self._isolation_level,
            session_timeout_ms=int(options.session_timeout * 1000),
            heartbeat_interval_ms=int(options.heartbeat_interval * 1000),
            rebalance_timeout_ms=int(options.rebalance_timeout * 1000),
            max_poll_interval_ms=int(options.max_poll_interval * 1000),
            fetch_max_wait_ms=int(options.fetch_max_wait * 1000),
            fetch_min_bytes=options.fetch_min_bytes,
            fetch_max_bytes=options.fetch_max_bytes,
            max_partition_fetch_bytes=options.max_partition_fetch_bytes,
            request_timeout_ms=int(options.request_timeout * 1000),
            metadata_max_age_ms=int(options.metadata_max_age * 1000),
            partition_assignment_strategy=(ASSIGNORS[options.assignor],),
        )

    async def start(self, assigned: Assigned, revoked: Revoked) -> None:
        """Connect and join the group. Raises BrokerError naming the servers when none answers."""
        consumer = self._consumer
        try:
            await consumer.start()
            # Subscribed only now: it would wait for topics that don't exist, and then not start.
            await consumer._client.set_topics(self.topics)
            consumer.subscribe(topics=self.topics, listener=_Listener(self, assigned, revoked))
            await consumer._subscription.wait_for_assignment()
            self._watch_heartbeats()
        except (KafkaConnectionError, OSError) as error:
            await self._consumer.stop()
            raise BrokerError(
                f"no Kafka broker answered at {self._options.bootstrap_servers} ({error}); "
                "check KafkaOptions(bootstrap_servers=...) and that the broker is up"
            ) from error
        except KafkaError as error:
            await self._consumer.stop()
            raise BrokerError(f"group {self.group} could not be joined: {error!r}") from error

    def _watch_heartbeats(self) -> None:
        coordinator = self._consumer._coordinator
        heartbeat = coordinator._do_heartbeat

        async def watched() -> bool:
            sent = monotonic()
            answered: bool = await heartbeat()
            if answered:
                self.standing.proved(sent)
            return answered

        coordinator._do_heartbeat = watched

    def ailment(self) -> str | None:
        """What of the client has ended that must live as long as it does; None while all of it lives."""
        consumer = self._consumer
        coordinator, fetcher = consumer._coordinator, consumer._fetcher
        if coordinator is None or fetcher is None:
            return None
        parts = {"coordination": coordinator._coordination_task, "fetching": fetcher._fetch_task}
        for name, task in parts.items():
            if task.done():
                error = None if task.cancelled() else task.exception()
                return f"its {name} has ended" + ("" if error is None else f" ({error!r})")
        return None

    async def rebuild(self, assigned: Assigned, revoked: Revoked) -> None:
        """Leave with the present client and join anew with a fresh one. Raises BrokerError; it may be tried again."""
        await self.stop()
        self._consumer = self._new_consumer()
        await self.start(assigned, revoked)

    async def stop(self) -> None:
        """Leave the group, so that the others need not wait for the session to end, and disconnect. Bounded.

        What the coordination task is at (a join that waits for the other members' drain, a revocation) is given up.
        """
        coordinator = self._consumer._coordinator
        if coordinator is not None:
            coordinator._coordination_task.cancel()
            await asyncio.wait([coordinator._coordination_task], timeout=LEAVE_SECONDS)
            await self._leave(coordinator)
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._consumer.stop()
        except (KafkaError, TimeoutError, OSError) as error:
            log.warning("group %s: its client did not close cleanly: %r", self.group, error)

    async def _leave(self, coordinator: Any) -> None:
        """Tell the group. The broker answers a connection's requests in turn, so where a join may be pending it is told
        over another one."""
        node, member = coordinator.coordinator_id, coordinator.member_id
        if node is None or not member:
            return
        joining = self._consumer._subscription.reassignment_in_progress
        connection = ConnectionGroup.DEFAULT if joining else ConnectionGroup.COORDINATION
        request = LeaveGroupRequest(self.group, member)
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._consumer._client.send(node, request, group=connection)
        except (KafkaError, TimeoutError, OSError) as error:
            log.warning("group %s: left without telling it: %r", self.group, error)
        coordinator.reset_generation()

    @property
    def membership(self) -> Membership:
        """The group as the coordinator knows it now; generation -1 outside it."""
        coordinator = self._consumer._coordinator
        return Membership(coordinator.generation, coordinator.member_id)

    async def poll(self, timeout: float, max_records: int) -> Mapping[TopicPartition, list[RawRecord]]:
        """Records that have arrived. Returns {} after `timeout` seconds; raises OutOfRange, Unreadable, BrokerError."""
        try:
            return await take(self._consumer, timeout, max_records)
        except OffsetOutOfRangeError as error:
            raise OutOfRange(error.args[0]) from error
        except ConsumerStoppedError as error:
            raise BrokerError(f"group {self.group}: its client was stopped to be made anew") from error
        except asyncio.CancelledError as error:
            task, ailment = asyncio.current_task(), self.ailment()
            if ailment is None or task is None or task.cancelling():
                raise
            # It isn't this call that was cancelled, but a task of the client's.
            raise BrokerError(f"group {self.group}: the client doesn't work, {ailment}") from error
        except Exception as error:
            if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException | UnsupportedCodecError):
                raise BrokerError(f"group {self.group}: fetch failed: {error!r}") from error
            self._raise_unreadable(error)
            raise

    def _raise_unreadable(self, error: Exception) -> None:
        # Partitions are taken out in turn, and what is taken out leaves: the first that is left is the one that failed.
        fetched = self._consumer._fetcher._records
        for partition in list(fetched)[:1]:
            del fetched[partition]
            hint = "; install pyrula[compression]" if isinstance(error, UnsupportedCodecError) else ""
            raise Unreadable(partition, f"{error!r}{hint}") from error

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching; what was fetched and not yet returned is dropped and read again on resume."""
        owned = self._consumer.assignment()
        self._consumer.pause(*(tp for tp in partitions if tp in owned))

    def resume(self, partition: TopicPartition) -> None:
        """Fetch again from where the partition stands."""
        if partition in self._consumer.assignment():
            self._consumer.resume(partition)

    def limit_fetches(self, size: int) -> None:
        """Ask for about so many bytes of a partition at once, if that is less than the options say."""
        limit = min(self._options.max_partition_fetch_bytes, max(size, LEAST_FETCH))
        self._consumer._fetcher._max_partition_fetch_bytes = limit

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record read is the first at or after `offset`."""
        if partition in self._consumer.assignment():
            self._consumer.seek(partition, offset)

    def position(self, partition: TopicPartition) -> int | None:
        """Where reading stands, markers and compacted holes included; None when not (yet) known."""
        subscription = self._consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None or partition not in assignment.tps:
            return None
        state = assignment.state_value(partition)
        return state.position if state.has_valid_position else None

    def end(self, partition: TopicPartition) -> int | None:
        """The offset after the last readable record as of the last fetch; None before that."""
        if partition not in self._consumer.assignment():
            return None
        consumer = self._consumer
        committed_only = self._options.isolation_level == "read_committed"
        return consumer.last_stable_offset(partition) if committed_only else consumer.highwater(partition)  # type: ignore[no-any-return]

    def lists(self, partition: TopicPartition) -> bool:
        """Whether the cluster had the partition when it was last asked; a deleted topic is soon known to be gone."""
        return partition.partition in (self._consumer.partitions_for_topic(partition.topic) or ())

    def knows(self, topic: str) -> bool:
        """Whether the cluster had the topic when it was last asked."""
        return bool(self._consumer.partitions_for_topic(topic))

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Offsets and metadata the group has committed; partitions without one are absent."""
        wanted = list(partitions)
        found = await self._bounded(self._consumer._coordinator.fetch_committed_offsets(wanted), "offset fetch")
        return {tp: Committed(entry.offset, entry.metadata or "") for tp, entry in found.items()}

    async def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """First offset still in the log and the offset after the last readable one, for each partition."""
        wanted = list(partitions)
        first = await self._bounded(self._consumer.beginning_offsets(wanted), "list offsets")
        end = await self._bounded(self._consumer.end_offsets(wanted), "list offsets")
        return {tp: (first[tp], end[tp]) for tp in wanted}

    async def existing_topics(self) -> frozenset[str]:
        """Topics of the cluster that this client may see."""
        return frozenset(await self._bounded(self._consumer.topics(), "metadata"))

    def look_for_partitions(self) -> None:
        """Don't wait for metadata_max_age: a topic of the group has been made."""
        self._consumer._client.force_metadata_update()

    async def commit(self, offsets: Mapping[TopicPartition, Committed], membership: Membership) -> None:
        """Commit under `membership`, in one request, without retrying.

        Raises MembershipLost when it is over (nothing was sent, or the broker refused it), MetadataTooLarge, and
        BrokerError for everything that may pass.
        """
        if self.membership != membership or membership.generation < 0:
            raise MembershipLost(f"group {self.group}: generation {membership.generation} is over")
        entries = {tp: OffsetAndMetadata(entry.offset, entry.metadata) for tp, entry in offsets.items()}
        # The request takes the coordinator's generation before the first await, so nothing can come between the
        # comparison above and it. The public commit() retries for ever, under whatever generation it finds.
        request = self._consumer._coordinator._do_commit_offsets(None, entries)
        sent = monotonic()
        try:
            await self._bounded(request, "offset commit")
            if entries:
                self.standing.proved(sent)
        except BrokerError as error:
            cause = error.__cause__
            if isinstance(
                cause, UnknownMemberIdError | IllegalGenerationError | RebalanceInProgressError | CommitFailedError
            ):
                raise MembershipLost(f"group {self.group}: commit refused: {cause!r}") from cause
            if isinstance(cause, OffsetMetadataTooLargeError):
                self.lower_metadata_limit(max(len(entry.metadata) for entry in offsets.values()))
                raise MetadataTooLarge(f"group {self.group}: the broker refused the commit's metadata") from cause
            raise

    def lower_metadata_limit(self, refused: int) -> None:
        """The broker refused so many bytes of metadata."""
        if self.metadata_limit == DEFAULT_LIMIT:
            log.warning(
                "group %s: the broker takes less metadata with an offset than the usual %d bytes "
                "(offset.metadata.max.bytes): what doesn't fit is kept in the store",
                self.group, DEFAULT_LIMIT
            )  # fmt: skip
        self.metadata_limit = min(self.metadata_limit, refused) // 2

    async def _bounded(self, call: Awaitable[T], what: str) -> T:
        """aiokafka's own calls may retry without end: give each one request time-out."""
        try:
            async with asyncio.timeout(self._options.request_timeout):
                return await call
        except (KafkaError, TimeoutError, OSError) as error:
            raise BrokerError(f"group {self.group}: {what} failed: {error!r}") from error
