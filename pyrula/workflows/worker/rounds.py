"""One round of a run's body, which may take only so long."""

import asyncio
from typing import NamedTuple

from pyrula.workflows.execution import Execution, Outcome

__all__ = ["Round", "run_round"]


class Round(NamedTuple):
    """How the body ended; `expired`: it was cut since its time was over."""

    outcome: Outcome
    expired: bool


async def run_round(execution: Execution, seconds: float | None) -> Round:
    """Run the body, for so long at the most, until it is gone with all that it left running: no thread can be ended."""
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        execution.cut()

    timer = None if seconds is None else asyncio.get_running_loop().call_later(max(0.0, seconds), expire)
    try:
        outcome = await execution.run()
    finally:
        if timer is not None:
            timer.cancel()
    if execution.leftovers:
        await asyncio.wait(execution.leftovers)
    return Round(outcome, expired and outcome.status == "cut")
