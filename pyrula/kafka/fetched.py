"""Takes what aiokafka has fetched, many records at a time.

aiokafka's own `getmany` makes an object of Python's own of each record, one by one, which takes longer than all that a
worker has to do for a record whose body is empty. Its parser, written in C, has made one before: those are what is
taken here. They have the attributes of ``RawRecord``, and know neither topic nor partition.

Everything else is as `getmany` does it: what a reassignment, a pause or a seek has made void is dropped, a wrong
checksum raises, aborted transactions and control batches are passed over, and the position moves on with what is taken.
aiokafka's private names used here are pinned by ``tests/unit/kafka/test_fetched.py``.
"""

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException

from pyrula.kafka.record import RawRecord

__all__ = ["Unpacking", "take"]


async def take(consumer: AIOKafkaConsumer, seconds: float, most: int) -> dict[TopicPartition, list[RawRecord]]:
    """Up to `most` records that have arrived. {} after so many seconds without; raises what `getmany` does."""
    if consumer._closed:
        raise ConsumerStoppedError
    consumer._coordinator.check_errors()
    fetcher, subscription = consumer._fetcher, consumer._subscription
    deadline = monotonic() + seconds
    with subscription.fetch_context():
        while True:
            if subscription.reassignment_in_progress:
                await subscription.wait_for_assignment()
            taken = _taken(fetcher, most)
            left = deadline - monotonic()
            if taken or left <= 0:
                return taken
            arrival = fetcher._create_fetch_waiter()
            await asyncio.wait([arrival], timeout=left)
            if fetcher._closed or not arrival.done():
                arrival.cancel()
                return {}
            arrival.result()


def _taken(fetcher: Any, most: int) -> dict[TopicPartition, list[RawRecord]]:
    taken: dict[TopicPartition, list[RawRecord]] = {}
    for tp, fetched in list(fetcher._records.items()):
        if not isinstance(fetched, FetchResult):
            if taken:
                break  # an error: it is raised when the next call comes to it
            del fetcher._records[tp]
            fetcher._notify(fetcher._wait_consume_future)
            fetched.check_raise()
            continue
        records = _records_of(fetched, tp, most)
        if not fetched.has_more():
            # that is what the fetcher waits for to ask for more
            del fetcher._records[tp]
            fetcher._notify(fetcher._wait_consume_future)
        if records:
            taken[tp] = records
            most -= len(records)
            if most <= 0:
                break
    return taken


def _records_of(fetched: FetchResult, tp: TopicPartition, most: int) -> list[RawRecord]:
    if not fetched.check_assignment(tp) or not fetched.has_more():
        return []
    source = fetched._partition_records
    unpacking = source._records_iterator
    if type(unpacking) is not Unpacking:  # aiokafka's own, of which nothing was asked yet
        source._records_iterator = unpacking = Unpacking(source)
    records: list[RawRecord] = unpacking.take(most)
    fetched._update_position()
    if unpacking.ended:
        fetched._partition_records = None
    return records


class Unpacking:
    """The records of one partition in one fetch. `next_fetch_offset` of its source moves on with what is taken."""

    __slots__ = ("_chunks", "_most", "ended")

    def __init__(self, source: PartitionRecords) -> None:
        self.ended = False
        self._most = 0
        self._chunks = self._unpack(source)

    def take(self, most: int) -> list[RawRecord]:
        """Up to so many more; it `ended` if there are fewer."""
        taken: list[RawRecord] = []
        while not self.ended and len(taken) < most:
            self._most = most - len(taken)
            chunk = next(self._chunks, None)
            if chunk is None:
                self.ended = True
            else:
                taken += chunk
        return taken

    def _unpack(self, source: PartitionRecords) -> Iterator[list[RawRecord]]:
        batches = source._records
        committed_only = source._isolation_level == READ_COMMITTED
        while batches.has_next():
            batch = batches.next_batch()
            if source._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {source._tp}")
            aborted = committed_only and batch.producer_id is not None and _is_aborted(source, batch)
            if not aborted and not batch.is_control_batch:
                records = chain(batch)  # a batch may be iterated once, and islice asks for an iterator each time
                while chunk := list(islice(records, self._most)):
                    if chunk[0].offset < source.next_fetch_offset:
                        # a batch comes whole, also if it is to be read from its middle on
                        chunk = [record for record in chunk if record.offset >= source.next_fetch_offset]
                        if not chunk:
                            continue
                    source.next_fetch_offset = chunk[-1].offset + 1
                    yield chunk
            # A batch keeps its last offset when compaction takes its last record.
            source.next_fetch_offset = batch.next_offset


def _is_aborted(source: PartitionRecords, batch: Any) -> bool:
    """Whether a batch is of a transaction that was aborted; where a control batch says so, it is remembered."""
    source._consume_aborted_up_to(batch.base_offset)
    producer = batch.producer_id
    if batch.is_control_batch and source._contains_abort_marker(batch):
        source._aborted_producers.discard(producer)
    return bool(batch.is_transactional and producer in source._aborted_producers)
