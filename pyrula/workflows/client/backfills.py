"""`client.backfills`: running a range of a topic's records through a workflow, and what has become of that.

The client only leaves a request in the store; it needs no Kafka. A worker of the workflow finds the range and runs it,
beside its bindings. What it has done is read back as a report, which is the same wherever it is asked for.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pyrula.workflows.backfills import Boundary, Pace, Request, checked_backfill_id, name_of
from pyrula.workflows.client.backfill_report import BackfillReport, report_of_backfill
from pyrula.workflows.client.refs import checked_text
from pyrula.workflows.definition import WorkflowDefinition, find_definition
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.store.backfills import (
    BackfillNotFoundError,
    BackfillRefused,
    BackfillStatus,
    BackfillStore,
    BackfillVerb,
    StoredBackfill,
)

__all__ = ["BackfillClient", "new_backfill_id", "put_request", "redrive_of"]


class BackfillClient:
    """Starts backfills, and looks after those that exist.

    ```python
    await client.backfills.start("charge_order", "orders", backfill_id="yesterday", start="24h")
    report = await client.backfills.status("yesterday")
    ```
    """

    def __init__(self, store: BackfillStore, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._opened = opened

    async def start(
        self,
        workflow: str | WorkflowDefinition[..., Any],
        topic: str,
        *,
        backfill_id: str | None = None,
        group: str | None = None,
        cluster: str = "default",
        partitions: Iterable[int] | None = None,
        start: Boundary = "earliest",
        end: Boundary = "latest",
        where: "str | Callable[[Any], bool] | None" = None,
        output: str | None = None,
        dead_letter_topic: str | None = None,
        max_concurrency: int = 16,
        rate: float | None = None,
    ) -> BackfillReport:
        """Have the workers of `workflow` run the records of `topic` from `start` up to `end` through it.

        `group` says whose binding's options count, where the workflow has several. `where` is a predicate on the record
        that workers can import: a function, or its name as ``module:function``. `max_concurrency` counts bodies in one
        worker, `rate` records a second in all. A repeat of `backfill_id` goes on with that backfill, at the pace given
        now; one that asks for anything else raises BackfillRefused. ConfigurationError for what can't be meant."""
        definition = workflow if isinstance(workflow, WorkflowDefinition) else find_definition(workflow)
        name = checked_text(workflow if isinstance(workflow, str) else workflow.name, "a workflow's name")
        if definition is not None:
            refuse_flow_control(definition)
        request = Request.of(
            name,
            checked_text(topic, "a topic's name"),
            group=group,
            cluster=cluster,
            partitions=partitions,
            start=start,
            end=end,
            where=where if where is None or isinstance(where, str) else name_of(where),
            output=output,
            dead_letter_topic=dead_letter_topic,
        )
        pace = Pace(max_concurrency, rate)
        chosen = new_backfill_id(topic) if backfill_id is None else checked_backfill_id(backfill_id)
        await self._opened()
        await put_request(self._store, chosen, request, pace)
        return await self.status(chosen)

    async def status(self, backfill_id: str) -> BackfillReport:
        """How far it is. BackfillNotFoundError."""
        await self._opened()
        return report_of_backfill(await self._store.read_backfill(backfill_id, progress=True))

    async def pause(self, backfill_id: str) -> BackfillReport:
        """Start no more records until `resume`; what runs goes on. BackfillRefused for one that is over."""
        return await self._turn(backfill_id, "pause")

    async def resume(self, backfill_id: str) -> BackfillReport:
        """Go on after `pause`, or after it failed: what was stuck is tried again. BackfillRefused for others."""
        return await self._turn(backfill_id, "resume")

    async def cancel(self, backfill_id: str) -> BackfillReport:
        """Start no more records, for good; what runs goes on to its end. BackfillRefused for one that is over."""
        return await self._turn(backfill_id, "cancel")

    async def redrive(
        self, backfill_id: str, *, new_id: str | None = None, max_concurrency: int = 16, rate: float | None = None
    ) -> BackfillReport:
        """Run once more what failed in a backfill, from its dead letters: steps that had succeeded aren't run again.

        That is a backfill of its own, over the dead-letter topic as it is now, called ``<id>.redrive`` unless `new_id`
        says otherwise; a repeat goes on with it. BackfillRefused while the one it is of isn't over."""
        report = await self.status(backfill_id)
        request = redrive_of(report)
        chosen = checked_backfill_id(f"{backfill_id}.redrive" if new_id is None else new_id)
        await put_request(self._store, chosen, request, Pace(max_concurrency, rate))
        return await self.status(chosen)

    async def _turn(self, backfill_id: str, verb: BackfillVerb) -> BackfillReport:
        await self._opened()
        await self._store.turn_backfill(backfill_id, verb)
        return await self.status(backfill_id)

    async def list(self) -> "list[BackfillReport]":
        """All that are kept (30 days from their last sign of life), the oldest first, each as `status` tells it."""
        await self._opened()
        reports = []
        for stored in await self._store.backfills():
            with suppress(BackfillNotFoundError):  # it expired just now
                reports.append(report_of_backfill(await self._store.read_backfill(stored.id, progress=True)))
        return reports


def new_backfill_id(topic: str, now: datetime | None = None) -> str:
    """An id that says what and when."""
    at = now or datetime.now(UTC)
    return f"{topic[:150].lstrip('._-') or 'backfill'}-{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def refuse_flow_control(definition: WorkflowDefinition[..., Any]) -> None:
    """Records are run as they are read, so policies of submitted runs can't hold. ConfigurationError, as binding."""
    for policy in ("concurrency", "rate_limit", "trigger"):
        if getattr(definition, policy) is not None:
            raise ConfigurationError(
                f"workflow {definition.name} has {policy}=, so it can't be bound to a topic, nor backfilled: records "
                f"are processed as they are consumed. Use the backfill's max_concurrency= and rate=, or a workflow "
                f"without {policy}= with a step that starts this one by a WorkflowClient"
            )


def redrive_of(report: BackfillReport) -> Request:
    """What to ask for, to run once more what failed in a backfill."""
    if not report.over or report.dead_letter_topic is None:
        raise BackfillRefused(f"backfill {report.id} is {report.status}; when it is over, what failed can be redriven")
    return Request.of(
        report.workflow,
        report.dead_letter_topic,
        group=report.group,
        cluster=report.cluster,
        output=report.output,
        failed_of=report.id,
    )


async def put_request(store: BackfillStore, backfill_id: str, request: Request, pace: Pace) -> StoredBackfill:
    """Keep a request, or go on with the backfill that has its id: at this pace, trying again what was stuck.

    BackfillRefused, naming what differs, if that one was asked for something else, and for one that was cancelled."""
    stored = await store.create_backfill(backfill_id, request.encode(), pace.encode())
    if stored.request != request.encode():
        told = "; ".join(Request.decode(stored.request).differences(request))
        raise BackfillRefused(
            f"backfill {backfill_id} was started before as something else: its {told}. Ask for the same to go on with "
            "it, or use another id"
        )
    if stored.status is BackfillStatus.CANCELLED:
        raise BackfillRefused(f"backfill {backfill_id} was cancelled, which is final; use another id")
    if stored.status is BackfillStatus.FAILED:
        await store.turn_backfill(backfill_id, "resume")
    return stored
