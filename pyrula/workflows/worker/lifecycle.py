"""The worker process for submitted runs, from its start to its last release.

Puts the parts together; what each does is its own module's affair. A worker ends by `stop()`, or by SIGTERM or SIGINT:
all of these drain. An unreachable store ends nothing: the worker waits for it. An error of configuration does.
"""

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.egress import EgressBuffer, EgressEvent
from pyrula.workflows.errors import BackpressureRejected, ConfigurationError, StoreUnavailable
from pyrula.workflows.execution import Output
from pyrula.workflows.loops import Stopping, give_back, prepare
from pyrula.workflows.naming import names_checked
from pyrula.workflows.signals import process_signals
from pyrula.workflows.store.messages import Wait, earliest
from pyrula.workflows.store.runs import RunStore
from pyrula.workflows.worker.answers import Answers
from pyrula.workflows.worker.beats import Heartbeat
from pyrula.workflows.worker.claims import Claimer, woken_within
from pyrula.workflows.worker.firing import Firing
from pyrula.workflows.worker.health import HealthState, WorkerHealth, WorkerStats, odd_for, sick_for, stats_of
from pyrula.workflows.worker.life import Lives
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.register import Register, served_of
from pyrula.workflows.worker.served import Served
from pyrula.workflows.worker.triggers import Triggers

__all__ = ["WorkflowWorker"]

log = logging.getLogger("pyrula.worker")

# After drain_timeout, so long for bodies that were cut to be gone, and for the store to hear of it.
_GRACE_SECONDS: Final = 5.0
_RETRY_OPEN_SECONDS: Final = 1.0


