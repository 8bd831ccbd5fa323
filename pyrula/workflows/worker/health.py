"""What a worker says of itself: what it has done, what it does now, and whether it works.

Rules: a worker is healthy only as far as its store has just answered it; silence counts against it. What is told is
what a person should know or mend: plain rules over what the parts note, no I/O.
"""

from dataclasses import dataclass
from typing import Final, Literal

from pyrula.workflows.egress import EgressBuffer
from pyrula.workflows.worker.beats import Heartbeat
from pyrula.workflows.worker.claims import Claimer
from pyrula.workflows.worker.firing import Firing
from pyrula.workflows.worker.life import Lives
from pyrula.workflows.worker.options import WorkerOptions

__all__ = ["HealthState", "RunningRun", "WorkerHealth", "WorkerStats", "odd_for", "sick_for", "stats_of"]

HealthState = Literal["starting", "healthy", "degraded", "unhealthy", "stopping", "stopped"]

# A heartbeat that is on its way is no silence yet.
_LATE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class RunningRun:
    """A run that a worker holds now; `seconds` since it was claimed."""

    run_id: str
    workflow: str
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """Counters of a worker since its start, and gauges of now.

    `claimed` counts each time that a run came into its hands, and the next seven how it went out of them: it ended, as
    completed, failed or cancelled; it continued as new; it was parked to wait, paused, or given back to the queue when
    the worker drained. `lost` is what others took over. `running` of `places` bodies are here now. `heartbeat` is for
    how many seconds the store has answered none; None before the first.
    """

    worker: str
    claimed: int
    completed: int
    failed: int
    cancelled: int
    continued: int
    parked: int
    paused: int
    released: int
    lost: int
    running: int
    places: int
    heartbeat: float | None
    runs: tuple[RunningRun, ...]


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """State of a worker, and the reasons: "degraded" works and a person should look, "unhealthy" doesn't work."""

    state: HealthState
    reasons: tuple[str, ...] = ()


def stats_of(worker: str, places: int, lives: Lives, heartbeat: Heartbeat, now: float) -> WorkerStats:
    counts = lives.ended.counts
    return WorkerStats(
        worker=worker,
        claimed=lives.ended.claimed,
        completed=counts["completed"],
        failed=counts["failed"],
        cancelled=counts["cancelled"],
        continued=counts["continued_as_new"],
        parked=counts["parked"],
        paused=counts["paused"],
        released=counts["released"],
        lost=counts["lost"],
        running=len(lives),
        places=places,
        heartbeat=None if heartbeat.answered is None else now - heartbeat.answered,
        runs=tuple(
            RunningRun(run_id, held.claimed.name, held.claimed.attempt, now - held.since)
            for run_id, held in lives.held.items()
        ),
    )


def sick_for(claimer: Claimer, heartbeat: Heartbeat, options: WorkerOptions, now: float) -> list[str]:
    """Why the worker doesn't work."""
    reasons = [] if claimer.trouble is None else [f"runs can't be claimed: {claimer.trouble}"]
    silent = now - heartbeat.reached
    if silent > 2 * options.heartbeat_interval + _LATE_SECONDS:
        cut = ", so that the bodies are cut" if heartbeat.cut_off else ""
        reasons.append(f"the store has answered no heartbeat for {silent:.1f} s{cut}")
    return reasons


def odd_for(lives: Lives, firing: Firing, egress: EgressBuffer | None, now: float) -> list[str]:
    """What a person should look at."""
    misfits = lives.ended.misfits(now)
    reasons = [*firing.unusable.values(), *(() if misfits is None else (misfits,))]
    if egress is not None and egress.behind:
        reasons.append(f"the egress is behind: {len(egress)} events wait, and worker.client takes no new runs")
    return reasons
