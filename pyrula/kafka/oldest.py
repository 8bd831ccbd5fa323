"""The record that holds back a partition's committed offset: which it is, and for how long it has been.

A completion that never comes shows nowhere else: throughput looks fine while the lag grows.
"""

import logging
from collections.abc import Iterable

from pyrula.kafka.events import Unfinished
from pyrula.kafka.partition import Partition

log = logging.getLogger("pyrula.kafka")

# Held back for so long, a partition is worth a line in the log.
OLD_SECONDS = 60.0


class OldestWatch:
    """Looked at every second or so; what is told is as old as that."""

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}
        self._told: dict[Partition, int] = {}

    def look(self, partitions: Iterable[Partition], now: float) -> None:
        """Note each partition's oldest unfinished record; those that aren't given any more are forgotten."""
        before, self._since = self._since, {}
        for partition in partitions:
            oldest = partition.tracker.oldest()
            if oldest is None:
                continue
            noted = before.get(partition)
            since = now if noted is None or noted[0] != oldest else noted[1]
            self._since[partition] = (oldest, since)
            if now - since >= OLD_SECONDS and self._told.get(partition) != oldest:
                self._told[partition] = oldest
                self._tell(partition, oldest, now - since)
        self._told = {partition: offset for partition, offset in self._told.items() if partition in self._since}

    def of(self, partitions: Iterable[Partition], now: float) -> Unfinished | None:
        """The one that has held back its partition the longest."""
        held = [(self._since[partition], partition) for partition in partitions if partition in self._since]
        if not held:
            return None
        (offset, since), partition = min(held, key=lambda one: one[0][1])
        tp = partition.tp
        return Unfinished(tp.topic, tp.partition, offset, partition.run_id(offset), now - since)

    @staticmethod
    def _tell(partition: Partition, offset: int, seconds: float) -> None:
        log.warning(
            "%s[%d] offset %d (run %s) has been unfinished for %.0f s and holds the committed offset back, %d offsets "
            "behind what is read; Binding(run_timeout=...) ends runs that take too long",
            partition.tp.topic, partition.tp.partition, offset, partition.run_id(offset), seconds,
            partition.tracker.span
        )  # fmt: skip
