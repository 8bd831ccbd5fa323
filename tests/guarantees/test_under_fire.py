"""A group under fire: everything that can happen to workers, brokers and the store, in random order, under load.

`make test` runs each kind of fault once; `make soak` goes on for as long as PYRULA_SOAK_SECONDS says (600), on three
brokers. The seed is printed; the same seed gives the same order of faults, though never the same moments.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.conformance.proxy import Proxy
from tests.guarantees.members import SOAK, Members
from tests.guarantees.promises import Evidence, broken_promises
from tests.services.kafka import KafkaCluster, KafkaServer
from tests.services.process import WorkerProcess
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until

CONCURRENCY = 8
OPTIONS = {"session_timeout": 6, "drain_timeout": 0.5, "commit_interval": 0.2}
SOAK_SECONDS = float(os.environ.get("PYRULA_SOAK_SECONDS", "600"))


@contextmanager
def cuttable(url: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """A way to the store that can be cut: its URL, and what cuts every connection of it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = Proxy(url)
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(60)
        yield proxy.url, lambda: asyncio.run_coroutine_threadsafe(_cut(proxy), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cut(proxy: Proxy) -> None:
    proxy.cut()


class Fire:
    """The faults. `interrupted` counts those after which a worker may have to repeat what it had in progress."""

    def __init__(
        self,
        rng: random.Random,
        workers: list[WorkerProcess],
        brokers: list[KafkaServer],
        store: ValkeyServer,
        cut: Callable[[], None],
    ) -> None:
        self._rng = rng
        self._workers = workers
        self._brokers = brokers
        self._store = store
        self._cut = cut
        self.interrupted = 0
        self.faults: list[Callable[[], None]] = [
            self.end_worker,
            self.kill_worker,
            self.freeze_worker,
            self.freeze_worker_past_its_session,
            self.restart_broker,
            self.kill_broker,
            self.restart_store,
            self.kill_store,
            self.cut_connections,
        ]

    def end_worker(self) -> None:
        worker = self._rng.choice(self._workers)
        worker.terminate()
        assert worker.wait() == 0, worker.tail()
        self._start_again(worker)

    def kill_worker(self) -> None:
        worker = self._rng.choice(self._workers)
        self.interrupted += 1
        worker.kill()
        self._start_again(worker)

    def freeze_worker(self) -> None:
        self._freeze(self._rng.uniform(0.5, 4))

    def freeze_worker_past_its_session(self) -> None:
        self._freeze(self._rng.uniform(7, 9))

    def restart_broker(self) -> None:
        self._everybody_may_repeat()
        self._rng.choice(self._brokers).restart()

    def kill_broker(self) -> None:
        self._everybody_may_repeat()
        broker = self._rng.choice(self._brokers)
        broker.kill()
        time.sleep(self._rng.uniform(0, 2))
        broker.start()

    def restart_store(self) -> None:
        self._everybody_may_repeat()
        self._store.restart()

    def kill_store(self) -> None:
        self._everybody_may_repeat()
        self._store.kill()
        time.sleep(self._rng.uniform(0, 2))
        self._store.start()

    def cut_connections(self) -> None:
        self._everybody_may_repeat()
        self._cut()

    def _everybody_may_repeat(self) -> None:
        # A worker that is cut off drops its assignment, and with it what was in progress.
        self.interrupted += len(self._workers)

    def _freeze(self, seconds: float) -> None:
        worker = self._rng.choice(self._workers)
        self.interrupted += 1
        worker.freeze()
        time.sleep(seconds)
        worker.wake()

    def _start_again(self, worker: WorkerProcess) -> None:
        # Until it has joined it has no handler for SIGTERM yet.
        before = len(worker.lines)
        worker.start().wait_for_line("joining group", after=before)


@contextmanager
def brokers() -> Iterator[tuple[str, list[KafkaServer]]]:
    if SOAK:
        with KafkaCluster() as cluster:
            yield cluster.bootstrap, cluster.brokers
    else:
        with KafkaServer() as server:
            yield server.bootstrap, [server]


def test_every_promise_holds_under_fire(kafka: str, topic_prefix: str, namespace: str, tmp_path: Path) -> None:
    # `kafka` is asked for so that a machine without a broker skips this; it has its own, since it kills them.
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    with (
        brokers() as (bootstrap, servers),
        ValkeyServer(appendonly=True, appendfsync="always") as store,
        cuttable(store.url) as (url, cut),
        Members(bootstrap, url, topic_prefix, namespace, tmp_path / "steps.txt", partitions=8) as group,
    ):
        workers = [
            group.start("sending", 0.2, options=OPTIONS, binding={"max_concurrency": CONCURRENCY}) for _ in range(3)
        ]
        group.wait_assigned(*workers)
        fire = Fire(rng, workers, servers, store, cut)
        history: list[dict[int, int]] = []
        with group.load(40, keys=100):
            until = time.monotonic() + (SOAK_SECONDS if SOAK else 0)
            while True:
                for fault in rng.sample(fire.faults, len(fire.faults)):
                    print(f"{time.monotonic():.1f} {fault.__name__}")
                    fault()
                    time.sleep(rng.uniform(0.5, 2.5))
                    history.append(wait_until(group.committed, description="the commits, from a broker that is back"))
                if time.monotonic() >= until:
                    break
        group.wait_drained(timeout=240)
        assert all(worker.running for worker in workers)
        evidence = Evidence(group.lines, group.records, group.topics.read(group.outputs), fire.interrupted, CONCURRENCY)
        assert broken_promises(evidence) == {}
        assert group.topics.read(group.letters) == []
        for before, after in pairwise(history):
            assert all(after.get(partition, 0) >= offset for partition, offset in before.items()), (before, after)
