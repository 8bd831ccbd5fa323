"""/metrics, for Prometheus: requests, streams, runs by status, and what each binding of this process's worker does.

Rules: labels are taken from what the server knows (a route's template, a status, a binding), never from what a caller
sends, so that nobody can make them many. Runs are counted when somebody asks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Final

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyrula.http.api import Api
from pyrula.http.routing import Routes
from pyrula.http.tokens import Role
from pyrula.kafka import BindingStats, KafkaWorker
from pyrula.workflows.worker import WorkflowWorker

__all__ = ["Measured", "Meters", "MetricRoutes"]

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HOW: Final = (
    "claimed",
    "completed",
    "failed",
    "cancelled",
    "continued",
    "parked",
    "paused",
    "released",
    "lost",
)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_COUNTERS: Final = ("completed", "retried", "failed", "dead_lettered", "skipped", "cancelled", "paused")
_GAUGES: Final = ("in_flight", "buffered", "partitions", "lag", "held")


class Meters:
    """What this process counts, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pyrula_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "pyrula_http_request_seconds",
            "From a request's arrival to its answer's end; streams are left out.",
            ["method", "route"],
            registry=self.registry,
        )
        self.open = Gauge("pyrula_http_requests_open", "Requests being answered.", registry=self.registry)
        self.streams = Gauge("pyrula_http_streams_open", "Streams of events.", registry=self.registry)


class Measured:
    """Counts what an app answers."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began, meters = "", perf_counter(), self._meters

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        meters.open.inc()
        try:
            await self._app(scope, receive, noting)
        finally:
            meters.open.dec()
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            meters.requests.labels(method, route, status or "none").inc()
            if "/stream" not in route:
                meters.seconds.labels(method, route).observe(perf_counter() - began)


class MetricRoutes:
    def __init__(self, api: Api, meters: Meters, worker: Callable[[], KafkaWorker | WorkflowWorker | None]) -> None:
        self._api = api
        self._meters = meters
        self._worker = worker

    def add_to(self, router: APIRouter) -> None:
        routes = Routes(router, all_owners=True)
        routes.add("GET /metrics", self.metrics, "For Prometheus", Role.READ, response_class=_Exposition)

    async def metrics(self) -> Response:
        counts = await self._api.client.counts()
        runs = GaugeMetricFamily("pyrula_runs", "Runs, finished ones until their retention.", labels=["status"])
        for status, number in counts.by_status.items():
            runs.add_metric([status.value], number)
        oldest = 0.0 if counts.oldest_queued is None else counts.oldest_queued.total_seconds()
        queued = GaugeMetricFamily(
            "pyrula_runs_oldest_queued_seconds", "How long the first run has been queued.", value=oldest
        )
        registry = CollectorRegistry()
        registry.register(_Given([runs, queued, *_families_of(self._worker())]))
        return _Exposition(generate_latest(self._meters.registry) + generate_latest(registry))


class _Exposition(Response):
    media_type = MEDIA_TYPE


class _Given(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _families_of(worker: KafkaWorker | WorkflowWorker | None) -> Iterator[Metric]:
    if isinstance(worker, WorkflowWorker):
        stats = worker.stats()
        runs = CounterMetricFamily(
            "pyrula_worker_runs", "Runs that came into this worker's hands, and how they went out.", labels=["how"]
        )
        for name in _HOW:
            runs.add_metric([name], getattr(stats, name))
        yield runs
        yield GaugeMetricFamily("pyrula_worker_running", "Bodies here, now.", value=stats.running)
        yield GaugeMetricFamily("pyrula_worker_places", "Bodies that there may be.", value=stats.places)
    elif worker is not None:
        yield from _families(worker.stats())


def _families(bindings: Sequence[BindingStats]) -> Iterator[Metric]:
    for name in _COUNTERS:
        counter = CounterMetricFamily(f"pyrula_records_{name}", f"Records {name}, since the start.", labels=["binding"])
        for stats in bindings:
            counter.add_metric([stats.binding], getattr(stats, name))
        yield counter
    for name in _GAUGES:
        gauge = GaugeMetricFamily(f"pyrula_binding_{name}", f"A binding's {name}, now.", labels=["binding"])
        for stats in bindings:
            gauge.add_metric([stats.binding], getattr(stats, name))
        yield gauge
    oldest = GaugeMetricFamily(
        "pyrula_binding_oldest_unfinished_seconds", "How long a record holds its partition back.", labels=["binding"]
    )
    for stats in bindings:
        oldest.add_metric([stats.binding], 0.0 if stats.oldest is None else stats.oldest.seconds)
    yield oldest
