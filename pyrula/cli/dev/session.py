"""A dev session: broker, topics, worker, and records fed no faster than they are finished, until all of them are.

Owns the order of things and nothing of what is printed (`report`) or counted (`tally`). A session ends when every
record of every input topic is finished, those that runs sent to one another included; or when the rest can't finish.
When the user's code changes, what runs is drained, and the new code goes on with the same records and journals.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby

from pyrula.cli.dev.code import UserCode
from pyrula.cli.dev.feed import Feed
from pyrula.cli.dev.records import Given
from pyrula.cli.dev.tally import Tally
from pyrula.cli.problem import Problem
from pyrula.kafka import KafkaOptions, KafkaWorker
from pyrula.kafka.embedded import FETCH_MAX_WAIT, SAFE_BYTES, EmbeddedBroker
from pyrula.kafka.embedded.client import DevClient
from pyrula.kafka.events import RecordEvent
from pyrula.workflows import MemoryStore

__all__ = ["Session"]

# With records held (stopped, paused) and nothing else happening for so long, the rest won't finish.
_QUIET_SECONDS = 3.0
_LOOK_SECONDS = 0.05
# Between two looks at the user's files.
_CODE_SECONDS = 0.2
# At a change of the code or at Ctrl-C bodies may go on for so long; those that are cut go on from their journals.
_DRAIN_SECONDS = 5.0


class Session:
    """One run of `pyrula dev`. `hint`: so many records are to be expected.

    `again` gives records to feed after a change of the code; with it the session goes on until it is interrupted, and
    `on_round` is called each time when all is done. `on_reload` is called when new code was taken up, `on_problem` for
    what doesn't end the session.
    After `run`, `committed` says whether the groups' offsets agree with what was counted.
    """

    def __init__(
        self,
        code: UserCode,
        records: Iterable[Given],
        *,
        store: MemoryStore,
        partitions: int = 4,
        hint: int = 0,
        watched: bool = True,
        again: Callable[[], Iterable[Given]] | None = None,
        on_event: Callable[[RecordEvent], None] | None = None,
        on_progress: Callable[["Session"], None] | None = None,
        on_round: Callable[["Session"], None] | None = None,
        on_reload: Callable[[], None] | None = None,
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        self.bindings = list(code.bindings)
        self.tally = Tally(Counter(topic for binding in self.bindings for topic in binding.topics))
        self.expected = hint
        self.seconds = 0.0
        self.interrupted = False
        self.committed = False
        self._code = code
        self._records = records
        self._store = store
        self._partitions = partitions
        self._watched = watched
        self._again = again
        self._on_event = on_event
        self._on_progress = on_progress
        self._on_round = on_round
        self._on_reload = on_reload
        self._on_problem = on_problem
        self._moved = asyncio.Event()
        self._last_event = 0.0
        self._looked = 0.0

    @property
    def inputs(self) -> list[str]:
        """The topics that are read."""
        return sorted({topic for binding in self.bindings for topic in binding.topics})

    @property
    def done(self) -> bool:
        """True when every record is finished."""
        return not self.tally.lost and self.tally.finished == self.expected

    @property
    def complete(self) -> bool:
        """True when every record is finished and every offset committed."""
        return self.committed and not self.interrupted and self.done

    @property
    def rate(self) -> float:
        """Records finished a second, so far."""
        return self.tally.finished / self.seconds if self.seconds else 0.0

    async def run(
        self, broker: EmbeddedBroker, afterwards: Callable[[DevClient], Awaitable[None]] | None = None
    ) -> None:
        """Feed and work to the end; then `afterwards`, while the broker still answers."""
        self._make_topics(broker)
        options = KafkaOptions(
            bootstrap_servers=broker.bootstrap,
            client_id="pyrula-dev",
            fetch_max_wait=FETCH_MAX_WAIT,
            commit_interval=0.2,
            drain_timeout=_DRAIN_SECONDS,
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

    def _make_topics(self, broker: EmbeddedBroker) -> None:
        topics = set(self.inputs)
        for binding in self.bindings:
            topics.update(binding.dead_letter_topic_of(topic) for topic in binding.topics)
            if binding.output is not None:
                topics.add(binding.output)
        for topic in sorted(topics):
            broker.create_topic(topic, self._partitions)

    def _take(self, event: RecordEvent) -> None:
        first = self.tally.on_event(event)
        self._last_event = time.monotonic()
        self._moved.set()
        if first and self._on_event is not None:
            self._on_event(event)

    async def _watch(self, broker: EmbeddedBroker, client: DevClient, worker: KafkaWorker) -> None:
        started = self._last_event = time.monotonic()
        feeding = asyncio.create_task(self._feed(client, self._records), name="feed")
        told = False
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                broker.check()
                if await self._renew(broker, worker):
                    told = False
                    if self._again is not None and feeding.done():
                        feeding = asyncio.create_task(self._feed(client, self._again()), name="feed")
                fed = feeding.done()
                if fed:
                    feeding = self._checked(feeding)
                # What is finished has sent its records before, so the ends that are asked for after it count them.
                finished = self.tally.finished
                ends = await client.ends(self.inputs)
                total = sum(ends[place] for place in ends for b in self.bindings if place[0] in b.topics)
                self.expected = total if fed else max(total, self.expected)
                self.seconds = self._last_event - started
                if self._on_progress is not None:
                    self._on_progress(self)
                if not told and fed and (finished >= total or self._is_stuck(worker)):
                    if self._again is None:
                        return
                    told = True
                    if self._on_round is not None:
                        self._on_round(self)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _renew(self, broker: EmbeddedBroker, worker: KafkaWorker) -> bool:
        """Take up the user's code if it has changed. Whether there is new code."""
        now = time.monotonic()
        if not self._watched or now - self._looked < _CODE_SECONDS or worker.health().state == "starting":
            return False
        self._looked = now
        if not self._code.changed():
            return False
        try:
            self._code.reload()
        except Problem as error:
            self._tell(Problem(f"{self._code.path} has changed, but the former code goes on: {error}"))
            return False
        self.bindings = list(self._code.bindings)
        self._make_topics(broker)
        if self._on_reload is not None:
            self._on_reload()
        await worker.rebind(self.bindings)
        self._last_event = time.monotonic()
        return True

    def _checked(self, feeding: "asyncio.Task[None]") -> "asyncio.Task[None]":
        """What made the feeding fail, in records or code, may be mended while the session goes on."""
        try:
            feeding.result()
        except Problem as error:
            if self._again is None:
                raise
            self._tell(error)
            return _nothing_to_feed()
        return feeding

    def _tell(self, problem: Problem) -> None:
        if self._on_problem is not None:
            self._on_problem(problem)

    def _is_stuck(self, worker: KafkaWorker) -> bool:
        if not self.tally.held and not self.tally.lost:
            return False
        working = sum(stats.in_flight for stats in worker.stats())
        return not working and time.monotonic() - self._last_event > _QUIET_SECONDS

    async def _feed(self, client: DevClient, records: Iterable[Given]) -> None:
        feed = Feed(records)
        try:
            while chunk := await feed.next_chunk():
                size = sum(record.size for record in chunk)
                while self.tally.unfinished_bytes and self.tally.unfinished_bytes + size > SAFE_BYTES:
                    self._moved.clear()
                    await self._moved.wait()
                for topic, part in groupby(chunk, key=self._topic_of):
                    given = list(part)
                    places = await client.produce(topic, [(each.key, each.value, each.headers) for each in given])
                    for record, (partition, offset) in zip(given, places, strict=True):
                        self.tally.on_sent(topic, partition, offset, record.size)
        finally:
            feed.close()

    def _topic_of(self, record: Given) -> str:
        if record.topic is None:
            if len(self.inputs) == 1:
                return self.inputs[0]
            raise Problem(
                f"the bindings read {', '.join(self.inputs)}: say with a record's topic which one it is for"
                ' (--envelope and {"topic": …, "value": …}, or the same from sample_records)'
            )
        if record.topic not in self.inputs:
            raise Problem(f"a record is for topic {record.topic}, but the bindings read {', '.join(self.inputs)}")
        return record.topic

    async def _all_committed(self, client: DevClient) -> bool:
        ends = {place: end for place, end in (await client.ends(self.inputs)).items() if end}
        for binding in self.bindings:
            committed = await client.committed(binding.group, binding.topics)
            if any(committed.get(place, 0) < end for place, end in ends.items() if place[0] in binding.topics):
                return False
        return True


def _nothing_to_feed() -> "asyncio.Task[None]":
    return asyncio.create_task(asyncio.sleep(0), name="feed")
