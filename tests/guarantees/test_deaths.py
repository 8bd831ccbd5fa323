"""Workers that die: the record that kills them is found and set aside, and no other one is blamed for it."""

import random
import time
from collections.abc import Callable

from tests.guarantees.members import Members
from tests.guarantees.observers import done
from tests.services.waiting import wait_until

NewGroup = Callable[..., Members]

OPTIONS = {"session_timeout": 1.5, "heartbeat_interval": 0.3, "drain_timeout": 0.5}


def test_a_record_that_kills_its_process_is_set_aside(new_group: NewGroup) -> None:
    with new_group(partitions=2) as group:
        group.produce(250, keys=40)
        group.produce(1, keys=40, body={"body": "killing"})
        group.produce(249, keys=40)
        worker = group.start("step", 0.01, options=OPTIONS)
        restarts = 0
        while True:
            wait_until(
                lambda: not worker.running or len(group.topics.read(group.letters)) == 1,
                description="the worker to die, or the letter",
                timeout=240,
                interval=0.2,
            )
            if worker.running:
                break
            restarts += 1
            assert restarts <= 10
            worker.start()
        group.wait_drained()
        (letter,) = group.topics.read(group.letters)
        headers = dict(letter.headers)
        assert headers["pyrula-dlq-reason"] == b"worker died"
        assert b"with nothing else running" in (headers["pyrula-dlq-message"] or b"")
        assert letter.value == b'{"body": "killing"}'
        killer = (int(headers["pyrula-dlq-partition"] or b""), int(headers["pyrula-dlq-offset"] or b""))
        assert set(done(group.lines)) == group.records - {killer}
        # then there is no reason to be careful any more
        group.produce(40, keys=40)
        group.wait_drained()
        assert worker.running


def test_records_that_run_when_their_worker_is_killed_are_not_blamed(new_group: NewGroup) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    with new_group(partitions=2) as group:
        group.produce(60, keys=60)
        worker = group.start("plain", 300, options=OPTIONS, binding={"max_concurrency": 20})
        for _ in range(10):
            group.wait_for("begin", pid=worker.pid)
            time.sleep(rng.random())
            worker.kill()
            worker.start()
        worker.kill()
        group.start("plain", 0, options=OPTIONS)
        group.wait_drained()
        assert set(done(group.lines)) == group.records
        assert group.topics.read(group.letters) == []
