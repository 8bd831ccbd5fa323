"""Routes of the worker in this process, which aren't for tenants: a KafkaWorker's bindings, a WorkflowWorker's runs."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeAlias

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from pyrula.http.routing import Routes
from pyrula.http.tokens import Role
from pyrula.http.views import answer
from pyrula.kafka import BindingStats, Health, KafkaWorker
from pyrula.workflows.worker import WorkflowWorker

__all__ = ["FleetRoutes", "Worker"]

Worker: TypeAlias = KafkaWorker | WorkflowWorker


class _Unfinished(BaseModel):
    topic: str
    partition: int
    offset: int
    run_id: str
    seconds: float


class BindingRow(BaseModel):
    name: str
    workflow: str
    topics: list[str]
    group: str
    cluster: str
    state: str
    reasons: list[str]
    lag: int
    partitions: int
    in_flight: int
    buffered: int
    held: int
    completed: int
    retried: int
    failed: int
    dead_lettered: int
    skipped: int
    cancelled: int
    paused: int
    oldest: _Unfinished | None


class Bindings(BaseModel):
    state: str | None
    reasons: list[str]
    bindings: list[BindingRow]


class WorkerRow(BaseModel):
    state: str | None
    reasons: list[str]
    stats: dict[str, Any] | None = Field(description="of a WorkflowWorker; a KafkaWorker's are with its bindings")


class FleetRoutes:
    """`worker` gives the worker that runs in this process, if any."""

    def __init__(self, worker: Callable[[], Worker | None]) -> None:
        self._worker = worker

    def add_to(self, router: APIRouter) -> None:
        routes = Routes(router, all_owners=True)
        bound = "The bindings of this process's worker: lag, counters, health"
        routes.add("GET /bindings", self.bindings, bound, Role.READ, Bindings)
        routes.add("GET /worker", self.worker, "How this process's worker is, and why", Role.READ, WorkerRow)

    async def worker(self) -> Response:
        worker = self._worker()
        if worker is None:
            return answer({"state": None, "reasons": [], "stats": None})
        health = worker.health()
        stats = asdict(worker.stats()) if isinstance(worker, WorkflowWorker) else None
        return answer({"state": health.state, "reasons": list(health.reasons), "stats": stats})

    async def bindings(self) -> Response:
        worker = self._worker()
        if not isinstance(worker, KafkaWorker):
            return answer({"state": None, "reasons": [], "bindings": []})
        health, stats = worker.health(), {one.binding: one for one in worker.stats()}
        return answer(
            {
                "state": health.state,
                "reasons": list(health.reasons),
                "bindings": [_row(binding, health, stats.get(binding.name)) for binding in worker.bindings],
            }
        )


def _row(binding: Any, health: Health, stats: BindingStats | None) -> dict[str, Any]:
    told = next((one for one in health.bindings if one.binding == binding.name), None)
    counted = stats or BindingStats(binding.name)
    oldest = counted.oldest
    return {
        "name": binding.name,
        "workflow": binding.workflow.name,
        "topics": list(binding.topics),
        "group": binding.group,
        "cluster": binding.cluster,
        "state": health.state if told is None else told.state,
        "reasons": [] if told is None else list(told.reasons),
        "lag": counted.lag,
        "partitions": counted.partitions,
        "in_flight": counted.in_flight,
        "buffered": counted.buffered,
        "held": counted.held,
        "completed": counted.completed,
        "retried": counted.retried,
        "failed": counted.failed,
        "dead_lettered": counted.dead_lettered,
        "skipped": counted.skipped,
        "cancelled": counted.cancelled,
        "paused": counted.paused,
        "oldest": None
        if oldest is None
        else {
            "topic": oldest.topic,
            "partition": oldest.partition,
            "offset": oldest.offset,
            "run_id": oldest.run_id,
            "seconds": oldest.seconds,
        },
    }
