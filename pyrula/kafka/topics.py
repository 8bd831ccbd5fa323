"""Whether the topics of bindings exist: Pyrula creates none, but tells of missing ones before they are needed."""

import asyncio
import logging
from collections.abc import Iterable

from pyrula.kafka.binding import Binding
from pyrula.kafka.client import BrokerError, GroupClient

log = logging.getLogger("pyrula.kafka")

LOOK_SECONDS = 5.0


class TopicWatch:
    """The topics of one group's bindings. `missing` says of each that doesn't exist what to do about it."""

    def __init__(self, client: GroupClient, bindings: Iterable[Binding]) -> None:
        self._client = client
        self._wanted: dict[str, str] = {}
        for binding in bindings:
            self._want(binding)
        self.missing: dict[str, str] = {}

    def _want(self, binding: Binding) -> None:
        for topic in binding.topics:
            self._wanted[topic] = f"topic {topic} of binding {binding.name} does not exist; create it"
            letters = binding.dead_letter_topic_of(topic)
            if binding.dead_letters:
                self._wanted[letters] = (
                    f"dead-letter topic {letters} does not exist; create it, or failed records stay unfinished"
                )
        if binding.output is not None:
            self._wanted[binding.output] = (
                f"output topic {binding.output} of binding {binding.name} does not exist; create it, or its records "
                "stay unfinished"
            )

    async def run(self) -> None:
        """Look until none is missing, and again when one that is read was deleted: the client itself would see that it
        was made again only after metadata_max_age. Of the others that is told by who writes to them."""
        unknown = True
        while True:
            try:
                if unknown:
                    self._compare(await self._client.existing_topics())
            except BrokerError as error:
                log.warning("%s", error)
            else:
                unknown = bool(self.missing)
            await asyncio.sleep(LOOK_SECONDS)
            unknown = unknown or not all(map(self._client.knows, self._client.topics))

    def _compare(self, existing: frozenset[str]) -> None:
        missing = {topic: text for topic, text in self._wanted.items() if topic not in existing}
        for topic, text in missing.items():
            if topic not in self.missing:
                log.warning("%s", text)
        self.missing = missing
        if any(topic in existing and not self._client.knows(topic) for topic in self._client.topics):
            self._client.look_for_partitions()
