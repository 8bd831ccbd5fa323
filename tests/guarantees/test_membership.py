"""Who belongs to the group: long bodies do, paused partitions do, a process that slept through its session doesn't."""

import threading
import time
from collections.abc import Callable
from itertools import pairwise

from tests.guarantees.members import Members
from tests.guarantees.observers import done, out_of_order, repeated_steps
from tests.services.waiting import wait_until

NewGroup = Callable[..., Members]


def test_bodies_longer_than_the_poll_interval_and_paused_partitions_keep_the_membership(new_group: NewGroup) -> None:
    with new_group(partitions=4) as group:
        group.produce(400, keys=400)
        options = {"max_poll_interval": 10, "drain_timeout": 1, "buffer_records": 8}
        worker = group.start("step", 14, options=options, binding={"max_concurrency": 4})
        group.wait_for("done", count=2)
        wait_until(lambda: sum(group.committed().values()) >= 2, description="the commit of what is done")
        lines = group.lines
        assert len([line for line in lines if line.what.startswith("assigned")]) == 1, worker.tail()
        assert repeated_steps(lines) == {}
        assert set(done(lines).values()) == {1}


def test_a_worker_that_slept_through_its_session_changes_nothing(new_group: NewGroup) -> None:
    with new_group(partitions=4) as group:
        options = {"session_timeout": 6, "drain_timeout": 2}
        sleeper, other = (group.start(seconds=0.2, options=options, binding={"max_concurrency": 8}) for _ in range(2))
        wait_until(lambda: group.topics.members(group.topic) == 2, description="two members")
        history: list[dict[int, int]] = []
        watched = threading.Event()

        def watch() -> None:
            while not watched.wait(0.2):
                history.append(group.committed())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with group.load(60, keys=40):
                group.wait_for("done", count=50, pid=sleeper.pid)
                before = len(other.lines)
                sleeper.freeze()
                frozen = time.monotonic()
                # Its session ends, and the other one has all partitions.
                other.wait_for_line(r"generation \d+: 4 partitions assigned", after=before)
                time.sleep(1)
                woken = time.monotonic()
                before = len(sleeper.lines)
                sleeper.wake()
                sleeper.wait_for_line(r"generation \d+: 2 partitions assigned", after=before)
            group.wait_drained()
        finally:
            watched.set()
            watcher.join()
        lines = group.lines
        assert set(done(lines)) == group.records
        for before, after in pairwise(history):
            assert all(after.get(partition, 0) >= offset for partition, offset in before.items()), (before, after)
        # It woke with records in hand and began nothing with them before it was a member again.
        awake = [line for line in lines if line.pid == sleeper.pid and line.at >= woken]
        stale = awake[: [line.what.split("/")[0] for line in awake].index("assigned")]
        assert not [line for line in stale if line.what in ("begin", "start")], stale
        # Only what the sleeper was at ran again: no more than it may have in flight.
        again = repeated_steps(lines)
        inflight = {line.run for line in lines if line.pid == sleeper.pid and line.at < frozen}
        assert {run for run, _ in again} <= inflight
        assert sum(again.values()) <= 8, again
        assert out_of_order(lines) == []


def test_a_loop_that_is_blocked_is_survived_and_named(new_group: NewGroup) -> None:
    with new_group(partitions=1) as group:
        worker = group.start(options={"session_timeout": 10, "drain_timeout": 2})
        # Python code in a thread leaves the loop its turns; a block that is shorter than the session is survived.
        group.produce(1, body={"body": "busy", "seconds": 11})
        group.wait_for("start", count=2)
        group.produce(1, body={"body": "blocking", "seconds": 4})
        group.wait_for("done", count=2)
        time.sleep(0.5)
        assert len([line for line in group.lines if line.what.startswith("assigned")]) == 1, worker.tail()
        blocked = next(line for line in group.lines if line.offset == 1)
        worker.wait_for_line(rf"stood still for [3-9]\.\d s in run {blocked.run} of workflow member")
        # Beyond the session the record is delivered again, and no journaled step runs a second time.
        group.produce(1, body={"body": "blocking once", "seconds": 14})
        group.wait_drained()
        lines = group.lines
        assert len([line for line in lines if line.what.startswith("assigned")]) == 2, worker.tail()
        assert len([line for line in lines if line.what == "begin" and line.offset == 2]) == 2
        assert 1 not in {step for _, step in repeated_steps(lines)}
        assert set(done(lines)) == group.records
