"""Starting runs and talking to them. Needs a store, no worker; knows nothing of how runs are executed."""

from pyrula.workflows.client.backfill_report import BackfillReport, PartitionReport
from pyrula.workflows.client.backfills import BackfillClient
from pyrula.workflows.client.explain import RunExplanation
from pyrula.workflows.client.handle import RunHandle
from pyrula.workflows.client.interrupts import OpenInterrupt
from pyrula.workflows.client.listing import RunCounts, RunPage, RunSummary
from pyrula.workflows.client.report import RunReport
from pyrula.workflows.client.schedules import ScheduleClient, ScheduleInfo, ScheduleNotFoundError
from pyrula.workflows.client.starting import WorkflowClient
from pyrula.workflows.store.payloads import InterruptAnswer

__all__ = [
    "BackfillClient",
    "BackfillReport",
    "InterruptAnswer",
    "OpenInterrupt",
    "PartitionReport",
    "RunCounts",
    "RunExplanation",
    "RunHandle",
    "RunPage",
    "RunReport",
    "RunSummary",
    "ScheduleClient",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "WorkflowClient",
]
