"""Members that come and go: nothing is lost, nothing that ended runs again, keys keep their order."""

import random
import time
from collections.abc import Callable

from tests.guarantees.members import SOAK, Members
from tests.guarantees.observers import done, out_of_order, overlaps, repeated_steps, skipped
from tests.services.process import WorkerProcess

NewGroup = Callable[..., Members]

# A drain lasts as long as the bodies, so a long time-out costs nothing and a busy machine cuts none.
UNHURRIED = {"drain_timeout": 15}


def refusals(*workers: WorkerProcess) -> list[str]:
    """What a worker says when the group went on without it."""
    words = ("commit refused", "is over", "expelled", "another claim", "without waiting", "Traceback")
    return [line for worker in workers for line in worker.lines if any(word in line for word in words)]


def test_scaling_out_and_in_repeats_nothing(new_group: NewGroup) -> None:
    with new_group(partitions=4) as group:
        workers = [group.start(options=UNHURRIED)]
        group.wait_assigned(*workers)
        with group.load(100):
            for _ in range(5 if SOAK else 2):
                for _ in range(2):
                    workers.append(group.start(options=UNHURRIED))
                    group.wait_assigned(workers[-1])
                    time.sleep(0.5)
                for worker in workers[:2]:
                    worker.terminate()
                    assert worker.wait() == 0, worker.tail()
                del workers[:2]
        group.wait_drained()
        lines = group.lines
        assert set(done(lines)) == group.records
        assert repeated_steps(lines) == {}
        assert {record for record, times in done(lines).items() if times > 1} == set()
        assert out_of_order(lines) == []
        assert overlaps(lines) == {}


def test_the_group_waits_as_long_as_the_drain(new_group: NewGroup) -> None:
    with new_group(partitions=4) as group:
        group.produce(40, keys=20)
        options = {**UNHURRIED, "session_timeout": 10}
        first = group.start("step", 4, options=options)
        group.wait_for("start", count=20)
        second = group.start("step", 0.1, options=options)
        group.wait_assigned(second)
        group.wait_drained()
        lines = group.lines
        assert set(done(lines).values()) == {1}
        assert set(done(lines)) == group.records
        assert repeated_steps(lines) == {}
        assert overlaps(lines) == {}
        assert out_of_order(lines) == []
        assert refusals(first, second) == []


def test_restarts_under_load_end_no_other_worker(new_group: NewGroup) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    with new_group(partitions=6) as group:
        options = {**UNHURRIED, "commit_interval": 0.1}
        workers = [group.start(options=options) for _ in range(3)]
        group.wait_assigned(*workers)
        until = time.monotonic() + (120 if SOAK else 9)
        with group.load(120):
            while time.monotonic() < until:
                worker = workers.pop(0)
                worker.terminate()
                assert worker.wait() == 0, worker.tail()
                worker.start()
                workers.append(worker)
                time.sleep(2 + rng.random())
                assert all(one.running for one in workers), "\n".join(one.tail() for one in workers if not one.running)
        group.wait_drained()
        assert all(one.running for one in workers)
        lines = group.lines
        assert set(done(lines)) == group.records
        assert repeated_steps(lines) == {}
        assert out_of_order(lines) == []


def test_a_storm_of_rebalances_skips_no_record(new_group: NewGroup) -> None:
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    with new_group(partitions=12) as group:
        group.produce(1_200, keys=300)
        # A drain shorter than a body may last: some runs are cut at each rebalance.
        options = {"drain_timeout": 0.2, "commit_interval": 0.5}
        workers = [group.start("mixed", 0.4, options=options) for _ in range(2)]
        group.wait_assigned(*workers)
        until = time.monotonic() + (300 if SOAK else 11)
        with group.load(60, keys=300):
            while time.monotonic() < until:
                if len(workers) < 3 or (len(workers) == 3 and rng.random() < 0.5):
                    workers.append(group.start("mixed", 0.4, options=options))
                else:
                    worker = workers.pop(rng.randrange(len(workers)))
                    worker.wait_for_line("joining group")
                    worker.terminate()
                    assert worker.wait() == 0, worker.tail()
                time.sleep(2)
        group.wait_drained(timeout=240)
        lines = group.lines
        assert {(line.partition, line.offset) for line in lines if line.what == "begin"} == group.records
        assert set(done(lines)) == group.records
        assert skipped(lines) == []
        assert out_of_order(lines) == []
        assert overlaps(lines) == {}
        # Only what was in progress at a cut ran again; of a record without steps, only what was cut.
        cut = {(line.run, line.step) for line in lines if line.what == "cut"}
        assert set(repeated_steps(lines)) <= cut
        assert [record for record, times in done(lines).items() if times > 1 and record[1] % 2 == 0] == []


