"""exactly_once=True: readers of committed records see every output once and in key order, whatever happens to those who
write them."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.guarantees.members import SOAK, Members
from tests.guarantees.observers import done
from tests.guarantees.promises import Evidence, at_least_once, broken_promises, output_once
from tests.services.kafka import KafkaServer
from tests.services.process import WorkerProcess
from tests.services.waiting import wait_until

NewGroup = Callable[..., Members]

RECORDS = 20_000 if SOAK else 3_000
CONCURRENCY = 16
OPTIONS = {"session_timeout": 3, "heartbeat_interval": 0.5, "drain_timeout": 0.5}
BINDING = {"exactly_once": True, "max_concurrency": CONCURRENCY}


def evidence_of(group: Members) -> Evidence:
    # Nothing at all may be there twice, so nobody is allowed anything.
    return Evidence(group.lines, group.records, group.topics.read(group.outputs), interrupted=0, concurrency=0)


def check(group: Members) -> None:
    # a transaction that its end left open hides what others wrote after it until the broker gives it up
    wait_until(lambda: not at_least_once(evidence_of(group)), description="every output to be seen", interval=1)
    evidence = evidence_of(group)
    assert output_once(evidence) == []
    broken = broken_promises(evidence)
    # Steps in progress at a kill may run again; their outputs may not.
    broken.pop("StepOnce", None)
    assert broken == {}
    assert group.topics.read(group.letters) == []


def test_every_output_is_seen_once_over_kills(new_group: NewGroup) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    with new_group(partitions=6) as group:
        group.produce(RECORDS, keys=97)
        workers = [group.start("sending", 0.01, options=OPTIONS, binding=BINDING) for _ in range(2)]
        for kill in range(10):
            goal = RECORDS * (kill + 1) // 12
            wait_until(
                lambda goal=goal: len(done(group.lines)) >= goal, description=f"{goal} records done", timeout=240
            )
            victim = rng.choice(workers)
            victim.kill()
            victim.start()
        group.wait_drained(timeout=240)
        check(group)


def test_kills_between_producing_and_committing(new_group: NewGroup) -> None:
    with new_group(partitions=2) as group:
        group.produce(400, keys=20)
        worker = group.start("sending", 0, options=OPTIONS, binding=BINDING, env={"KILL": "0.2"})
        deaths = 0
        while deaths < 8:
            wait_until(lambda: not worker.running, description="the worker to die", timeout=240)
            deaths += 1
            group.produce(100, keys=20)
            worker.start()
        worker.kill()
        group.start("sending", 0, options=OPTIONS, binding=BINDING)
        group.wait_drained(timeout=240)
        check(group)


def test_a_zombie_commits_nothing_and_a_broker_may_restart(
    valkey: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    with (
        KafkaServer() as broker,
        Members(broker.bootstrap, valkey, topic_prefix, namespace, tmp_path / "steps.txt", partitions=4) as group,
    ):
        workers = [group.start("sending", 0.05, options=OPTIONS, binding=BINDING) for _ in range(2)]
        group.wait_assigned(*workers)
        with group.load(80, keys=40):
            for zombie in workers:
                _outlive(group, zombie)
            broker.restart()
            time.sleep(2)
        group.wait_drained(timeout=240)
        assert all(worker.running for worker in workers)
        check(group)


def _outlive(group: Members, zombie: WorkerProcess) -> None:
    """Frozen in the middle of its work, and woken when all it had is somebody else's."""
    before = len(done(group.lines))
    wait_until(lambda: len(done(group.lines)) >= before + 40, description="work", timeout=240)
    zombie.freeze()
    wait_until(lambda: group.topics.members(group.topic) == 1, description="it to be expelled", timeout=240)
    time.sleep(2)
    zombie.wake()
    time.sleep(1)


def test_a_record_too_large_for_its_output_topic_is_dead_lettered_in_its_transaction(new_group: NewGroup) -> None:
    with new_group(partitions=1) as group:
        group.topics.configure(group.outputs, {"max.message.bytes": "2000"})
        group.produce(20, keys=5)
        group.produce(1, keys=5, body={"body": "sending much"})
        group.produce(20, keys=5)
        group.start("sending", 0, options=OPTIONS, binding=BINDING)
        group.wait_drained()
        outputs = group.topics.read(group.outputs)
        assert len(outputs) == 40
        assert len({output.value for output in outputs}) == 40
        (letter,) = group.topics.read(group.letters)
        assert dict(letter.headers)["pyrula-dlq-offset"] == b"20"
        assert b"too large" in (dict(letter.headers)["pyrula-dlq-message"] or b"")
