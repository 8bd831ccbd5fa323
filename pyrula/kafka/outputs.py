"""Records that runs produce: results and dead letters, idempotently, counted only when the broker acknowledged them.

Each topic has a queue and a sender of its own, so a topic that is missing, forbidden or slow holds back only its own
records. What a topic refuses for good (a record too large, an impossible partition) is told to the caller at once; all
else is tried again until it goes through, and `problems` names the topic meanwhile.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from pyrula.kafka.options import KafkaOptions
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.execution import Output

log = logging.getLogger("pyrula.kafka")

RETRY_SECONDS = 1.0
STOP_SECONDS = 1.0
# A topic that isn't known is asked for again after so many seconds, before it counts as missing.
FIRST_PAUSES = (0.1, 0.2, 0.4)
# Handing a record to a producer takes no time unless its topic is unknown.
SEND_SECONDS = 10.0
# What a producer that is given up still has under way may take so long.
FLUSH_SECONDS = 5.0
# A topic that acknowledges nothing for so long while something waits for it is worth a word.
SILENCE_SECONDS = 3.0


class OutputRefused(PyrulaError):
    """A topic will never take this record as it is."""

    def __init__(self, topic: str, text: str) -> None:
        self.topic = topic
        super().__init__(text)

    def __reduce__(self) -> tuple[type["OutputRefused"], tuple[str, str]]:
        return type(self), (self.topic, str(self))


class TooLarge(OutputRefused):
    """The record is larger than the topic or the producer allows."""


Done = Callable[[OutputRefused | None], None]


class Producing(Protocol):
    """Takes the outputs of runs."""

    def produce(self, outputs: Sequence[Output], done: Done) -> None:
        """`done` is called on the loop, once: with None when all are acknowledged, or with why one was refused."""


class _Pending:
    """What one run has on its way: `done` is called once, when all of it is acknowledged or one part is refused."""

    __slots__ = ("done", "left")

    def __init__(self, left: int, done: Done) -> None:
        self.left = left
        self.done: Done | None = done

    def acknowledged(self) -> None:
        self.left -= 1
        if self.left == 0 and self.done is not None:
            done, self.done = self.done, None
            done(None)

    def refused(self, error: OutputRefused) -> None:
        if self.done is not None:
            done, self.done = self.done, None
            done(error)


class Outputs:
    """The producing side of one cluster in one worker."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._producer: AIOKafkaProducer | None = None
        self._senders: dict[str, _Sender] = {}
        self._starting = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self.stopped = False
        self.told: dict[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """By topic, what keeps records from being written there, and the way out."""
        return {**{topic: text for topic, one in self._senders.items() if (text := one.silence())}, **self.told}

    def exists(self, topic: str) -> bool:
        """Whether the topic existed when the cluster was last asked."""
        return self._producer is None or bool(self._producer.client.cluster.partitions_for_topic(topic))

    def produce(self, outputs: Sequence[Output], done: Done) -> None:
        """Queue the outputs of one run; `done` is called on the loop with None, or with why one was refused."""
        pending = _Pending(len(outputs), done)
        for output in outputs:
            sender = self._senders.get(output.topic)
            if sender is None:
                sender = self._senders[output.topic] = _Sender(self, output.topic)
            sender.put(output, pending)

    async def producer(self) -> AIOKafkaProducer:
        """The running producer, started at the first output. Raises KafkaError when no broker answers."""
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(**producer_arguments(self._options))
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
                return producer
            return self._producer

    def is_current(self, producer: AIOKafkaProducer) -> bool:
        """Whether new records still go to this producer."""
        return producer is self._producer

    def renew(self, producer: AIOKafkaProducer) -> None:
        """An idempotent producer that lost its sequence can't go on: the next send gets a new one."""
        if self.is_current(producer):
            self._producer = None
            self._retire(producer, FLUSH_SECONDS)

    def _retire(self, producer: AIOKafkaProducer, flush: float) -> None:
        task = asyncio.get_running_loop().create_task(close_producer(producer, flush), name="close producer")
        self._retiring.add(task)
        task.add_done_callback(self._retired)

    def _retired(self, task: "asyncio.Task[None]") -> None:
        self._retiring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a producer that was given up did not close cleanly: %r", error)

    async def stop(self) -> None:
        """Disconnect. What is not acknowledged by now stays so, and its records stay unfinished."""
        self.stopped = True
        for sender in self._senders.values():
            sender.task.cancel()
        await asyncio.gather(*(sender.task for sender in self._senders.values()), return_exceptions=True)
        for task in self._retiring:
            task.cancel()
        if self._producer is not None:
            self._retire(self._producer, 0)
            self._producer = None
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=STOP_SECONDS)


def producer_arguments(options: KafkaOptions) -> dict[str, Any]:
    """What every producer of ours is made with: idempotent, and acknowledged by all replicas."""
    return {
        **options.connection(),
        "enable_idempotence": True,
        "acks": "all",
        "linger_ms": int(options.linger * 1000),
        "compression_type": options.compression,
        "max_request_size": options.max_request_size,
        "max_batch_size": options.max_batch_size,
        "request_timeout_ms": int(options.request_timeout * 1000),
        "metadata_max_age_ms": int(options.metadata_max_age * 1000),
    }


async def close_producer(producer: AIOKafkaProducer, flush: float) -> None:
    """Let what is under way arrive for so long, fail the rest, and disconnect. The producer's own stop() alone would
    wait for topics that are gone, without end."""
    try:
        if flush:
            async with asyncio.timeout(flush):
                await producer.flush()
    except (KafkaError, TimeoutError):
        pass
    finally:
        _fail_unsent(producer)
        await producer.stop()


