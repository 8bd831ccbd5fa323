"""The topics that bindings need, and making those that don't exist. A worker itself makes none."""

from collections.abc import Iterable
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from pyrula.kafka.binding import Binding
from pyrula.kafka.client import BrokerError
from pyrula.kafka.options import KafkaOptions

__all__ = ["NeededTopic", "TopicAdmin", "topics_of"]


class NeededTopic(NamedTuple):
    """A topic and what it is for: "input", "output" or "dead letters"."""

    name: str
    purpose: str


def topics_of(bindings: Iterable[Binding]) -> list[NeededTopic]:
    """Each topic once. Those that bodies send to with ctx.send aren't known here."""
    found: dict[str, str] = {}
    for binding in bindings:
        for topic in binding.topics:
            found[topic] = "input"
        if binding.output is not None:
            found.setdefault(binding.output, "output")
        if binding.dead_letters:
            for topic in binding.topics:
                found.setdefault(binding.dead_letter_topic_of(topic), "dead letters")
    return [NeededTopic(*entry) for entry in found.items()]


class TopicAdmin:
    """Looks at the topics of one cluster and makes some: `async with TopicAdmin(options) as admin`."""

    def __init__(self, options: KafkaOptions) -> None:
        self._servers = options.bootstrap_servers
        self._client = AIOKafkaAdminClient(**options.connection())

    async def __aenter__(self) -> "TopicAdmin":
        try:
            await self._client.start()
        except (KafkaError, OSError) as error:
            raise BrokerError(f"no Kafka broker answered at {self._servers}: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def existing(self) -> frozenset[str]:
        """The names of all topics there are."""
        return frozenset(await self._client.list_topics())

    async def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many each of these topics has; those that don't exist are left out."""
        described = await self._client.describe_topics(list(topics))
        return {one["topic"]: len(one["partitions"]) for one in described if not one["error_code"]}

    async def create(self, name: str, partitions: int, replication: int) -> bool:
        """True when it was made, False when it was there. BrokerError if the broker refuses."""
        answer = await self._client.create_topics([NewTopic(name, partitions, replication)])
        ((_, code, *said),) = answer.topic_errors
        kind = for_code(code)
        if kind is TopicAlreadyExistsError:
            return False
        if code:
            raise BrokerError(f"topic {name} can't be made: {said[0] if said and said[0] else kind.__name__}")
        return True
