"""The engine's host of a record's run that is attended: what the body does goes into the run's next change.

Rules: as engine/host.py says. What has to do with the journal and the record is the partition's affair, as for any run.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from pyrula.kafka.attending import AttendingStore
from pyrula.kafka.partition import Partition
from pyrula.kafka.run_changes import Changes
from pyrula.kafka.run_inbox import RunInbox
from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.execution import ChildRequest, Execution
from pyrula.workflows.replay.journal import Fields
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.messages import Applied, Child, Interrupt, Parent
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.runs import Submission
from pyrula.workflows.worker.patience import ask_until_answered

__all__ = ["PARK_AFTER", "RunHost"]

PARK_AFTER: Final = 1.0


class RunHost:
    """The host of one run. `on_idle` is called when its body may stand still."""

    park_after = PARK_AFTER

    def __init__(
        self,
        partition: Partition,
        run_id: RecordId,
        store: AttendingStore,
        changes: Changes,
        inbox: RunInbox,
        on_idle: Callable[[], None],
    ) -> None:
        self.has_children = False
        self._partition = partition
        self._run_id = run_id
        self._store = store
        self._changes = changes
        self._inbox = inbox
        self._on_idle = on_idle

    def append(self, run: Execution, index: int, entry: Fields | None) -> None:
        self._changes.rows.append((index, self._partition.row_of(run, entry)))
        self._changes.touch()

    def consume(self, run: Any, number: int) -> None:
        if self._inbox.consume(number):
            self._changes.consumed.append(number)
            self._changes.touch()

    def apply(self, run: Any, applied: Applied) -> None:
        self._changes.applied.append(applied)
        self._changes.touch()

    def open(self, run: Any, interrupt: Interrupt) -> None:
        self._inbox.open.add(interrupt.wait_id)
        self._changes.opened.append(interrupt)
        self._changes.touch()

    def reopen(self, run: Any, interrupt: Interrupt) -> None:
        if interrupt.wait_id not in self._inbox.open and not self._inbox.answers(interrupt.wait_id):
            self.open(run, interrupt)

    def close(self, run: Any, wait_id: str) -> None:
        if wait_id in self._inbox.open:
            self._inbox.open.discard(wait_id)
            self._changes.closed.append(wait_id)
            self._changes.touch()

    def adopt(self, run: Any, child: Child) -> None:
        self.has_children = True
        self._changes.children.append(child)
        self._changes.touch()

    def event(self, run: Any, type: str, **data: Any) -> None:  # noqa: A002 - the public name
        self._changes.event(type, **data)

    def durable(self, run: Execution) -> Awaitable[None] | None:
        return self._partition.durable(run)

    def record(self, run: Execution) -> object | None:
        return self._partition.record(run)

    async def trigger(self, run: Execution, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
        return await self._partition.trigger(run, definition, event)

    def triggered(self, run: Execution, event: TriggerEvent) -> None:
        self._partition.triggered(run, event)

    def tenant(self, run: Any) -> tuple[str, Any]:
        return "", None

    def new_child_id(self, run: Any, name: str, stamp: Stamp | None) -> str:
        return self._store.new_run_id(name=name, parent=str(self._run_id), stamp=stamp)

    async def submit(self, run: Any, request: ChildRequest) -> None:
        submission = Submission(
            request.run_id,
            request.name,
            request.params,
            version=request.version,
            stamp=request.stamp,
            parent=Parent(str(self._run_id), request.run_id),
        )
        await ask_until_answered(lambda: self._store.submit(submission))

    def idle(self, run: Any) -> None:
        self._on_idle()
