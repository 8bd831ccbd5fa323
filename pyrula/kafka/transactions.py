"""Exactly-once: what a partition's records produce, their offset and their completion map, in one transaction.

Each partition of a binding with ``exactly_once=True`` has a producer of its own, whose transactional id is the
partition's. A new assignee fences it first (`Transactor.start`, before the committed offset is read), so that from then
on no former assignee can commit anything; what one had under way is committed or aborted by then. docs/exactly-once.md
has the argument.

A record is put into the tracker just before the transaction that covers it commits, and goes on only after. Should that
transaction fail, nobody here knows what became of it: the partition is dropped and opened again, which reads the truth.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, Protocol

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidTopicError, KafkaError, MessageSizeTooLargeError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from pyrula.kafka.client import BrokerError, Committed
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.outputs import Done, OutputRefused, close_producer, missing, producer_arguments, refusal
from pyrula.kafka.partition import Partition
from pyrula.kafka.record import RawRecord
from pyrula.workflows.execution import Output

log = logging.getLogger("pyrula.kafka")

# Records in one transaction.
MOST_RECORDS = 1_000
# After the first record so much more time for others to join its transaction: it costs the broker some ms.
GATHER_SECONDS = 0.02
# A transaction that takes longer is given up by the broker, and its producer fenced.
TRANSACTION_SECONDS = 60.0
RETRY_SECONDS = 1.0
# How long a transaction may take that is under way when its partition is let go.
FINISH_SECONDS = 3.0
# A producer holds connections and tasks of its own, so many partitions in a process are better shared out.
MANY = 32


class Entry(NamedTuple):
    """A record that has ended: what it produces, and who waits for that to be committed."""

    record: RawRecord
    outputs: Sequence[Output]
    done: Done


class Offsets(Protocol):
    """What a group's committer does for a partition whose offsets travel in transactions."""

    def offset_of(self, partition: Partition) -> Committed:
        """What there is to commit."""

    def committed(self, partition: Partition, offset: int) -> None:
        """The broker has it."""

    def too_large(self, size: int) -> None:
        """The broker refused so much metadata with an offset."""


