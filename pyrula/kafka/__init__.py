"""Workflows bound to Kafka topics.

>>> from pyrula.kafka import Binding, KafkaOptions
"""

from pyrula.kafka.binding import Binding, check_bindings
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.record import Record
from pyrula.kafka.serde import BytesSerde, JsonSerde, RecordError, Serde, StrSerde

__all__ = [
    "Binding",
    "BytesSerde",
    "JsonSerde",
    "KafkaOptions",
    "Record",
    "RecordError",
    "Serde",
    "StrSerde",
    "check_bindings",
]
