"""Topics as a test sees them: made, filled, read to their end, and a group's offsets as an admin client reads them.

Written on confluent-kafka, another client than Pyrula's own, so that what is checked is what the broker keeps. Every
call blocks: in an async test use ``await asyncio.to_thread(topics.read, "orders")``.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError as ClientError
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.services.waiting import wait_until

_T = TypeVar("_T")
_TIMEOUT = 30.0
# A broker may restart meanwhile.
_ACKNOWLEDGED = 90.0
# A group that doesn't exist, and what a broker says of any group while it has only just started.
_NO_GROUP_YET = (
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
# A topic whose every segment may be compacted at once; the segment being written never is.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "min.compaction.lag.ms": "0",
}


class Message(NamedTuple):
    """A record to write. A value of None is a tombstone; without a partition the key decides."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Stored(NamedTuple):
    """A record as the broker keeps it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Committed(NamedTuple):
    offset: int
    metadata: str


class Topics:
    """Topics and groups of one broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap, "broker.address.family": "v4"}
        self._admin = AdminClient({**self._config})

    def create(self, *names: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create topics and wait until all their partitions have a leader."""
        topics = [NewTopic(name, num_partitions=partitions, config=dict(config or {})) for name in names]
        _results(self._admin.create_topics(topics))
        wait_until(lambda: all(map(self._is_led, names)), description=f"topics {names} to have leaders")

    def _is_led(self, name: str) -> bool:
        topic = self._admin.list_topics(name, timeout=_TIMEOUT).topics[name]
        return topic.error is None and all(partition.leader >= 0 for partition in topic.partitions.values())

    def delete(self, *names: str) -> None:
        """Delete topics and wait until the broker no longer lists them, so that they can be made again."""
        _results(self._admin.delete_topics(list(names)))
        wait_until(lambda: not set(names) & set(self.names()), description=f"topics {names} to be gone")

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        _results(self._admin.incremental_alter_configs([resource]))

    def grow(self, topic: str, partitions: int) -> None:
        """Have so many partitions from now on."""
        _results(self._admin.create_partitions([NewPartitions(topic, partitions)]))
        wait_until(
            lambda: len(self.partitions(topic)) == partitions and self._is_led(topic), description=f"{topic} to grow"
        )

    def names(self) -> list[str]:
        return list(self._admin.list_topics(timeout=_TIMEOUT).topics)

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions; an unknown topic is a KafkaException."""
        metadata = self._admin.list_topics(topic, timeout=_TIMEOUT).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Age out the records below an offset, partition by partition, as retention would."""
        limits = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        _results(self._admin.delete_records(limits))

    def produce(self, topic: str, messages: Iterable[Message], **settings: Any) -> None:
        """Write the messages in order and wait until all are acknowledged."""
        # One request at a time keeps the order as idempotence would, which costs every new producer half a second.
        in_order = {"acks": "all", "max.in.flight.requests.per.connection": 1}
        producer = Producer({**self._config, **in_order, "linger.ms": 5, **settings})
        _send(producer, topic, messages)

    def produce_transaction(self, topic: str, messages: Iterable[Message], *, commit: bool) -> None:
        """Write the messages in a transaction of their own and commit or abort it; either way a marker follows them."""
        producer = Producer({**self._config, "transactional.id": f"test-{topic}", "linger.ms": 5})
        producer.init_transactions(_TIMEOUT)
        producer.begin_transaction()
        _send(producer, topic, messages)
        if commit:
            producer.commit_transaction(_TIMEOUT)
        else:
            producer.abort_transaction(_TIMEOUT)

    def read(self, topic: str, *, isolation: str = "read_committed") -> list[Stored]:
        """All records from the log's start to its end as of now, by partition and offset."""
        partitions = self.partitions(topic)
        settings = {
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer({**self._config, **settings, "isolation.level": isolation, "fetch.wait.max.ms": 20})
        found: list[Stored] = []
        try:
            # Without the topic's leaders at hand the consumer would look for them only half a second later.
            consumer.list_topics(topic, timeout=_TIMEOUT)
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            left = set(partitions)
            while left:
                message = consumer.poll(_TIMEOUT)
                if message is None:
                    raise TimeoutError(f"{topic}: nothing to read for {_TIMEOUT:g} s, ends not reached: {left}")
                error = message.error()
                if error is None:
                    found.append(_stored(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(found, key=lambda record: record[:2])

    def ends(self, topic: str) -> dict[int, int]:
        """The offset after each partition's last record or marker."""
        return {partition: high for partition, (_, high) in self._watermarks(topic).items()}

    def starts(self, topic: str) -> dict[int, int]:
        """Each partition's first offset that is still kept."""
        return {partition: low for partition, (low, _) in self._watermarks(topic).items()}

    def committed(self, group: str, topic: str) -> dict[int, Committed]:
        """What the group has committed, by partition; a partition without a commit is missing.

        Read with aiokafka: confluent-kafka takes metadata for a C string, here and when it writes it. While brokers
        come and go it is asked again.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                offsets = _in_a_loop(self._read_offsets(group))
                break
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        return {
            entry.partition: Committed(at.offset, at.metadata)
            for entry, at in offsets.items()
            if entry.topic == topic and at.offset >= 0
        }

    async def _read_offsets(self, group: str) -> dict[Any, Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            offsets: dict[Any, Any] = await admin.list_consumer_group_offsets(group)
            return offsets
        finally:
            await admin.close()

    def commit(self, group: str, topic: str, offsets: Mapping[int, Committed]) -> None:
        """Set a group's offsets by hand, as an operator would; refused by the broker while the group has members."""
        _in_a_loop(self._write_offsets(group, {AioTopicPartition(topic, p): tuple(at) for p, at in offsets.items()}))

    async def _write_offsets(self, group: str, offsets: dict[Any, Any]) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign(list(offsets))
            await consumer.commit(offsets)
        finally:
            await consumer.stop()

    def members(self, group: str) -> int:
        """How many members the group has now; 0 for a group that doesn't exist."""
        try:
            description = self._admin.describe_consumer_groups([group])[group].result(_TIMEOUT)
        except KafkaException as failure:
            if failure.args[0].code() in _NO_GROUP_YET:
                return 0
            raise
        return len(description.members)

    def coordinator(self, group: str) -> str:
        """Address of the broker that coordinates the group."""
        node = self._admin.describe_consumer_groups([group])[group].result(_TIMEOUT).coordinator
        return f"{node.host}:{node.port}"

    def wait_committed(self, group: str, topic: str, *, timeout: float = 90.0) -> None:
        """Wait until the group has committed the end of every partition that isn't empty."""
        ends = {partition: end for partition, end in self.ends(topic).items() if end > 0}

        def at_end() -> bool:
            committed = self.committed(group, topic)
            return all(partition in committed and committed[partition].offset >= end for partition, end in ends.items())

        wait_until(at_end, description=f"group {group} to commit the end of {topic}", timeout=timeout, interval=0.1)

    def compact(self, topic: str, *, timeout: float = 90.0) -> list[Stored]:
        """Make the cleaner compact a COMPACTED topic and return what it keeps: the last record of each key.

        The cleaner leaves the segment being written alone, and only a write rolls a segment: so records with the key
        b"-" are written to every partition until no other key is there twice.
        """

        def compacted() -> bool:
            self.produce(topic, [Message(b"-", b"", partition=partition) for partition in self.partitions(topic)])
            kept = [(record.partition, record.key) for record in self.read(topic) if record.key != b"-"]
            return len(kept) == len(set(kept))

        wait_until(compacted, description=f"{topic} to be compacted", timeout=timeout, interval=0.2)
        return [record for record in self.read(topic) if record.key != b"-"]

    def _watermarks(self, topic: str) -> dict[int, tuple[int, int]]:
        consumer = Consumer({**self._config, "group.id": "reader", "enable.auto.commit": False})
        try:
            return {partition: _watermarks_of(consumer, topic, partition) for partition in self.partitions(topic)}
        finally:
            consumer.close()


def _watermarks_of(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """While a partition changes its leader nobody can tell."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT)
            return low, high
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _in_a_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run it in a loop of its own, in a thread: the caller may be in a loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(_TIMEOUT)


def _results(futures: "Mapping[Any, Future[Any]]") -> None:
    for future in futures.values():
        future.result(_TIMEOUT)


def _send(producer: Producer, topic: str, messages: Iterable[Message]) -> None:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    for message in messages:
        where: dict[str, Any] = {}
        if message.partition is not None:
            where["partition"] = message.partition
        if message.timestamp_ms is not None:
            where["timestamp"] = message.timestamp_ms
        while True:
            try:
                producer.produce(
                    topic, message.value, message.key, headers=list(message.headers), on_delivery=delivered, **where
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(_ACKNOWLEDGED):
        raise TimeoutError(f"not every message to {topic} was acknowledged within {_ACKNOWLEDGED:g} s")
    if failures:
        raise KafkaException(failures[0])


def _stored(message: Any) -> Stored:
    return Stored(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )
