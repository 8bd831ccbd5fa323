"""Whether a run may leave the memory: it is settled, and all that could bring it on is kept in its store."""

import asyncio
from typing import Final, Protocol

from pyrula.workflows.engine.operations import CrewOperation, Deliverer
from pyrula.workflows.engine.waits import Waits
from pyrula.workflows.store.messages import Wait

__all__ = ["idle_waits"]


# No signal is called so: what wakes such a run is an update, as it does any run.
_AN_UPDATE: Final = (Wait("signal", ""),)


class Idle(Deliverer, Protocol):
    """What is to be known of a crew."""

    executing: "set[asyncio.Task[None]]"

    def waiting(self) -> list[CrewOperation]:
        """What was asked for and not delivered, in order of request."""


def idle_waits(crew: Idle, tasks: Waits, park_after: float) -> tuple[Wait, ...] | None:
    """The durable waits in order of request, time-outs last, if there is nothing else and each of them lasts longer
    than `park_after`. The crew is settled, with nothing to deliver."""
    operations = crew.waiting()
    if crew.run.in_place is not None or crew.run.still_alive():
        return None
    waits: list[Wait] = []
    limits: list[Wait] = []
    resting = 0
    earliest = crew.run.clock.now().timestamp() + park_after
    for operation in operations:
        wait = operation.wait(crew)
        if wait is None or (wait.deadline is not None and wait.deadline <= earliest):
            return None
        (waits if operation.place is not None else limits).append(wait)
        resting += wait.kind == "retry"
    if len(crew.executing) > resting or tasks.hold():
        return None
    desk = crew.run.desk
    if not operations and desk is not None and desk.updates:
        return _AN_UPDATE
    return (*waits, *limits) or None
