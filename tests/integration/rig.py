"""What a test of the running worker needs: a topic of its own, records in it, workers that always stop.

A worker runs in the test's own process where it ends in peace, and in a child where it is killed or measured.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.kafka.events import EventKind, Health, RecordEvent
from pyrula.workflows import ValkeyStore
from pyrula.workflows.store.port import SourceStore
from tests.services.topics import Committed, Message, Stored, Topics
from tests.services.waiting import wait_until_async

# Short, so that tests are; a drain is as long as a body may take, and a session survives a stalled machine.
OPTIONS: Mapping[str, Any] = {
    "session_timeout": 10.0,
    "heartbeat_interval": 1.0,
    "drain_timeout": 1.0,
    "commit_interval": 0.1,
    "fetch_max_wait": 0.1,
}


class Running:
    """A worker at work, and what it told."""

    def __init__(self, worker: KafkaWorker, events: list[RecordEvent]) -> None:
        self.worker = worker
        self.events = events

    def told(self, kind: EventKind) -> list[RecordEvent]:
        return [event for event in self.events if event.kind == kind]

    @property
    def health(self) -> Health:
        return self.worker.health()

    @property
    def reasons(self) -> str:
        """All that health complains of, as one text."""
        return "\n".join(reason for binding in self.health.bindings for reason in binding.reasons)


class Rig:
    """One input topic with its dead-letter topic, one group, one namespace of the store."""

    def __init__(self, kafka: str, valkey: str, prefix: str, namespace: str) -> None:
        self.kafka = kafka
        self.valkey = valkey
        self.namespace = namespace
        self.topic = f"{prefix}-in"
        self.group = f"{prefix}-group"
        self.letters = f"{self.topic}.{self.group}.dlq"
        self.topics = Topics(kafka)
        self._workers: set[asyncio.Task[None]] = set()

    def binding(self, workflow: Any, **options: Any) -> Binding:
        return Binding(workflow, **{"topic": self.topic, "group": self.group, **options})

    def store(self) -> SourceStore:
        return ValkeyStore(self.valkey, namespace=self.namespace)

    @asynccontextmanager
    async def running(self, *bindings: Binding, **options: Any) -> AsyncIterator[Running]:
        """A worker that has joined its groups; stopped at the end, whose failure would be the test's."""
        events: list[RecordEvent] = []
        worker = KafkaWorker(
            bindings,
            store=self.store(),
            kafka=KafkaOptions(bootstrap_servers=self.kafka, **{**OPTIONS, **options}),
            on_event=events.append,
        )
        task = asyncio.get_running_loop().create_task(worker.run(), name="worker")
        self._workers.add(task)
        try:
            await self.until(lambda: worker.health().state != "starting", "the worker to have started", timeout=60)
            yield Running(worker, events)
        finally:
            worker.stop()
            await asyncio.wait([task])
            self._workers.discard(task)
            failure = task.exception()
        if failure is not None:
            raise failure

    async def until(self, predicate: Callable[[], Any], description: str, timeout: float = 90.0) -> Any:
        """The predicate's first true value, with the patience that a busy machine needs; raises what ends a worker."""

        async def look() -> Any:
            for task in self._workers:
                if task.done():
                    task.result()
            value = predicate()
            return await value if isinstance(value, Awaitable) else value

        return await wait_until_async(look, description=description, timeout=timeout, interval=0.02)

    async def create(self, *more: str, partitions: int = 1, letters: bool = True, **config: str) -> None:
        """The input topic (which the configuration is for), its dead-letter topic, and whatever else is named."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        await asyncio.to_thread(self.topics.create, self.topic, partitions=partitions, config=settings)
        rest = [*more, *([self.letters] if letters else [])]
        if rest:
            await asyncio.to_thread(self.topics.create, *rest)

    async def produce(self, records: Iterable[Message | bytes | None], **settings: Any) -> None:
        """Records into the input topic, bare values without a key."""
        messages = [record if isinstance(record, Message) else Message(None, record) for record in records]
        await asyncio.to_thread(self.topics.produce, self.topic, messages, **settings)

    async def read(self, topic: str) -> list[Stored]:
        return await asyncio.to_thread(self.topics.read, topic)

    async def committed(self) -> dict[int, Committed]:
        return await asyncio.to_thread(self.topics.committed, self.group, self.topic)

    async def offset(self, partition: int = 0) -> int:
        """What is committed for a partition; 0 where nothing is, since that is what it means here."""
        committed = await self.committed()
        return committed[partition].offset if partition in committed else 0

    async def until_committed(self, offset: int, partition: int = 0, *, timeout: float = 90.0) -> None:
        async def reached() -> bool:
            return await self.offset(partition) >= offset

        await self.until(reached, f"{self.topic}[{partition}] to be committed up to {offset}", timeout)

    async def until_drained(self, *, timeout: float = 90.0) -> None:
        """The committed offset of every partition is the log's end."""
        ends = await asyncio.to_thread(self.topics.ends, self.topic)

        async def drained() -> bool:
            committed = await self.committed()
            return {number: at.offset for number, at in committed.items()} == ends

        await self.until(drained, f"{self.topic} to be drained up to {ends}", timeout)
