"""The worker of submitted runs: `WorkflowWorker` and its options."""

from pyrula.workflows.worker.lifecycle import WorkflowWorker
from pyrula.workflows.worker.options import WorkerOptions

__all__ = ["WorkerOptions", "WorkflowWorker"]
