"""One record of a dev session in detail: what it was, what happened to it, what its run journaled, its dead letter."""

import json
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from pyrula.cli.problem import Problem
from pyrula.kafka.embedded.client import DevClient
from pyrula.kafka.events import RecordEvent
from pyrula.workflows.naming import meant

__all__ = ["Place", "Shown"]

_PLACE = re.compile(r"(?:(?P<topic>[\w.-]+)/)?(?P<partition>\d+)@(?P<offset>\d+)")
_LETTER = "pyrula-dlq-"


class Place(NamedTuple):
    """Where a record is; printed and given as ``topic/partition@offset``."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str, topics: list[str]) -> Self:
        """The place that `text` names; its topic may be left out when there is only one.

        Runs may send to other topics than those known, so only one that looks like one of these is refused.
        """
        found = _PLACE.fullmatch(text)
        if found is None:
            raise Problem(f"--show {text}: a record is named topic/partition@offset, like {topics[0]}/0@17")
        topic = found["topic"] or (topics[0] if len(topics) == 1 else "")
        if topic not in topics and (not topic or meant(topic, topics)):
            raise Problem(f"--show {text}: the topics are {', '.join(topics)}; name the record like {topics[0]}/0@17")
        return cls(topic, int(found["partition"]), int(found["offset"]))

    @classmethod
    def of(cls, event: RecordEvent) -> Self:
        """Where the event's record is."""
        return cls(event.topic, event.partition, event.offset)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class Shown:
    """Collects what there is to know of the record at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._events: list[RecordEvent] = []
        self._record: list[tuple[str, str]] = []
        self._letters: list[str] = []

    @property
    def found(self) -> bool:
        """Whether there was such a record."""
        return bool(self._record or self._events)

    def take(self, event: RecordEvent) -> None:
        """An event of any record."""
        if Place.of(event) == self.place:
            self._events.append(event)

    async def fetch(self, client: DevClient, letters: set[str]) -> None:
        """Read the record, and its dead letters from the topics `letters`, while the broker is there."""
        async for record in client.read(self.place.topic):
            if (record.partition, record.offset) == self.place[1:]:
                self._record = _facts(record)
        wanted = tuple(str(part).encode() for part in self.place)
        for topic in sorted(letters):
            async for record in client.read(topic):
                headers = dict(record.headers)
                if tuple(headers.get(_LETTER + name) for name in ("topic", "partition", "offset")) == wanted:
                    name = str(Place(topic, record.partition, record.offset))
                    told = [(name, value) for name, value in record.headers if name.startswith(_LETTER)]
                    self._letters.append(_detail(f"dead letter {name}", [(n, _text(v)) for n, v in told]))

    def text(self, steps: list[str]) -> str:
        """All of it; `steps` are the lines of its run's journal."""
        if not self.found:
            return f"there is no record {self.place}"
        parts = [_detail(f"record {self.place}", self._record)]
        if self._events:
            parts.append(_detail(f"run {self._events[-1].run_id}", [("workflow of", self._events[-1].binding)]))
        if steps:
            parts.append("\n".join(["journal", *(f"  {line}" for line in steps)]))
        if self._events:
            told = [(f"{event.seconds:.3f} s", _happened(event)) for event in self._events]
            parts.append(_detail("what happened", told))
        return "\n".join(parts + self._letters)


def _happened(event: RecordEvent) -> str:
    kind = event.kind.replace("_", "-")
    attempt = f" at attempt {event.attempt}" if event.attempt else ""
    return f"{kind}{attempt}" + (f": {event.error}" if event.error else "")


def _facts(record: Any) -> list[tuple[str, str]]:
    facts = [
        ("key", _text(record.key)),
        ("time", datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds")),
    ]
    facts += [(f"header {name}", _text(value)) for name, value in record.headers]
    return [*facts, ("value", _pretty(record.value))]


def _text(data: bytes | None) -> str:
    return "(none)" if data is None else data.decode("utf-8", "backslashreplace")


def _pretty(data: bytes | None) -> str:
    try:
        return json.dumps(json.loads(data or b""), indent=2, ensure_ascii=False)
    except ValueError:
        return _text(data)


def _detail(name: str, facts: list[tuple[str, str]]) -> str:
    width = max((len(fact) for fact, _ in facts), default=0)
    lines = [name]
    for fact, value in facts:
        first, *rest = value.splitlines() or [""]
        lines.append(f"  {fact:<{width}}  {first}")
        lines += [f"  {'':<{width}}  {line}" for line in rest]
    return "\n".join(lines)
