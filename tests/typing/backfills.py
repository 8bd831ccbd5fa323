"""What a type checker is to know of backfills; checked by mypy, never run."""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from pyrula.kafka import Backfill, Binding, KafkaWorker, Record
from pyrula.workflows import BackfillReport, Context, PartitionReport, WorkflowClient, workflow


@workflow(name="typed_backfill")
async def charge(ctx: Context, order: dict[str, Any]) -> str:
    return ""


def is_german(record: Record[dict[str, Any]]) -> bool:
    return bool(record.value["country"] == "DE")


async def by_client(client: WorkflowClient) -> None:
    backfills = client.backfills
    assert_type(await backfills.start(charge, "orders", start=timedelta(hours=24), where=is_german), BackfillReport)
    assert_type(await backfills.start("charge", "orders", start=5, end=datetime.now(UTC), rate=10), BackfillReport)
    await backfills.start("charge", "orders", start=1.5)  # type: ignore[arg-type]
    await backfills.start("charge", "orders", until="latest")  # type: ignore[call-arg]
    assert_type(await backfills.pause("b"), BackfillReport)
    assert_type(await backfills.redrive("b", rate=5), BackfillReport)
    assert_type(await backfills.list(), list[BackfillReport])


async def by_worker(worker: KafkaWorker, binding: Binding) -> None:
    report = await worker.backfill(Backfill(binding, start="24h", where=is_german), on_progress=print)
    assert_type(report.completed, int)
    assert_type(report.partitions, tuple[PartitionReport, ...])
    await worker.backfill(Backfill(charge, "orders", [0, 1]))
    await worker.backfill(charge)  # type: ignore[arg-type]
