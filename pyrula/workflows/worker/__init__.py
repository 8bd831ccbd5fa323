"""The worker of submitted runs: `WorkflowWorker` and its options."""

from pyrula.workflows.worker.health import RunningRun, WorkerHealth, WorkerStats
from pyrula.workflows.worker.lifecycle import WorkflowWorker
from pyrula.workflows.worker.options import WorkerOptions

__all__ = ["RunningRun", "WorkerHealth", "WorkerOptions", "WorkerStats", "WorkflowWorker"]
