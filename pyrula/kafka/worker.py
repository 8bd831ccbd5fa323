"""The worker process: its bindings, its store, its groups, from start to the last commit.

Puts the parts together and watches over them; what each does is its own module's affair. A worker ends by `stop()` or
by SIGTERM or SIGINT, both of which drain; a second signal ends it at once.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from pyrula.kafka.address_book import AddressBook
from pyrula.kafka.backfill.alone import run_alone
from pyrula.kafka.backfill.counting import count_records
from pyrula.kafka.backfill.definition import Backfill
from pyrula.kafka.backfill.household import Household
from pyrula.kafka.backfill.running import RunningBackfill
from pyrula.kafka.backfill.service import BackfillInterrupted, BackfillService, options_for
from pyrula.kafka.binding import Binding, check_bindings
from pyrula.kafka.consume import GroupConsumer
from pyrula.kafka.deaths import CAREFUL_AT_ONCE
from pyrula.kafka.endings import RunEndings
from pyrula.kafka.events import BindingHealth, BindingStats, Health, Observer
from pyrula.kafka.garbage import collected_rarely
from pyrula.kafka.handed import HandedOverRuns
from pyrula.kafka.oldest import OldestWatch
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.outputs import Outputs
from pyrula.kafka.partition import Partition
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.solitude import Solitude
from pyrula.kafka.stalls import StallWatch
from pyrula.kafka.stores import WorkerStore
from pyrula.kafka.topics import TopicWatch
from pyrula.workflows.client import BackfillReport
from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.loops import Stopping, give_back, prepare
from pyrula.workflows.naming import names_checked, refuse_url
from pyrula.workflows.signals import process_signals
from pyrula.workflows.store.registry import Registry
from pyrula.workflows.worker.register import Register, served_of

log = logging.getLogger("pyrula.kafka")

REPORT_SECONDS = 60.0
_STRIKE_SECONDS = 2.0


@names_checked
class KafkaWorker:
    """Runs workflows for the records of the topics they are bound to.

    >>> worker = KafkaWorker(
    ...     bindings=[Binding(charge_order, topic="orders", group="billing")],
    ...     store=ValkeyStore(url="valkey://localhost:6379"),
    ...     kafka=KafkaOptions(bootstrap_servers="localhost:9092"),
    ... )
    >>> asyncio.run(worker.run())

    `kafka` may also be a mapping from cluster names to options, for bindings with ``cluster=``. Raises
    ConfigurationError for bindings that can't stand together.
    """

    def __init__(
        self,
        bindings: Sequence[Binding] | Binding,
        *,
        store: WorkerStore,
        kafka: KafkaOptions | Mapping[str, KafkaOptions],
        clock: Clock | None = None,
        on_event: Observer | None = None,
    ) -> None:
        self.bindings = (bindings,) if isinstance(bindings, Binding) else tuple(bindings)
        check_bindings(self.bindings)
        refuse_url(store)
        if isinstance(kafka, str):
            raise ConfigurationError(f"kafka= takes options: KafkaOptions(bootstrap_servers={kafka!r})")
        self._clusters = {"default": kafka} if isinstance(kafka, KafkaOptions) else dict(kafka)
        for binding in self.bindings:
            if binding.cluster not in self._clusters:
                raise ConfigurationError(
                    f"binding {binding.name}: no KafkaOptions for cluster {binding.cluster!r}; "
                    f"kafka= has {', '.join(map(repr, self._clusters))}"
                )
        self.store = store
        self.on_event = on_event
        self._clock = clock or SystemClock()
        self._state: str = "starting"
        self._stopping = Stopping()
        self._pools: list[Replayers] = []
        self._endings: list[RunEndings] = []
        self._groups: list[GroupConsumer] = []
        self._outputs: dict[str, Outputs] = {}
        self._commits: GroupCommit | None = None
        self._backfills: asyncio.Future[BackfillService] | None = None
        self._backfill_pools: list[Replayers] = []
        self._topics: dict[GroupConsumer, TopicWatch] = {}
        self._looking: list[asyncio.Task[None]] = []
        self._book = AddressBook(store, self._clock)
        self._handed = HandedOverRuns(store, self._clock, lambda: self.on_event)
        self._oldest = OldestWatch()
        self._solitude = Solitude(lambda: sum(pool.bodies for pool in self._all_pools()), self._wake_pools)
        self._reported = monotonic()
        self._register: Register | None = None

    @property
    def clusters(self) -> Mapping[str, KafkaOptions]:
        """The options of each cluster by its name."""
        return self._clusters

    def stop(self) -> None:
        """Drain and end: run() returns within drain_timeout and a little. May be called from anywhere: a signal's
        handler, another thread, before run()."""
        self._stopping.ask()

    async def run(self) -> None:
        """Work until stop() or a signal. Once per worker object. Raises ConfigurationError, BrokerError or
        StoreUnavailable at its start.

        Meanwhile Python looks for cyclic garbage more rarely: gc's first threshold is 20,000, unless it is higher or 0.

        A process that is told to end by a signal ends: if the loop is still there 10 s after drain_timeout (a thread of
        the body's own that asyncio.run waits for, say), it is ended then.
        """
        if self._stopping.begun:
            raise RuntimeError("a worker runs once: make another one")
        loop = asyncio.get_running_loop()
        self._stopping.begin(loop)
        self._backfills = loop.create_future()
        prepare(loop)
        longest = max(options.drain_timeout for options in self._clusters.values())
        forget_signals = process_signals.watch(loop, self.stop, longest)
        stalls = StallWatch(min(options.session_timeout for options in self._clusters.values()))
        stalls.start()
        collect_as_before = collected_rarely.want()
        try:
            await self._unless_stopped(self._start())
            await self._watch()
        finally:
            self._state = "stopping"
            try:
                await self._shut_down()
            finally:
                collect_as_before()
                stalls.stop()
                forget_signals()
                give_back(loop)

    async def backfill(
        self, backfill: Backfill, *, on_progress: Callable[[BackfillReport], None] | None = None
    ) -> BackfillReport:
        """Run a backfill beside the bindings, or, of a worker that isn't running, alone. The report when it is over.

        Other workers may take part. The same id again goes on with it, or raises BackfillRefused if another is meant.
        `on_progress` is shown the report a few times a second. Raises ConfigurationError for an unknown cluster,
        BackfillInterrupted when the worker stops first; a topic that doesn't exist makes the backfill `failed`.
        """
        if backfill.dry_run:
            return await count_records(backfill.job, options_for(backfill.job, self._clusters), on_progress)
        if self._backfills is None:
            return await run_alone(
                backfill,
                self.bindings,
                store=self.store,
                clusters=self._clusters,
                clock=self._clock,
                observer=self.on_event,
                on_progress=on_progress,
            )
        service = await asyncio.shield(self._backfills)
        await service.start(backfill)
        return await service.finished(backfill.id, on_progress)

    def stats(self) -> list[BindingStats]:
        """Counters and gauges of each binding, as of now; and of each backfill that it takes part in, behind them."""
        answers = []
        for pool in self._pools:
            stats = pool.stats
            partitions = self._partitions_of(pool.binding)
            stats.in_flight = pool.in_flight
            stats.buffered = sum(partition.buffer.records for partition in partitions)
            stats.lag = sum(
                group.lag(one) for group in self._groups for one in group.partitions if one.binding is pool.binding
            )
            held = self._handed.held_records.count(pool.binding)
            stats.held = held + sum(len(partition.stopped) for partition in partitions)
            stats.oldest = self._oldest.of(partitions, monotonic())
            answers.append(stats)
        return [*answers, *(one.stats() for one in self._running_backfills())]

    def health(self) -> Health:
        """What works and what doesn't, with the reason and the way out. Backfills stand behind the bindings."""
        shared: list[str] = []
        if self._commits is not None and self._commits.outage is not None:
            shared.append("the store can't be reached: journaled steps wait")
        backfills = (one.health() for one in self._running_backfills())
        bindings = (*(self._health_of(pool, shared) for pool in self._pools), *backfills)
        states = [one.state for one in bindings]
        if self._state in ("starting", "stopping"):
            return Health(self._state, bindings)  # type: ignore[arg-type]
        worst = "unhealthy" if "unhealthy" in states else "degraded" if "degraded" in states else "healthy"
        return Health(worst, bindings, tuple(shared))  # type: ignore[arg-type]

    def _running_backfills(self) -> list[RunningBackfill]:
        looked = self._backfills
        return looked.result().running if looked is not None and looked.done() else []

    def _health_of(self, pool: Replayers, shared: Iterable[str]) -> BindingHealth:
        binding = pool.binding
        sick = list(shared)
        odd: list[str] = []
        if self._register is not None:
            odd += [text for text in self._register.odd if f"workflow {binding.workflow.name!r} " in text]
        if pool.halted:
            sick.append(pool.halted)
        letters = {binding.dead_letter_topic_of(topic) for topic in binding.topics}
        problems = self._outputs[binding.cluster].problems if binding.cluster in self._outputs else {}
        for group in self._groups:
            if group.pools.get(next(iter(binding.topics))) is not pool:
                continue
            if group in self._topics:
                named = {*binding.topics, *letters, binding.output} - problems.keys()
                odd += [text for topic, text in self._topics[group].missing.items() if topic in named]
            if group.problem:
                sick.append(group.problem)
            if group.assignment is not None:
                unopened = group.assignment.unopened
                sick += [
                    f"{tp.topic}[{tp.partition}]: {why}" for tp, why in unopened.items() if tp.topic in binding.topics
                ]
        odd += [text for topic, text in problems.items() if topic in letters or topic not in self._dead_letter_topics()]
        odd += self._handed.held_records.reasons(binding)
        for partition in self._partitions_of(binding):
            odd += list(partition.stopped.values())[:3]
            if partition.marks is not None and partition.marks.careful:
                odd.append(
                    f"{partition.tp.topic}[{partition.tp.partition}]: workers died here again and again; at most "
                    f"{CAREFUL_AT_ONCE} records run at once until a commit moves on"
                )
            if partition.transactor is not None and partition.transactor.problem is not None:
                odd.append(partition.transactor.problem)
            if partition.buffer.held_by_window:
                oldest = partition.tracker.oldest()
                odd.append(
                    f"{partition.tp.topic}[{partition.tp.partition}] is not read: record {oldest} is unfinished and "
                    "the window behind it is full"
                )
        return BindingHealth(binding.name, "unhealthy" if sick else "degraded" if odd else "healthy", (*sick, *odd))

    def _dead_letter_topics(self) -> set[str]:
        return {binding.dead_letter_topic_of(topic) for binding in self.bindings for topic in binding.topics}

    def _partitions_of(self, binding: Binding) -> list[Partition]:
        return [p for group in self._groups for p in group.partitions if p.binding is binding]

    async def _unless_stopped(self, starting: Coroutine[Any, Any, None]) -> None:
        """A start can take as long as the other members of a group drain, or a broker stays silent."""
        task = asyncio.get_running_loop().create_task(starting, name="start")
        stopping = asyncio.ensure_future(self._stopping.asked.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _start(self) -> None:
        await self.store.open()
        if isinstance(self.store, Registry):
            await self._enter(self.store)
        self._commits = GroupCommit(self.store.append_rows)
        await self._book.start()
        groups = self._make_pools()
        for (cluster, group), pools in groups.items():
            consumer = GroupConsumer(
                group,
                pools,
                store=self.store,
                commits=self._commits,
                options=self._clusters[cluster],
                budget=self._budget_of(self._clusters[cluster]),
                observer=lambda: self.on_event,
                book=self._book,
            )
            self._groups.append(consumer)
        await asyncio.gather(*(group.start() for group in self._groups))
        self._handed.start()
        self._look_for_topics()
        self._look_for_backfills(self._commits)
        self._state = "healthy"

    async def _enter(self, store: Registry) -> None:
        """Into the register: a workflow that another live worker has with flow control can't be bound to a topic."""
        entries = (served_of(binding.workflow, topic) for binding in self.bindings for topic in binding.topics)
        register = Register(store, f"kafka-{secrets.token_hex(8)}", entries)
        await register.begin()
        self._register = register
        keeping = asyncio.get_running_loop().create_task(register.run(), name="keep the entry in the register")
        self._looking.append(keeping)

    def _look_for_backfills(self, commits: GroupCommit) -> None:
        service = BackfillService(
            lambda: self.bindings,
            store=self.store,
            commits=commits,
            clusters=self._clusters,
            outputs_of=lambda cluster: self._outputs.setdefault(cluster, Outputs(self._clusters[cluster])),
            household=Household(self._book, self._solitude, self._backfill_pools),
            clock=self._clock,
            observer=self.on_event,
        )
        self._looking.append(asyncio.get_running_loop().create_task(service.run(), name="look for backfills"))
        if self._backfills is not None:
            self._backfills.set_result(service)

    def _make_pools(self) -> "dict[tuple[str, str], dict[str, Replayers]]":
        """A pool for each binding; of each cluster and group by topic."""
        groups: dict[tuple[str, str], dict[str, Replayers]] = {}
        self._pools, self._endings = [], []
        for binding in self.bindings:
            outputs = self._outputs.setdefault(binding.cluster, Outputs(self._clusters[binding.cluster]))
            endings = RunEndings(outputs, lambda: self.on_event)
            pool = Replayers(binding, endings, self._clock)
            pool.on_completed = endings.completed_at_once if self.on_event is not None else None
            endings.pool = pool
            pool.solitude = self._solitude
            self._book.serve(binding, pool, endings, self._clusters[binding.cluster].lane_bounds)
            self._handed.serve(pool, outputs)
            self._pools.append(pool)
            self._endings.append(endings)
            topics = groups.setdefault((binding.cluster, binding.group), {})
            topics.update(dict.fromkeys(binding.topics, pool))
        return groups

    async def rebind(self, bindings: Sequence[Binding]) -> None:
        """Go on with these in place of the present ones: what runs drains, what is unfinished goes on from its journal.

        They must read the same topics in the same groups, else ConfigurationError. Of a worker that runs.
        """
        check_bindings(bindings)
        if _reading(bindings) != _reading(self.bindings):
            raise ConfigurationError(
                f"the new bindings read {_told(bindings)}, the present ones {_told(self.bindings)}: make another worker"
            )
        former, endings = self._pools, self._endings
        self.bindings = tuple(bindings)
        groups = self._make_pools()
        clusters = [next(iter(group.pools.values())).binding.cluster for group in self._groups]
        rebinding = zip(clusters, self._groups, strict=True)
        await asyncio.gather(*(group.rebind(groups[cluster, group.group]) for cluster, group in rebinding))
        await _all_of(pool.stop() for pool in former)
        for each in endings:
            each.close()

    def _all_pools(self) -> list[Replayers]:
        return [*self._pools, *self._backfill_pools]

    def _wake_pools(self) -> None:
        for pool in self._all_pools():
            pool.wake()

    def _look_for_topics(self) -> None:
        loop = asyncio.get_running_loop()
        for group in self._groups:
            watch = TopicWatch(group.client, {pool.binding for pool in group.pools.values()})
            self._topics[group] = watch
            self._looking.append(loop.create_task(watch.run(), name=f"look for the topics of {group.group}"))

    def _budget_of(self, options: KafkaOptions) -> Any:
        def budget() -> tuple[int, int]:
            count = sum(len(group.partitions) for group in self._groups) or 1
            return max(1, options.buffer_records // count), max(1, options.buffer_bytes // count)

        return budget

    async def _watch(self) -> None:
        """Until stop(): none of the tasks that must live may end."""
        tasks = [task for group in self._groups for task in group.tasks]
        stopping = asyncio.ensure_future(self._stopping.asked.wait())
        try:
            while not self._stopping.asked.is_set():
                if monotonic() - self._reported >= REPORT_SECONDS:
                    self._report()
                done, _ = await asyncio.wait([stopping, *tasks], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task is not stopping:
                        task.result()
                        raise RuntimeError(f"the task {task.get_name()} ended by itself")
                for group in self._groups:
                    if group.failure is not None:
                        raise group.failure
                self._oldest.look((one for group in self._groups for one in group.partitions), monotonic())
        finally:
            stopping.cancel()

    def _report(self) -> None:
        """What each binding has done, in the log: also of a worker that nobody watches."""
        self._reported = monotonic()
        for stats in self.stats():
            log.info(
                "%s: %d completed, %d retried, %d dead-lettered, %d skipped, %d in flight, lag %d",
                stats.binding, stats.completed, stats.retried, stats.dead_lettered, stats.skipped, stats.in_flight,
                stats.lag,
            )  # fmt: skip

    async def _stop_backfills(self) -> None:
        started, self._backfills = self._backfills, None
        if started is not None and started.done():
            await started.result().stop()
        elif started is not None:
            started.set_exception(BackfillInterrupted("the worker stopped before it had started"))
            started.exception()

    async def _shut_down(self) -> None:
        if self._pools:
            self._report()
        for endings in self._endings:
            endings.close()
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        drain = max(options.drain_timeout for options in self._clusters.values())
        stopping = [*(group.stop() for group in self._groups), self._handed.stop(drain), self._stop_backfills()]
        await _all_of(stopping)
        await _all_of(pool.stop() for pool in self._pools)
        if self._commits is not None:
            await self._commits.close()
        await self._book.stop()
        if self._register is not None:
            await _all_of([_within(_STRIKE_SECONDS, self._register.end())])
        await _all_of(outputs.stop() for outputs in self._outputs.values())
        await self.store.close()


async def _within(seconds: float, ending: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(seconds):
        await ending


async def _all_of(endings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """What fails to end keeps nothing else from ending."""
    for answer in await asyncio.gather(*endings, return_exceptions=True):
        if isinstance(answer, Exception):
            log.error("a part of the worker did not end cleanly", exc_info=answer)


def _reading(bindings: Iterable[Binding]) -> set[tuple[str, str, str]]:
    return {(binding.cluster, binding.group, topic) for binding in bindings for topic in binding.topics}


def _told(bindings: Iterable[Binding]) -> str:
    return ", ".join(f"{topic} for group {group}" for _, group, topic in sorted(_reading(bindings)))
