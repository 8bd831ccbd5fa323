"""`ctx.emit`: an item for the run's events, beside the entry that says that it was emitted.

Rules: entry and event are queued in one stretch, so that the store gets both or neither and a replay emits nothing. The
item is in the entry, too: so the limits of a journal bound what a run can emit. A host without events keeps it there.
"""

from pyrula.workflows.codec import Fragment
from pyrula.workflows.engine.operations import CrewOperation, Deliverer
from pyrula.workflows.engine.run import Run

__all__ = ["EmitOperation", "emitted"]


def emitted(run: Run, data: bytes) -> None:
    """Queues the event."""
    if run.talking is not None:
        run.talking.event(run, "emitted", item=Fragment(data))


class EmitOperation(CrewOperation):
    """An emit of a run with several tasks: the event goes when the entry is written, at its turn."""

    __slots__ = ("_data", "_run")

    def __init__(self, data: bytes) -> None:
        super().__init__("emit", "")
        self._data = data
        self._run: Run | None = None

    def start(self, crew: Deliverer) -> None:
        self._run = crew.run
        crew.on_completed(self, "value", self._data, None)

    def deliver(self, kind: str, answer: object) -> None:
        # on replay it was never started
        if self._run is not None:
            emitted(self._run, self._data)
        super().deliver(kind, None)
