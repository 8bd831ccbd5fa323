"""A record that isn't at hand any more, since its run was handed over: as the store has it, and as a body gets it.

Pure. The form is public (docs/formats-records.md).
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass

from pyrula.kafka.record import RawRecord
from pyrula.workflows.codec import dumps, loads

__all__ = ["StoredRecord", "encode_record"]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A raw record, as a Kafka client would give it, and where it was read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @classmethod
    def decode(cls, data: bytes) -> "StoredRecord":
        """What `encode_record` wrote."""
        fields = loads(data)
        return cls(
            fields["topic"],
            fields["partition"],
            fields["offset"],
            fields["timestamp"],
            _bytes(fields["key"]),
            _bytes(fields["value"]),
            tuple((name, _bytes(value)) for name, value in fields["headers"]),  # type: ignore[misc]
        )


def encode_record(record: RawRecord, place: tuple[str, int]) -> bytes:
    """JSON, bytes in base64. `place` is topic and partition."""
    timestamp: int | None = record.timestamp
    return dumps(
        {
            "topic": place[0],
            "partition": place[1],
            "offset": record.offset,
            "timestamp": -1 if timestamp is None else timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
