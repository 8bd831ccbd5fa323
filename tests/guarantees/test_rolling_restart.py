"""Three brokers and the store restarted one after the other, under load, as an operator does it; and the coordinator
killed. Workers recover by themselves, and say meanwhile what they wait for."""

from pathlib import Path

from tests.guarantees.members import Members
from tests.guarantees.promises import Evidence, broken_promises
from tests.services.kafka import KafkaCluster, KafkaServer
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until

CONCURRENCY = 8


def test_a_rolling_restart_of_everything_under_load(
    kafka: str, topic_prefix: str, namespace: str, tmp_path: Path
) -> None:
    # `kafka` is asked for so that a machine without a broker skips this; it has its own, since it restarts them.
    with (
        KafkaCluster() as cluster,
        ValkeyServer(appendonly=True, appendfsync="always") as store,
        Members(cluster.bootstrap, store.url, topic_prefix, namespace, tmp_path / "steps.txt", partitions=6) as group,
    ):
        options = {"session_timeout": 10, "drain_timeout": 1}
        workers = [
            group.start("sending", 0.1, options=options, binding={"max_concurrency": CONCURRENCY}) for _ in range(2)
        ]
        group.wait_assigned(*workers)
        interruptions = 0
        with group.load(40, keys=60):
            for broker in cluster.brokers:
                broker.restart()
                interruptions += 1
                _goes_on(group)
            coordinator = _coordinator(group, cluster)
            coordinator.kill()
            interruptions += 1
            _goes_on(group)
            coordinator.start()
            store.restart()
            interruptions += 1
            _goes_on(group)
            store.kill()
            for worker in workers:
                worker.wait_for_line("valkey:.* can't be reached")
            store.start()
            interruptions += 1
            _goes_on(group)
        group.wait_drained(timeout=240)
        assert all(worker.running for worker in workers)
        assert not [line for worker in workers for line in worker.lines if "Traceback" in line]
        evidence = Evidence(
            group.lines, group.records, group.topics.read(group.outputs), interruptions * len(workers), CONCURRENCY
        )
        assert broken_promises(evidence) == {}


def _goes_on(group: Members) -> None:
    """More records complete than had when this was asked, from every partition."""
    partitions, before = set(group.topics.partitions(group.topic)), group.committed()

    def moved() -> bool:
        now = group.committed()
        return set(now) == partitions and all(at > before.get(partition, 0) for partition, at in now.items())

    wait_until(moved, description="every partition's commit to move on", timeout=240, interval=0.3)


def _coordinator(group: Members, cluster: KafkaCluster) -> KafkaServer:
    host = group.topics.coordinator(group.topic)
    (found,) = (broker for broker in cluster.brokers if broker.bootstrap == host)
    return found
