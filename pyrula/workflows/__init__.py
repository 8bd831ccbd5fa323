"""Durable workflows: an async function whose steps are journaled. Knows nothing of Kafka, HTTP or the command line."""

from pyrula.workflows.client import (
    BackfillClient,
    BackfillReport,
    InterruptAnswer,
    OpenInterrupt,
    PartitionReport,
    RunCounts,
    RunExplanation,
    RunHandle,
    RunPage,
    RunReport,
    RunSummary,
    ScheduleClient,
    ScheduleInfo,
    ScheduleNotFoundError,
    WorkflowClient,
)
from pyrula.workflows.clock import Clock, ManualClock, SystemClock
from pyrula.workflows.context import Context
from pyrula.workflows.definition import StepDefinition, WorkflowDefinition, step, workflow
from pyrula.workflows.egress import Egress, EgressEvent
from pyrula.workflows.errors import (
    BackpressureRejected,
    ConfigurationError,
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    LeaseLost,
    NonDeterminismError,
    PolicyKeyWarning,
    PyrulaError,
    PyrulaWarning,
    QueryError,
    QueryTimeout,
    RunCancelled,
    SerializationError,
    StaleToken,
    StepError,
    StoreError,
    StoreUnavailable,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
)
from pyrula.workflows.inline import InlineWorkflowRunner
from pyrula.workflows.model import RunInfo
from pyrula.workflows.policies import Collect, Debounce, Limit, Rate, Retry
from pyrula.workflows.schedules import Cron, Every
from pyrula.workflows.store.backfills import BackfillNotFoundError, BackfillRefused, BackfillStatus
from pyrula.workflows.store.batches import OpenBatch
from pyrula.workflows.store.events import Event
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.refusals import (
    InboxFullError,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    TransitionRefused,
)
from pyrula.workflows.store.valkey import ValkeyStore
from pyrula.workflows.worker import WorkerOptions, WorkflowWorker

__all__ = [
    "BackfillClient",
    "BackfillNotFoundError",
    "BackfillRefused",
    "BackfillReport",
    "BackfillStatus",
    "BackpressureRejected",
    "Clock",
    "Collect",
    "ConfigurationError",
    "Context",
    "Cron",
    "Debounce",
    "DurableInvocationCancelled",
    "DurableInvocationError",
    "DurableInvocationTimeout",
    "Egress",
    "EgressEvent",
    "Event",
    "Every",
    "History",
    "InboxFullError",
    "InlineWorkflowRunner",
    "InterruptAnswer",
    "LeaseLost",
    "Limit",
    "ManualClock",
    "MemoryStore",
    "NonDeterminismError",
    "OpenBatch",
    "OpenInterrupt",
    "PartitionReport",
    "PolicyKeyWarning",
    "PyrulaError",
    "PyrulaWarning",
    "QueryError",
    "QueryTimeout",
    "Rate",
    "Retry",
    "RunCancelled",
    "RunCounts",
    "RunExplanation",
    "RunFinishedError",
    "RunHandle",
    "RunInfo",
    "RunNotFoundError",
    "RunNotWaitingError",
    "RunPage",
    "RunReport",
    "RunStatus",
    "RunSummary",
    "ScheduleClient",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "SerializationError",
    "StaleToken",
    "StepDefinition",
    "StepError",
    "StoreError",
    "StoreUnavailable",
    "SystemClock",
    "TransitionRefused",
    "UpdateError",
    "UpdateRejected",
    "UpdateTimeout",
    "ValkeyStore",
    "WorkerOptions",
    "WorkflowClient",
    "WorkflowDefinition",
    "WorkflowWorker",
    "step",
    "workflow",
]