def test_every_partition_moves_away_and_back(new_group: NewGroup) -> None:
    with new_group(partitions=4) as group:
        here = group.start(options=UNHURRIED)
        group.wait_assigned(here)
        for _ in range(4 if SOAK else 2):
            group.produce(100)
            there = group.start(options=UNHURRIED)
            group.wait_assigned(there)
            group.produce(100)
            here.terminate()
            assert here.wait() == 0, here.tail()
            group.produce(100)
            here, there = there, here
        group.wait_drained()
        assert group.committed() == group.topics.ends(group.topic)
        lines = group.lines
        assert set(done(lines)) == group.records
        assert set(done(lines).values()) == {1}
        assert repeated_steps(lines) == {}


def test_a_quick_return_waits_for_the_thread_of_the_former_body(new_group: NewGroup) -> None:
    with new_group(partitions=2) as group:
        options = {"drain_timeout": 0.5}
        stays, leaves = (group.start("in thread", 10, options=options) for _ in range(2))
        for member in (stays, leaves):
            member.wait_for_line("1 partitions assigned")
        group.produce(1, partition=0)
        group.produce(1, partition=1)
        group.wait_for("start", count=4)  # step 1, then the step in a thread, of each
        leaves.terminate()
        stays.wait_for_line("earlier body of its lane")
        assert leaves.wait() == 0, leaves.tail()
        group.wait_drained()
        lines = group.lines
        assert done(lines) == {(0, 0): 1, (1, 0): 1}
        assert overlaps(line for line in lines if line.pid == stays.pid) == {}
        # Cut once, replayed once.
        assert repeated_steps(lines) == {(line.run, 2): 1 for line in lines if line.step == 2}


def test_a_member_that_drains_to_stop_holds_up_the_group(new_group: NewGroup) -> None:
    with new_group(partitions=2) as group:
        group.produce(20, keys=10)
        leaves = group.start("step", 4, options=UNHURRIED)
        group.wait_for("start", count=20)
        leaves.terminate()
        leaves.wait_for_line("SIGTERM")
        comes = group.start("step", 0, options=UNHURRIED)
        assert leaves.wait() == 0, leaves.tail()
        group.wait_drained()
        lines = group.lines
        assert set(done(lines)) == group.records
        assert set(done(lines).values()) == {1}
        assert repeated_steps(lines) == {}
        assert overlaps(lines) == {}
        assert refusals(leaves, comes) == []


def test_a_member_that_waits_for_the_others_leaves_at_once(new_group: NewGroup) -> None:
    with new_group(partitions=2) as group:
        group.produce(10, keys=10)
        options = {"drain_timeout": 40, "session_timeout": 30}
        stays = group.start("step", 15, options=options)
        group.wait_for("start", count=20)
        comes = group.start(options=options)
        comes.wait_for_line("joining group")
        time.sleep(0.5)
        comes.terminate()
        assert comes.wait() == 0, comes.tail()
        # It didn't wait for the others' drain, as they don't wait for it: what was assigned comes back after the drain.
        assert not any("done" in line.what for line in group.lines)
        stays.wait_for_line(r"generation [2-9]: 2 partitions assigned", timeout=240)
        group.wait_drained()
        assert repeated_steps(group.lines) == {}
