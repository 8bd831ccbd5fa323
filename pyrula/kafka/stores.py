"""What a KafkaWorker needs of its store."""

from typing import Protocol

from pyrula.workflows.client.trigger import TriggerStore
from pyrula.workflows.store.port import SourceStore

__all__ = ["WorkerStore"]


class WorkerStore(SourceStore, TriggerStore, Protocol):
    """Journals of partitions, and triggers for what bodies feed to other workflows."""