@names_checked
class WorkflowWorker:
    """Executes submitted runs of these workflows, or of one.

    >>> worker = WorkflowWorker(workflows=[charge], store=ValkeyStore(url="valkey://localhost:6379"))
    >>> asyncio.run(worker.run())

    `client` starts runs and talks to them, as any WorkflowClient of the same store. `id` is new for each worker object,
    whatever the host: recovery goes by it. The worker closes its store when it ends.
    """

    sends = False

    def __init__(
        self,
        workflows: Sequence[WorkflowDefinition[Any, Any]] | WorkflowDefinition[Any, Any],
        *,
        store: RunStore,
        options: WorkerOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.store = store
        self.clock = clock or SystemClock()
        self.id = _new_id()
        self.park_after = self.options.park_after
        self._served = Served([workflows] if isinstance(workflows, WorkflowDefinition) else workflows)
        if not self._served.pairs:
            raise ConfigurationError("WorkflowWorker needs at least one workflow: workflows=[charge]")
        self._egress = (
            None if self.options.egress is None else EgressBuffer(self.options.egress, self.options.egress_buffer)
        )
        self.client = WorkflowClient(store, poll_interval=self.options.claim_poll_interval, admit=self._admit)
        self._state: HealthState = "starting"
        self._trouble: str | None = None
        self._stopping = Stopping()
        self._lives = Lives(self._served, self, self.id, self._on_free, patience=self.options.patience)
        self._claimer = Claimer(
            store,
            self.id,
            self._served,
            self._lives,
            places=self.options.max_concurrency,
            poll_interval=self.options.claim_poll_interval,
        )
        self._heartbeat = Heartbeat(store, self.id, self._lives, self.options, self.clock, self._claimer.wake)
        entries = (served_of(definition) for definition in self._served)
        self._register = Register(store, self.id, entries)
        self._firing = Firing(store, self._served, poll_interval=self.options.claim_poll_interval)
        self._triggers = Triggers(store, self._served, self.clock, poll_interval=self.options.claim_poll_interval)
        self._answers = Answers(
            store,
            self.id,
            self._served,
            self._lives,
            self.clock,
            places=self.options.query_concurrency,
            seconds=self.options.query_timeout,
            poll_interval=self.options.claim_poll_interval,
            sends=self.sends,
        )

    def __repr__(self) -> str:
        return f"<WorkflowWorker {self.id}, {len(self._lives)} runs>"

    @property
    def held(self) -> tuple[str, ...]:
        """Ids of the runs that this worker executes now."""
        return tuple(self._lives.held)

    def stats(self) -> WorkerStats:
        """Counters since the start, and what runs now."""
        return stats_of(self.id, self.options.max_concurrency, self._lives, self._heartbeat, self.clock.monotonic())

    def health(self) -> WorkerHealth:
        """What works and what doesn't, with the reason."""
        if self._state != "healthy":
            return WorkerHealth(self._state, () if self._trouble is None else (self._trouble,))
        now = self.clock.monotonic()
        sick = sick_for(self._claimer, self._heartbeat, self.options, now)
        odd = [*self._register.odd, *odd_for(self._lives, self._firing, self._egress, now)]
        return WorkerHealth("unhealthy" if sick else "degraded" if odd else "healthy", (*sick, *odd))

    def stop(self) -> None:
        """Drain and end: run() returns within drain_timeout and a little. May be called from anywhere: a signal's
        handler, another thread, before run()."""
        self._stopping.ask()

    async def run(self) -> None:
        """Work until stop(). Once per worker object. Raises ConfigurationError, at its start or when it turns out."""
        if self._stopping.begun:
            raise RuntimeError("a worker runs once: make another one")
        loop = asyncio.get_running_loop()
        self._stopping.begin(loop)
        prepare(loop)
        forget_signals = process_signals.watch(loop, self.stop, self.options.drain_timeout)
        try:
            if await self._open():
                self._state = "healthy"
                await self._work()
        finally:
            self._state = "stopping"
            try:
                await self.store.close()
            finally:
                self._state = "stopped"
                forget_signals()
                give_back(loop)

    async def _open(self) -> bool:
        """False if the worker was stopped before the store could be reached."""
        while not self._stopping.asked.is_set():
            try:
                await self.store.open()
                await self._register.begin()
            except StoreUnavailable as error:
                log.warning("the store can't be reached, tried again in %.1f s: %s", _RETRY_OPEN_SECONDS, error)
                self._trouble = f"the store can't be reached: {error}"
                await woken_within(self._stopping.asked, _RETRY_OPEN_SECONDS)
            else:
                names = ", ".join(sorted({name for name, _ in self._served.pairs}))
                log.info("worker %s executes runs of %s", self.id, names)
                return not self._stopping.asked.is_set()
        return False

    async def _work(self) -> None:
        if self._egress is not None:
            self._egress.start()
        claiming = self._task(self._claimer.run(), "claim runs")
        others = [
            self._task(self._heartbeat.run(), "heartbeat"),
            self._task(self._heartbeat.watch_over(), "watch over the lease"),
            self._task(self._answers.run(), "answer queries"),
            self._task(self._firing.run(), "fire schedules"),
            self._task(self._register.run(), "keep the entry in the register"),
            self._task(self._triggers.run(), "fire batches"),
        ]
        listening = [
            self.store.on_ready(self._on_ready),
            self.store.on_inbox(self.id, self._on_message),
        ]
        stopping = self._task(self._stopping.asked.wait(), "wait for stop()")
        patient = False
        try:
            done, _ = await asyncio.wait([stopping, claiming, *others], return_when=asyncio.FIRST_COMPLETED)
            patient = stopping in done
            for task in done:
                task.result()
        finally:
            self._state = "stopping"
            stopping.cancel()
            try:
                await self._drain(claiming, self.options.drain_timeout if patient else 0.0)
            finally:
                for subscription in listening:
                    subscription.close()
                await _end([claiming, *others])
                await self._leave()

    async def _drain(self, claiming: "asyncio.Task[Any]", seconds: float) -> None:
        """Let the bodies go on for so long, then cut them."""
        self._claimer.stop()
        self._lives.draining = True
        self.park_after = 0.0
        await asyncio.wait([claiming], timeout=min(seconds, _GRACE_SECONDS))
        if not await self._lives.until_empty(seconds):
            log.warning("%d runs didn't end in drain_timeout: they are cut, and go on elsewhere", len(self._lives))
            self._lives.cut()
            await self._lives.until_empty(_GRACE_SECONDS)

    async def _leave(self) -> None:
        if self._lives:
            # A body that can't be ended may still act: its lease runs out by itself, after this process has ended.
            log.warning("%d runs are left to their leases: their bodies don't end", len(self._lives))
            await self._lives.drop()
        else:
            try:
                async with asyncio.timeout(_GRACE_SECONDS):
                    await self._register.end()
                    await self.store.leave(self.id)
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("the store can't be told that worker %s has ended: %s", self.id, error)
        if self._egress is not None:
            await self._egress.stop(_GRACE_SECONDS)

    def _task(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work, name=name)

    # what the parts call

    def on_event(self, run_id: str, workflow: str, type: str, at: float, data: dict[str, Any]) -> None:  # noqa: A002
        if self._egress is not None:
            self._egress.put(EgressEvent(run_id, workflow, type, at, data))

    def on_outputs(self, run_id: str, outputs: Sequence[Output]) -> None:
        """Nothing sends here."""

    def on_parked(self, run_id: str, waits: Sequence[Wait]) -> None:
        deadline = earliest(waits)
        if deadline is not None:
            self._claimer.on_due(deadline)

    def _admit(self) -> None:
        if self._egress is not None and self._egress.behind:
            raise BackpressureRejected(
                "the worker's egress is behind: no new runs until half of its buffer is sent; submit again later"
            )

    def _on_free(self) -> None:
        self._claimer.wake()

    def _on_ready(self) -> None:
        self._claimer.wake()
        self._answers.wake()

    def _on_message(self, run_id: str) -> None:
        held = self._lives.held
        for one in [held[run_id]] if run_id in held else [] if run_id else list(held.values()):
            one.look_for_messages()


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part of the worker failed: %s", task.get_name(), exc_info=error)


def _new_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname())[:32]
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"
