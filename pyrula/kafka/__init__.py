"""Workflows bound to Kafka topics.

>>> from pyrula.kafka import Binding, KafkaOptions
"""

from pyrula.kafka.backfill import Backfill
from pyrula.kafka.binding import Binding, check_bindings
from pyrula.kafka.events import BindingHealth, BindingStats, Health, RecordEvent, Unfinished
from pyrula.kafka.letters import DeadLetter
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.record import Record
from pyrula.kafka.serde import BytesSerde, JsonSerde, RecordError, Serde, StrSerde
from pyrula.kafka.worker import KafkaWorker

__all__ = [
    "Backfill",
    "Binding",
    "BindingHealth",
    "BindingStats",
    "BytesSerde",
    "DeadLetter",
    "Health",
    "JsonSerde",
    "KafkaOptions",
    "KafkaWorker",
    "Record",
    "RecordError",
    "RecordEvent",
    "Serde",
    "StrSerde",
    "Unfinished",
    "check_bindings",
]
