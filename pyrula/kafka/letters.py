"""A dead letter in an operator's hand: what it tells of its record and run, read back from its headers.

The header names are public (docs/formats.md), dead_letter.py writes them. Pure, but for `read_letter`.
"""

from dataclasses import dataclass, field
from typing import Protocol, Self

from aiokafka import TopicPartition

from pyrula.kafka.backfill.reader import PartReader
from pyrula.kafka.backfill.redrive import journal_in
from pyrula.kafka.dead_letter import PREFIX
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.record import RawRecord
from pyrula.kafka.stored_record import StoredRecord, encode_record
from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.store.record_changes import RecordId

__all__ = ["DeadLetter", "read_letter"]

_BACKFILL = "backfill:"


class LetterRecord(RawRecord, Protocol):
    """A record that knows where it was read, as aiokafka's ConsumerRecord does."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What a record of a dead-letter topic says: where it is from, and why it failed. `client.redrive` takes it.

    `rows` is the journal with which its run goes on, without the error that ended it; none if the letter has no
    journal, as one whose journal was larger than 64 KiB. `params` is the record as a store keeps it.
    """

    run_id: str
    workflow: str
    group: str
    topic: str
    partition: int
    offset: int
    reason: str
    message: str
    attempts: int
    params: bytes = field(repr=False)
    rows: tuple[tuple[int, bytes], ...] = field(repr=False, default=())

    @classmethod
    def of(cls, record: LetterRecord) -> Self:
        """From a record of a dead-letter topic, as a client gives it: topic, key, value, headers...

        ValueError for a record that is no letter, and for a backfill's, which is redriven by `backfills.redrive`."""
        place = f"{record.topic}[{record.partition}] offset {record.offset}"
        told = {
            name.removeprefix(PREFIX): value.decode("utf-8", "replace")
            for name, value in record.headers
            if name.startswith(PREFIX) and value is not None
        }
        try:
            source = StoredRecord(
                told["topic"],
                int(told["partition"]),
                int(told["offset"]),
                int(told["timestamp"]),
                record.key,
                record.value,
                tuple((name, value) for name, value in record.headers if not name.startswith(PREFIX)),
            )
            attempts, group = int(told["attempts"]), told["group"]
            words = told["run-id"], told["workflow"], told["reason"], told["message"]
        except (KeyError, ValueError) as error:
            raise ValueError(f"{place} is no dead letter of Pyrula's: header {PREFIX}{error} is wanting") from error
        if RecordId.parse(words[0]) is None:
            raise ValueError(f"{place} is no dead letter of Pyrula's: {PREFIX}run-id is {words[0]!r:.100}")
        if group.startswith(_BACKFILL):
            backfill = group.removeprefix(_BACKFILL)
            raise ValueError(
                f"{place} is a letter of the backfill {backfill}, whose letters are redriven together: "
                f"pyrula backfill MODULE:WORKER redrive {backfill}"
            )
        return cls(
            run_id=words[0],
            workflow=words[1],
            group=group,
            topic=source.topic,
            partition=source.partition,
            offset=source.offset,
            reason=words[2],
            message=words[3],
            attempts=attempts,
            params=encode_record(source, source.place),
            rows=tuple(journal_in(record)),
        )


async def read_letter(
    options: KafkaOptions, topic: str, partition: int, offset: int, clock: Clock | None = None
) -> DeadLetter:
    """The letter at that place of a dead-letter topic. ValueError if there is none; BrokerError."""
    clock = clock or SystemClock()
    async with PartReader(options, TopicPartition(topic, partition)) as reader:
        first, end = await reader.log()
        if not first <= offset < end:
            raise ValueError(f"{topic}[{partition}] has offsets {first} to {end - 1}, so there is no {offset}")
        await reader.begin(offset)
        until = clock.monotonic() + options.request_timeout
        while clock.monotonic() < until:
            for record in await reader.read(1, 1.0):
                if record.offset == offset:
                    place = topic, partition, offset, record.timestamp
                    return DeadLetter.of(StoredRecord(*place, record.key, record.value, tuple(record.headers)))
                raise ValueError(f"{topic}[{partition}] has no record at offset {offset}; the next is {record.offset}")
    raise ValueError(f"{topic}[{partition}] has no record at offset {offset}")
