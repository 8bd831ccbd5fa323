"""Durable workflows: an async function whose steps are journaled. Knows nothing of Kafka, HTTP or the command line."""

from pyrula.workflows.clock import Clock, ManualClock, SystemClock
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

__all__ = [
    "Clock",
    "Collect",
    "ConfigurationError",
    "Debounce",
    "LeaseLost",
    "Limit",
    "ManualClock",
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
    "WorkflowDefinition",
    "step",
    "workflow",
]
