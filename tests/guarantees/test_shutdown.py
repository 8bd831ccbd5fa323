"""How a worker ends: drained if it can be, cut if it must be, always in time; and what is left for the next one."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guarantees.members import SOAK, Members
from tests.guarantees.observers import done, repeated_steps
from tests.services.kafka import KafkaServer
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until

NewGroup = Callable[..., Members]

# A process ends within drain_timeout and this.
IN_TIME = 10.0
# What a busy machine adds.
NOISE = 20.0


def test_sigterm_drains(new_group: NewGroup) -> None:
    with new_group(partitions=2) as group:
        group.produce(40, keys=40)
        worker = group.start("step", 2, binding={"max_concurrency": 10})
        group.wait_for("start", count=20)
        worker.terminate()
        assert worker.wait() == 0, worker.tail()
        lines = group.lines
        # What ran ended, nothing more was started, and all of it is committed.
        ended = {record for record, times in done(lines).items() if times}
        assert ended == {(line.partition, line.offset) for line in lines if line.what == "begin"}
        assert 10 <= len(ended) < 40
        assert sum(group.committed().values()) == len(ended)
        assert group.topics.members(group.topic) == 0


@pytest.mark.parametrize("bodies", [("plain", "in try", "step", "in thread", "swallowing"), ("in own thread",)])
def test_bodies_longer_than_the_drain_are_cut_and_go_on_later(new_group: NewGroup, bodies: tuple[str, ...]) -> None:
    with new_group(partitions=1) as group:
        for body in bodies:
            group.produce(1, body={"body": body})
        options = {"drain_timeout": 1}
        worker = group.start(seconds=60, options=options)
        group.wait_for("end", count=len(bodies))
        wait_until(group.committed, description="the confirming commit")
        told = time.monotonic()
        worker.terminate()
        status = worker.wait()
        assert time.monotonic() - told < 1 + IN_TIME + NOISE
        # A thread of the body's own is joined by the interpreter, which is what the deadline is for.
        assert status == (128 + signal.SIGTERM if "in own thread" in bodies else 0), worker.tail()
        assert group.committed() == {0: 0}
        assert group.topics.read(group.letters) == []
        assert not [line for line in worker.lines if "Traceback" in line], worker.tail()
        group.start(seconds=0, options=options)
        group.wait_drained()
        lines = group.lines
        assert [line.what for line in lines if line.what.startswith("done")] == ["done/1"] * len(bodies)
        assert not [line for line in lines if line.what == "handled"]
        # The step before the cut was journaled, the one that was cut ran again.
        assert {step for _, step in repeated_steps(lines)} <= {2}
        assert group.topics.read(group.letters) == []


def test_the_second_sigterm_ends_at_once(new_group: NewGroup) -> None:
    with new_group(partitions=1) as group:
        group.produce(1)
        worker = group.start("plain", 60, options={"drain_timeout": 30})
        group.wait_for("end")
        worker.terminate()
        worker.wait_for_line("SIGTERM")
        told = time.monotonic()
        worker.terminate()
        assert worker.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - told < NOISE


def test_sigterm_ends_a_worker_in_time_with_everything_down(
    kafka: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    # `kafka` is asked for so that a machine without a broker skips this; it has its own, since it kills them.
    with (
        KafkaServer() as broker,
        ValkeyServer() as store,
        Members(broker.bootstrap, store.url, topic_prefix, namespace, tmp_path / "steps.txt", partitions=2) as group,
    ):
        group.produce(10, keys=10)
        worker = group.start("step", 30, options={"drain_timeout": 1}, binding={"max_concurrency": 4})
        group.wait_for("start", count=8)
        broker.kill()
        store.kill()
        time.sleep(1)
        told = time.monotonic()
        worker.terminate()
        worker.wait()
        assert time.monotonic() - told < 1 + IN_TIME + NOISE, worker.tail()


def test_sigterm_ends_a_worker_of_a_frozen_broker(
    valkey: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    with (
        KafkaServer() as broker,
        Members(broker.bootstrap, valkey, topic_prefix, namespace, tmp_path / "steps.txt", partitions=2) as group,
    ):
        group.produce(10, keys=10)
        options = {"drain_timeout": 1, "session_timeout": 6}
        worker = group.start("step", 0.5, options=options, binding={"max_concurrency": 2})
        group.wait_for("start", count=4)
        os.kill(broker.pid, signal.SIGSTOP)
        told = time.monotonic()
        worker.terminate()
        worker.wait()
        took = time.monotonic() - told
        os.kill(broker.pid, signal.SIGCONT)
        assert took < 1 + IN_TIME + NOISE, worker.tail()
        if not SOAK:
            return
        # What it could not commit is done again, from the journal. A broker that wakes needs a moment.
        group.start("step", 0, options=options)
        group.wait_for("done", count=10)
        group.wait_drained()
        lines = group.lines
        assert set(done(lines)) == group.records
        assert repeated_steps(lines) == {}
