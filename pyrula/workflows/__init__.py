"""Durable workflows: an async function whose steps are journaled. Knows nothing of Kafka, HTTP or the command line."""

from pyrula.workflows.clock import Clock, ManualClock, SystemClock
from pyrula.workflows.context import Context
from pyrula.workflows.definition import StepDefinition, WorkflowDefinition, step, workflow
from pyrula.workflows.errors import (
    ConfigurationError,
    LeaseLost,
    NonDeterminismError,
    PolicyKeyWarning,
    PyrulaError,
    PyrulaWarning,
    RunCancelled,
    SerializationError,
    StaleToken,
    StepError,
    StoreError,
    StoreUnavailable,
)
from pyrula.workflows.model import RunInfo
from pyrula.workflows.policies import Collect, Debounce, Limit, Rate, Retry
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.valkey import ValkeyStore

__all__ = [
    "Clock",
    "Collect",
    "ConfigurationError",
    "Context",
    "Debounce",
    "LeaseLost",
    "Limit",
    "ManualClock",
    "MemoryStore",
    "NonDeterminismError",
    "PolicyKeyWarning",
    "PyrulaError",
    "PyrulaWarning",
    "Rate",
    "Retry",
    "RunCancelled",
    "RunInfo",
    "SerializationError",
    "StaleToken",
    "StepDefinition",
    "StepError",
    "StoreError",
    "StoreUnavailable",
    "SystemClock",
    "ValkeyStore",
    "WorkflowDefinition",
    "step",
    "workflow",
]