class Transactor:
    """The transactions of one partition during one assignment."""

    def __init__(
        self, options: KafkaOptions, group: str, tp: TopicPartition, retire: "Callable[[Transactor], None]"
    ) -> None:
        self.problem: str | None = None
        self._options = options
        self._group = group
        self._tp = tp
        self._retire = retire
        self._producer: AIOKafkaProducer | None = None
        self._entries: deque[Entry] = deque()
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._partition: Partition
        self._offsets: Offsets
        self._broken: Callable[[Partition, str], None]

    @property
    def transactional_id(self) -> str:
        """The same for every assignee of the partition."""
        return f"pyrula.{self._group}.{self._tp.topic}.{self._tp.partition}"

    async def start(self) -> None:
        """Fence every earlier producer of the partition. Raises BrokerError; it may be tried again."""
        options = self._options
        producer = AIOKafkaProducer(
            **producer_arguments(options),
            transactional_id=self.transactional_id,
            transaction_timeout_ms=int(TRANSACTION_SECONDS * 1000),
        )
        try:
            async with asyncio.timeout(options.request_timeout):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await close_producer(producer, 0)
            raise BrokerError(f"transactional id {self.transactional_id} can't be initialised: {error!r}") from error
        except BaseException:
            await close_producer(producer, 0)
            raise
        self._producer = producer

    def serve(self, partition: Partition, offsets: Offsets, broken: Callable[[Partition, str], None]) -> None:
        """Commit for the partition from now on. `broken` is told when it must be dropped and opened again."""
        self._partition = partition
        self._offsets = offsets
        self._broken = broken
        self._task = asyncio.get_running_loop().create_task(self._work(), name=f"transactions of {self._tp}")

    def put(self, record: RawRecord, outputs: Sequence[Output], done: Done) -> None:
        """Have a record's outputs committed with its offset; then `done` is called with None, or with why a topic will
        never take one of them."""
        self._entries.append(Entry(record, outputs, done))
        self._due.set()

    async def finish(self) -> None:
        """The last commit of an assignment that ends: what is complete now. What waits for its transaction is not."""
        self._drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await self._idle.wait()
                if self._partition.changed and self._task is not None and not self._task.done():
                    self._task.cancel()
                    await self._transact([])

    def let_go(self) -> None:
        """The partition is closed: have this closed, too."""
        self._retire(self)

    async def close(self) -> None:
        """Disconnect. A transaction under way is ended by whoever has the partition next."""
        self._drop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await close_producer(producer, 0)

    def _drop(self) -> None:
        while self._entries:
            self._entries.popleft().done(None)

    async def _work(self) -> None:
        interval = self._options.commit_interval
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._due.wait()
            self._due.clear()
            if self._entries:
                await asyncio.sleep(GATHER_SECONDS)
            elif not self._partition.changed:
                continue
            batch = [self._entries.popleft() for _ in range(min(MOST_RECORDS, len(self._entries)))]
            ready = await self._with_topics(batch)
            if self._entries:
                self._due.set()
            if ready or self._partition.changed:
                await self._transact(ready)

    async def _with_topics(self, batch: list[Entry]) -> list[Entry]:
        """Those whose topics exist. The others are tried again; their lanes wait, and nothing else does."""
        assert self._producer is not None
        cluster = self._producer.client.cluster
        ready = []
        told = None
        for entry in batch:
            lacking = [output.topic for output in entry.outputs if not cluster.partitions_for_topic(output.topic)]
            if lacking:
                with suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._producer.client.add_topic(lacking[0])
                lacking = [topic for topic in lacking if not cluster.partitions_for_topic(topic)]
            if lacking:
                told = missing(lacking[0])
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self.put, *entry)
            else:
                ready.append(entry)
        if told is not None and told != self.problem:
            log.warning("%s[%d]: %s (records that wait for it stay unfinished)", *self._tp, told)
        self.problem = told
        return ready

    async def _transact(self, batch: list[Entry]) -> None:
        partition, began = self._partition, monotonic()
        self._idle.clear()
        try:
            async with asyncio.timeout(TRANSACTION_SECONDS):
                if await self._commit(batch):
                    return
        except _Refused as refused:
            # The producer can't go on: the broker lacks one of its sequence.
            self._give_up(batch, str(refused.why), refused)
        except OffsetMetadataTooLargeError as error:
            self._offsets.too_large(len(self._offsets.offset_of(partition).metadata))
            self._give_up(batch, f"the broker refused the offset's metadata: {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever it is, what became of the transaction isn't known
            self._give_up(batch, f"its transaction failed after {monotonic() - began:.1f} s: {error!r}")
        finally:
            self._idle.set()

    async def _commit(self, batch: list[Entry]) -> bool:
        """One transaction. False if it was aborted since a record in it can't be sent at all."""
        producer, partition = self._producer, self._partition
        assert producer is not None
        await producer.begin_transaction()
        sent: list[tuple[Entry, Output, asyncio.Future[object]]] = []
        for at, entry in enumerate(batch):
            for output in entry.outputs:
                try:
                    answer = await producer.send(
                        output.topic,
                        output.value,
                        key=output.key,
                        partition=output.partition,
                        timestamp_ms=output.timestamp_ms,
                        headers=list(output.headers),
                    )
                except (MessageSizeTooLargeError, InvalidTopicError, AssertionError, ValueError, TypeError) as error:
                    await producer.abort_transaction()
                    for other in (*batch[:at], *batch[at + 1 :]):
                        self.put(*other)
                    entry.done(refusal(output.topic, error))
                    return False
                # the first error ends the transaction, and nobody looks at the others
                answer.add_done_callback(_seen)
                sent.append((entry, output, answer))
        for entry, output, answer in sent:
            try:
                await answer
            except MessageSizeTooLargeError as error:
                raise _Refused(entry, refusal(output.topic, error)) from error
        partition.changed = False
        partition.reckon([entry.record for entry in batch])
        offset = self._offsets.offset_of(partition)
        await producer.send_offsets_to_transaction({self._tp: OffsetAndMetadata(*offset)}, self._group)
        await producer.commit_transaction()
        self._offsets.committed(partition, offset.offset)
        for entry in batch:
            entry.done(None)
        return True

    def _give_up(self, batch: list[Entry], why: str, refused: "_Refused | None" = None) -> None:
        self._broken(self._partition, why)
        for entry in batch:
            entry.done(refused.why if refused is not None and entry is refused.entry else None)


def _seen(answer: "asyncio.Future[object]") -> None:
    if not answer.cancelled():
        answer.exception()


class _Refused(Exception):
    """The broker will never take one of a record's outputs."""

    def __init__(self, entry: Entry, why: OutputRefused) -> None:
        self.entry = entry
        self.why = why
        super().__init__(why)
