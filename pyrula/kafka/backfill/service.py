"""A worker's eye on backfills: those of its workflows are joined as they appear, whoever asked for them.

What a process started itself it can always run, also by a predicate that only it has. Of others' requests it takes
those whose workflow it has, bound or imported, and whose predicate it can import.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pyrula.kafka.backfill.definition import Backfill, Job, NotHere, job_of
from pyrula.kafka.backfill.household import Household
from pyrula.kafka.backfill.running import RunningBackfill
from pyrula.kafka.binding import Binding
from pyrula.kafka.events import Observer
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.outputs import Producing
from pyrula.kafka.stores import WorkerStore
from pyrula.workflows.client.backfill_report import BackfillReport, report_of_backfill
from pyrula.workflows.client.backfills import put_request
from pyrula.workflows.clock import Clock
from pyrula.workflows.errors import ConfigurationError, PyrulaError, StoreError, StoreUnavailable
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.store.backfills import StoredBackfill

__all__ = ["BackfillInterrupted", "BackfillService", "options_for"]

log = logging.getLogger("pyrula.kafka")

LOOK_SECONDS = 1.0
REPORT_SECONDS = 0.3


def options_for(job: Job, clusters: Mapping[str, KafkaOptions]) -> KafkaOptions:
    """How its cluster is reached. ConfigurationError for one that this worker doesn't know."""
    options = clusters.get(job.request.cluster)
    if options is None:
        raise ConfigurationError(
            f"backfill {job.id}: no KafkaOptions for cluster {job.request.cluster!r}; kafka= has "
            f"{', '.join(map(repr, clusters))}"
        )
    return options


class BackfillInterrupted(PyrulaError):
    """The worker stopped before the backfill was over; what is done is kept."""


class BackfillService:
    """The backfills of one worker. `only_given`: no others than those that this process starts itself."""

    def __init__(
        self,
        bindings: Callable[[], Sequence[Binding]],
        *,
        store: WorkerStore,
        commits: GroupCommit,
        clusters: Mapping[str, KafkaOptions],
        outputs_of: Callable[[str], Producing],
        household: Household,
        clock: Clock,
        observer: Observer | None,
        only_given: bool = False,
    ) -> None:
        self._bindings = bindings
        self._store = store
        self._commits = commits
        self._clusters = clusters
        self._outputs_of = outputs_of
        self._household = household
        self._clock = clock
        self._observer = observer
        self._only_given = only_given
        # New at every start, since what a former process held isn't ours; an operator finds the process by it.
        self._worker = f"kafka-{os.getpid()}-{secrets.token_hex(6)}"
        self._given: dict[str, Job] = {}
        self._left: set[tuple[str, bytes]] = set()
        self._running: dict[str, tuple[RunningBackfill, asyncio.Task[None]]] = {}
        self._wanted = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def running(self) -> list[RunningBackfill]:
        """Those that this worker takes part in now."""
        return [one for one, _ in self._running.values()]

    async def run(self) -> None:
        """Look for backfills until it is cancelled."""
        while True:
            try:
                for stored in await self._store.backfills(active=True):
                    await self._join(stored)
            except StoreError as error:
                log.warning("backfills can't be looked for: %s", error)
            except Exception:
                log.exception("backfills can't be looked for")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()

    async def start(self, backfill: Backfill) -> None:
        """Ask for a backfill, or go on with it. BackfillRefused for an id that means another one."""
        job = backfill.job
        options_for(job, self._clusters)
        await put_request(self._store, job.id, job.request, job.pace)
        self._given[job.id] = job
        self._wanted.set()

    async def finished(self, backfill_id: str, on_progress: Callable[[BackfillReport], None] | None) -> BackfillReport:
        """The report when the backfill is over, and before that to `on_progress`, a few times a second.

        BackfillInterrupted if this worker stops before."""
        while not self._stopped.is_set():
            with suppress(StoreUnavailable):
                stored = await self._store.read_backfill(backfill_id, progress=True)
                report = report_of_backfill(stored)
                if on_progress is not None:
                    on_progress(report)
                if report.over:
                    return report
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._stopped.wait()
        raise BackfillInterrupted(f"the worker stopped before backfill {backfill_id} was over; the same id goes on")

    async def _join(self, stored: StoredBackfill) -> None:
        if stored.id in self._running:
            return
        job = self._given.get(stored.id)
        if job is not None and job.request.encode() != stored.request:
            job = None
        if job is None:
            if self._only_given:
                return
            job = await self._job_of(stored)
            if job is None:
                return
        one = RunningBackfill(
            job,
            self._worker,
            store=self._store,
            commits=self._commits,
            outputs=self._outputs_of(job.request.cluster),
            options=self._clusters[job.request.cluster],
            household=self._household,
            clock=self._clock,
            observer=self._observer,
            beside=not self._only_given,
        )
        task = asyncio.get_running_loop().create_task(one.run(), name=f"backfill {stored.id}")
        self._running[stored.id] = one, task
        task.add_done_callback(lambda task: self._ended(stored.id, task))

    async def _job_of(self, stored: StoredBackfill) -> Job | None:
        if (stored.id, stored.request) in self._left:
            return None
        job = None
        try:
            job = job_of(stored, self._bindings())
            if job is not None and job.request.cluster in self._clusters:
                return job
        except NotHere as error:
            log.warning("backfill %s is left to other workers: %s", stored.id, error)
        except ConfigurationError as error:
            log.error("backfill %s can't be run: %s", stored.id, error)
            await self._store.refuse_backfill(stored.id, str(error))
        # once is enough: what this process can run doesn't change
        self._left.add((stored.id, stored.request))
        return None

    def _ended(self, backfill_id: str, task: "asyncio.Task[None]") -> None:
        del self._running[backfill_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("backfill %s ended here by a fault of its own", backfill_id, exc_info=error)

    async def stop(self) -> None:
        """Let go of everything, as a worker's end does: drain, save, leave the rest to others."""
        self._stopped.set()
        running = list(self._running.values())
        for one, _ in running:
            one.stop()
        if running:
            await asyncio.wait([task for _, task in running])
