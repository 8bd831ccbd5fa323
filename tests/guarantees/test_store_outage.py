"""A store that does not answer while partitions move: the group is not held up, and nothing is lost."""

import os
import signal
import time
from pathlib import Path

from tests.guarantees.members import Members
from tests.guarantees.observers import done, out_of_order, repeated_steps
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until


def test_partitions_move_while_the_store_is_silent(
    kafka: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    with (
        ValkeyServer() as store,
        Members(kafka, store.url, topic_prefix, namespace, tmp_path / "steps.txt", partitions=4) as group,
    ):
        options = {"drain_timeout": 1, "session_timeout": 10}
        stays, leaves = (group.start(seconds=0.1, options=options, binding={"max_concurrency": 8}) for _ in range(2))
        wait_until(lambda: group.topics.members(group.topic) == 2, description="two members")
        with group.load(60):
            group.wait_for("done", count=60)
            os.kill(store.pid, signal.SIGSTOP)
            silent, before = time.monotonic(), len(stays.lines)
            leaves.terminate()
            assert leaves.wait() == 0, leaves.tail()
            assert time.monotonic() - silent < 1 + 30
            stays.wait_for_line(r"generation \d+: 4 partitions assigned", after=before)
            time.sleep(1)
            os.kill(store.pid, signal.SIGCONT)
        group.wait_drained()
        assert stays.running, stays.tail()
        assert not [line for line in stays.lines if "expelled" in line or "Traceback" in line], stays.tail()
        lines = group.lines
        assert set(done(lines)) == group.records
        assert out_of_order(lines) == []
        # A step counts as in progress until its row is acknowledged: at most one of each run in flight ran again.
        again = repeated_steps(lines)
        assert len({run for run, _ in again}) <= 16
        assert set(again.values()) <= {1}
