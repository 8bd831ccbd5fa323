import logging
from typing import Any

import pytest
from aiokafka import TopicPartition

from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.oldest import OLD_SECONDS, OldestWatch


class Held:
    """As much of a partition as the watch looks at."""

    def __init__(self, number: int) -> None:
        self.tp = TopicPartition("orders", number)
        self.tracker = OffsetTracker(0)
        self.tracker.extend(range(10))

    def run_id(self, offset: int) -> str:
        return f"run-{self.tp.partition}-{offset}"


def held(*numbers: int) -> list[Any]:
    return [Held(number) for number in numbers]


def test_the_one_that_waits_longest_is_told_with_its_age() -> None:
    watch = OldestWatch()
    first, second = held(0, 1)
    watch.look([first], 100.0)
    watch.look([first, second], 105.0)
    oldest = watch.of([first, second], 110.0)
    assert oldest is not None
    assert (oldest.topic, oldest.partition, oldest.offset, oldest.run_id) == ("orders", 0, 0, "run-0-0")
    assert oldest.seconds == 10.0
    assert watch.of([second], 110.0) is not None
    assert watch.of([], 110.0) is None


def test_the_age_begins_anew_with_each_record() -> None:
    watch = OldestWatch()
    (partition,) = held(0)
    watch.look([partition], 0.0)
    partition.tracker.complete([0])
    watch.look([partition], 50.0)
    oldest = watch.of([partition], 51.0)
    assert oldest is not None
    assert (oldest.offset, oldest.seconds) == (1, 1.0)
    for offset in range(1, 10):
        partition.tracker.complete([offset])
    watch.look([partition], 60.0)
    assert watch.of([partition], 60.0) is None


def test_a_record_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watch = OldestWatch()
    (partition,) = held(3)
    for second in range(int(OLD_SECONDS) * 3):
        watch.look([partition], float(second))
    assert [record.getMessage() for record in caplog.records] == [
        "orders[3] offset 0 (run run-3-0) has been unfinished for 60 s and holds the committed offset back, 10 offsets "
        "behind what is read; Binding(run_timeout=...) ends runs that take too long"
    ]


def test_a_partition_that_is_gone_is_forgotten() -> None:
    watch = OldestWatch()
    (partition,) = held(0)
    watch.look([partition], 0.0)
    watch.look([], 1.0)
    watch.look([partition], 2.0)
    oldest = watch.of([partition], 3.0)
    assert oldest is not None
    assert oldest.seconds == 1.0