def _fail_unsent(producer: AIOKafkaProducer) -> None:
    accumulator = producer._message_accumulator  # noqa: SLF001
    accumulator.fail_all(KafkaConnectionError("the producer was closed"))
    for batch in chain.from_iterable(accumulator._batches.values()):  # noqa: SLF001
        # Whoever waited for room in it is gone; asyncio would complain that nobody saw the error.
        batch._drain_waiter.exception()  # noqa: SLF001


class _Sender:
    def __init__(self, outputs: Outputs, topic: str) -> None:
        self._outputs = outputs
        self._topic = topic
        self._queue: deque[tuple[Output, _Pending]] = deque()
        self._filled = asyncio.Event()
        self._waiting = 0
        self._heard = 0.0
        self._missing = False
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"outputs to {topic}")

    def put(self, output: Output, pending: _Pending) -> None:
        if not self._waiting:
            self._heard = monotonic()
        self._waiting += 1
        self._put(output, pending)

    def _put(self, output: Output, pending: _Pending) -> None:
        self._queue.append((output, pending))
        self._filled.set()

    def silence(self) -> str:
        """What to say of a topic that has acknowledged nothing for a while, though something waits for it; else ""."""
        seconds = monotonic() - self._heard
        if not self._waiting or seconds < SILENCE_SECONDS:
            return ""
        if not self._outputs.exists(self._topic):
            return missing(self._topic)
        return f"topic {self._topic} has acknowledged nothing for {seconds:.0f} s; is its leader up?"

    def _settled(self) -> None:
        self._waiting -= 1
        self._heard = monotonic()

    async def _run(self) -> None:
        queue = self._queue
        while True:
            if not queue:
                self._filled.clear()
                await self._filled.wait()
            output, pending = queue[0]
            try:
                producer = await self._outputs.producer()
                async with asyncio.timeout(SEND_SECONDS):
                    if not producer.client.cluster.partitions_for_topic(self._topic):
                        await self._find(producer)
                    acknowledged = await producer.send(
                        output.topic,
                        output.value,
                        key=output.key,
                        partition=output.partition,
                        timestamp_ms=output.timestamp_ms,
                        headers=list(output.headers),
                    )
            except (MessageSizeTooLargeError, InvalidTopicError, AssertionError, ValueError, TypeError) as error:
                queue.popleft()
                self._settled()
                pending.refused(refusal(self._topic, error))
            except (KafkaError, OSError) as error:
                self._trouble(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                queue.popleft()
                acknowledged.add_done_callback(partial(self._answered, producer, output, pending))

    async def _find(self, producer: AIOKafkaProducer) -> None:
        """Have the producer know the topic. It would look for it by itself, but ten times a second with a line in the
        log each time, and also when it was given up meanwhile."""
        client, topic = producer.client, self._topic
        # one that is made by being asked for has its leader a moment later
        for pause in (0.0,) if self._missing else (*FIRST_PAUSES, 0.0):
            client.add_topic(topic)
            if not await client.force_metadata_update():
                raise KafkaConnectionError("no broker answers")
            if topic in client.cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(topic)
            self._missing = not client.cluster.partitions_for_topic(topic)
            if not self._missing:
                return
            await asyncio.sleep(pause)
        raise UnknownTopicOrPartitionError(topic)

    def _answered(
        self, producer: AIOKafkaProducer, output: Output, pending: _Pending, answer: "asyncio.Future[object]"
    ) -> None:
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if error is None:
            self._settled()
            if self._outputs.told:
                self._outputs.told.pop(self._topic, None)
            pending.acknowledged()
        elif isinstance(error, MessageSizeTooLargeError | InvalidTopicError):
            # The broker expects this one's sequence number of what follows it.
            self._outputs.renew(producer)
            self._settled()
            pending.refused(refusal(self._topic, error))
        elif self._outputs.stopped:
            return
        elif not self._outputs.is_current(producer):
            self._put(output, pending)
        else:
            self._trouble(error)
            if not (isinstance(error, KafkaError) and error.retriable):
                self._outputs.renew(producer)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._put, output, pending)

    def _trouble(self, error: BaseException) -> None:
        unknown = not isinstance(error, KafkaConnectionError) and not self._outputs.exists(self._topic)
        if unknown or isinstance(error, UnknownTopicOrPartitionError):
            text = missing(self._topic)
        elif isinstance(error, TopicAuthorizationFailedError):
            text = f"not allowed to write to topic {self._topic}; grant it WRITE"
        else:
            text = f"writing to topic {self._topic} fails: {error!r}"
        if self._outputs.told.get(self._topic) != text:
            log.warning("%s (records that wait for it stay unfinished)", text)
        self._outputs.told[self._topic] = text


def refusal(topic: str, error: Exception) -> OutputRefused:
    """What to say of a record that a topic will never take."""
    if isinstance(error, MessageSizeTooLargeError):
        return TooLarge(
            topic,
            f"topic {topic} refused a record as too large ({error}); raise the topic's max.message.bytes "
            "and KafkaOptions(max_request_size=...), or send less",
        )
    return OutputRefused(topic, f"topic {topic} refused a record: {error!r}")


def missing(topic: str) -> str:
    """What to say of a topic that isn't there."""
    return f"topic {topic} does not exist; create it"
