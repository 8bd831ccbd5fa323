"""What a dev session asks of its broker beside the worker: produce records, read a topic, see how far a group came."""

from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

__all__ = ["DevClient"]

Headers = Sequence[tuple[str, bytes]]


class DevClient:
    """A producer, a consumer without a group and an admin client of one embedded broker."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=2)
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, fetch_max_wait_ms=10
        )
        self._admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        self._unkeyed = 0

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self._consumer.start()
        await self._admin.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()
        await self._consumer.stop()
        await self._admin.close()

    async def produce(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]]
    ) -> list[tuple[int, int]]:
        """Send (key, value, headers) in order; returns each one's partition and offset once all are acknowledged.

        The same records always land at the same partitions and offsets: those without a key go round.
        """
        partitions = sorted(await self._producer.partitions_for(topic))
        acknowledgements = []
        for key, value, headers in records:
            partition = None
            if key is None:
                partition = partitions[self._unkeyed % len(partitions)]
                self._unkeyed += 1
            acknowledgements.append(
                await self._producer.send(topic, value, key=key, partition=partition, headers=list(headers))
            )
        await self._producer.flush()
        told = [acknowledgement.result() for acknowledgement in acknowledgements]
        return [(metadata.partition, metadata.offset) for metadata in told]

    async def ends(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """The end offset of every partition of some topics."""
        ends = await self._consumer.end_offsets(await self._partitions(topics))
        return {(tp.topic, tp.partition): end for tp, end in ends.items()}

    async def committed(self, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """What a group has committed; a partition without a commit is left out."""
        found = await self._admin.list_consumer_group_offsets(group, partitions=await self._partitions(topics))
        return {(tp.topic, tp.partition): entry.offset for tp, entry in found.items() if entry.offset >= 0}

    async def read(self, topic: str) -> AsyncIterator[ConsumerRecord[Any, Any]]:
        """Every record that the topic holds now, partition by partition."""
        partitions = await self._partitions([topic])
        ends = await self._consumer.end_offsets(partitions)
        for tp in partitions:
            self._consumer.assign([tp])
            await self._consumer.seek_to_beginning(tp)
            while await self._consumer.position(tp) < ends[tp]:
                for record in (await self._consumer.getmany(tp, timeout_ms=200)).get(tp, ()):
                    yield record

    async def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition)
            for topic in sorted(topics)
            for partition in sorted(await self._producer.partitions_for(topic))
        ]
