"""What a KafkaWorker needs of its store."""

from typing import Protocol

from pyrula.kafka.attending import AttendingStore
from pyrula.workflows.client.trigger import TriggerStore
from pyrula.workflows.store.backfills import BackfillStore
from pyrula.workflows.store.port import SourceStore
from pyrula.workflows.store.runs import RunStore

__all__ = ["WorkerStore"]


class WorkerStore(SourceStore, RunStore, TriggerStore, BackfillStore, AttendingStore, Protocol):
    """Journals of partitions, triggers for what bodies feed to other workflows, backfills, and records' runs."""
