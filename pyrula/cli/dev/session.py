"""A dev session: broker, topics, worker, and records fed no faster than they are finished, until all of them are.

Owns the order of things and nothing of what is printed (`report`) or counted (`tally`). A session ends when every
record of every input topic is finished, those that runs sent to one another included; or when the rest can't finish.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice

from pyrula.cli.dev.records import Given
from pyrula.cli.dev.tally import Tally
from pyrula.cli.problem import Problem
from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.kafka.embedded import FETCH_MAX_WAIT, SAFE_BYTES, EmbeddedBroker
from pyrula.kafka.embedded.client import DevClient
from pyrula.kafka.events import RecordEvent
from pyrula.workflows import MemoryStore

__all__ = ["Session"]

# Records and bytes sent in one go.
_CHUNK = 500
_CHUNK_BYTES = 256 * 1024
# With records held (stopped, paused) and nothing else happening for so long, the rest won't finish.
_QUIET_SECONDS = 3.0
_LOOK_SECONDS = 0.05


class Session:
    """One run of `pyrula dev`. `hint`: so many records are to be expected.

    After `run`, `committed` says whether the groups' offsets agree with what was counted.
    """

    def __init__(
        self,
        bindings: Sequence[Binding],
        records: Iterable[Given],
        *,
        store: MemoryStore,
        partitions: int = 4,
        hint: int = 0,
        on_event: Callable[[RecordEvent], None] | None = None,
        on_progress: Callable[["Session"], None] | None = None,
    ) -> None:
        self.bindings = list(bindings)
        self.tally = Tally(Counter(topic for binding in bindings for topic in binding.topics))
        self.expected = hint
        self.seconds = 0.0
        self.interrupted = False
        self.committed = False
        self._records = records
        self._store = store
        self._partitions = partitions
        self._on_event = on_event
        self._on_progress = on_progress
        self._moved = asyncio.Event()
        self._last_event = 0.0
        self._inputs = sorted({topic for binding in bindings for topic in binding.topics})

    @property
    def complete(self) -> bool:
        """True when every record is finished and every offset committed."""
        return self.committed and not self.interrupted and not self.tally.lost and self.tally.finished == self.expected

    @property
    def rate(self) -> float:
        """Records finished a second, so far."""
        return self.tally.finished / self.seconds if self.seconds else 0.0

    async def run(
        self, broker: EmbeddedBroker, afterwards: Callable[[DevClient], Awaitable[None]] | None = None
    ) -> None:
        """Feed and work to the end; then `afterwards`, while the broker still answers."""
        for topic in self._topics():
            broker.create_topic(topic, self._partitions)
        options = KafkaOptions(
            bootstrap_servers=broker.bootstrap,
            client_id="pyrula-dev",
            fetch_max_wait=FETCH_MAX_WAIT,
            commit_interval=0.2,
            drain_timeout=10.0,
        )
        clusters = {binding.cluster: options for binding in self.bindings}
        worker = KafkaWorker(self.bindings, store=self._store, kafka=clusters, on_event=self._take)
        async with DevClient(broker.bootstrap) as client:
            work = asyncio.create_task(worker.run(), name="worker")
            watch = asyncio.create_task(self._watch(broker, client, worker), name="watch")
            try:
                await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
                # A worker that ends first failed, or drained at Ctrl-C.
                self.interrupted = not watch.done()
                worker.stop()
                await work
                if self.interrupted:
                    return
                watch.result()
                self.committed = await self._all_committed(client)
                if afterwards is not None:
                    await afterwards(client)
            finally:
                watch.cancel()
                work.cancel()
                await asyncio.gather(watch, work, return_exceptions=True)

    def _topics(self) -> list[str]:
        topics = set(self._inputs)
        for binding in self.bindings:
            topics.update(binding.dead_letter_topic_of(topic) for topic in binding.topics)
            if binding.output is not None:
                topics.add(binding.output)
        return sorted(topics)

    def _take(self, event: RecordEvent) -> None:
        first = self.tally.on_event(event)
        self._last_event = time.monotonic()
        self._moved.set()
        if first and self._on_event is not None:
            self._on_event(event)

    async def _watch(self, broker: EmbeddedBroker, client: DevClient, worker: KafkaWorker) -> None:
        started = self._last_event = time.monotonic()
        feed = asyncio.create_task(self._feed(client), name="feed")
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                broker.check()
                fed = feed.done()
                if fed:
                    feed.result()
                ends = await client.ends(self._inputs)
                total = sum(ends[place] for place in ends for b in self.bindings if place[0] in b.topics)
                self.expected = total if fed else max(total, self.expected)
                self.seconds = self._last_event - started
                if self._on_progress is not None:
                    self._on_progress(self)
                if fed and (self.tally.finished >= total or self._is_stuck(worker)):
                    return
        finally:
            feed.cancel()
            await asyncio.gather(feed, return_exceptions=True)

    def _is_stuck(self, worker: KafkaWorker) -> bool:
        if not self.tally.held and not self.tally.lost:
            return False
        working = sum(stats.in_flight for stats in worker.stats())
        return not working and time.monotonic() - self._last_event > _QUIET_SECONDS

    async def _feed(self, client: DevClient) -> None:
        records = iter(self._records)
        # The records may come from a pipe, so the loop doesn't wait for them.
        while chunk := await asyncio.to_thread(_next_chunk, records):
            size = sum(record.size for record in chunk)
            while self.tally.unfinished_bytes and self.tally.unfinished_bytes + size > SAFE_BYTES:
                self._moved.clear()
                await self._moved.wait()
            for topic, part in groupby(chunk, key=self._topic_of):
                given = list(part)
                places = await client.produce(topic, [(record.key, record.value, record.headers) for record in given])
                for record, (partition, offset) in zip(given, places, strict=True):
                    self.tally.on_sent(topic, partition, offset, record.size)

    def _topic_of(self, record: Given) -> str:
        if record.topic is None:
            if len(self._inputs) == 1:
                return self._inputs[0]
            raise Problem(
                f"the bindings read {', '.join(self._inputs)}: say with a record's topic which one it is for"
                ' (--envelope and {"topic": …, "value": …}, or the same from sample_records)'
            )
        if record.topic not in self._inputs:
            raise Problem(f"a record is for topic {record.topic}, but the bindings read {', '.join(self._inputs)}")
        return record.topic

    async def _all_committed(self, client: DevClient) -> bool:
        ends = {place: end for place, end in (await client.ends(self._inputs)).items() if end}
        for binding in self.bindings:
            committed = await client.committed(binding.group, binding.topics)
            if any(committed.get(place, 0) < end for place, end in ends.items() if place[0] in binding.topics):
                return False
        return True


def _next_chunk(records: Iterator[Given]) -> list[Given]:
    chunk: list[Given] = []
    size = 0
    for record in islice(records, _CHUNK):
        chunk.append(record)
        size += record.size
        if size >= _CHUNK_BYTES:
            break
    return chunk
