"""Kafka nodes (KRaft: broker and controller in one process) from Apache's jars: one alone, or several as a cluster.

Settings are those of a test: nothing is created by a typo, a group's first rebalance doesn't wait, the cleaner looks
every 200 ms so that a test can see compaction, sessions may be short. A restart keeps the port and the data.
"""

import contextlib
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.services.child import Child, StartFailed, free_port
from tests.services.kafka_jars import find_jars, find_java
from tests.services.server import LocalServer, Service

_LOG4J = Path(__file__).with_name("log4j2.properties")
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_START_TIMEOUT = 90.0
NODE_SETTINGS = {
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "default.replication.factor": "1",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # after a kill the new broker waits until the old one's session is over
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.initial.task.delay.ms": "500",
    # records keep old timestamps as they are; a topic whose records should age out says so
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.size": "524288",
}


class KafkaServer(LocalServer):
    """One broker. ``with KafkaServer() as kafka: ... kafka.bootstrap``; settings override those of the node.

    `node` is its number among the `voters`, which are ``node@host:port`` of every controller; alone it is number 1.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        heap_mb: int = 384,
        port: int | None = None,
        node: int = 1,
        controller_port: int | None = None,
        voters: Sequence[str] = (),
    ) -> None:
        super().__init__("kafka", patience=30)
        self._settings = dict(settings or {})
        self._heap_mb = heap_mb
        self._port = port if port is not None else free_port()
        self._controller_port = controller_port if controller_port is not None else free_port()
        self.node = node
        self._voters = ",".join(voters) or f"{node}@127.0.0.1:{self._controller_port}"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start and wait until the broker answers a request; the first start formats its folder."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the broker answers a request."""
        self._running().wait_ready(lambda: broker_answers(self.bootstrap), name="Kafka", timeout=_START_TIMEOUT)

    def launch(self) -> None:
        """Start without waiting: a node of a cluster is ready only when most of the others run."""
        java, jars = find_java(), find_jars()
        properties = self.folder / "server.properties"
        if not properties.exists():
            self._format(java, jars, properties)
        command = [java, f"-Xmx{self._heap_mb}m", f"-Xms{self._heap_mb // 2}m", "-XX:+UseSerialGC"]
        command += [*_java_options(jars), "kafka.Kafka", str(properties)]
        self._child = Child(command, folder=self.folder)

    def _format(self, java: str, jars: Path, properties: Path) -> None:
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}"
        settings = {
            **NODE_SETTINGS,
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": self._voters,
            "log.dirs": str(self.folder / "data"),
            **self._settings,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_java_options(jars)]
        command += ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_TIMEOUT, check=False)
        if done.returncode != 0:
            raise StartFailed(f"Kafka's folder could not be formatted:\n{(done.stdout + done.stderr)[-2000:]}")


class KafkaCluster(Service):
    """Brokers that replicate: three copies of everything, two of which must be written.

    ``with KafkaCluster() as cluster: ... cluster.bootstrap, cluster.brokers[0].restart()``
    """

    def __init__(self, nodes: int = 3, settings: Mapping[str, str] | None = None, *, heap_mb: int = 320) -> None:
        copies = str(min(3, nodes))
        replicated = {
            "default.replication.factor": copies,
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "2",
            # a broker that comes back takes its partitions again, so that a rolling restart moves every leader twice
            "leader.imbalance.check.interval.seconds": "2",
            **(settings or {}),
        }
        numbers = range(1, nodes + 1)
        controllers = {node: free_port() for node in numbers}
        voters = [f"{node}@127.0.0.1:{port}" for node, port in controllers.items()]
        self.brokers = [
            KafkaServer(replicated, heap_mb=heap_mb, node=node, controller_port=controllers[node], voters=voters)
            for node in numbers
        ]
        self._stack = ExitStack()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start all and wait until each answers."""
        for broker in self.brokers:
            self._stack.callback(broker.stop)
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()

    def stop(self) -> None:
        """End the brokers and remove their data."""
        self._stack.close()


def _java_options(jars: Path) -> list[str]:
    return ["-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={_LOG4J}", "-cp", f"{jars}/*"]


_METADATA_REQUEST = struct.pack(">hhih6si", 3, 1, 1, 6, b"pyrula", 0)


def broker_answers(bootstrap: str, *, timeout: float = 2.0) -> bool:
    """Whether the first of the servers answers a Metadata request (v1, no topics) naming a broker.

    An open port is no proof: the listener accepts before the broker is fenced in. The request is written by hand so
    that a starter needs no client library.
    """
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_connection((host, int(port)), timeout=timeout) as connection,
        connection.makefile("rb") as reader,
    ):
        connection.sendall(struct.pack(">i", len(_METADATA_REQUEST)) + _METADATA_REQUEST)
        (size,) = struct.unpack(">i", reader.read(4))
        brokers: int = struct.unpack_from(">i", reader.read(size), 4)[0]
        return brokers >= 1
    return False


def wait_for_broker(bootstrap: str, *, timeout: float) -> None:
    """For a broker somebody else started. StartFailed when it stays silent."""
    deadline = time.monotonic() + timeout
    while not broker_answers(bootstrap):
        if time.monotonic() > deadline:
            raise StartFailed(f"no Kafka broker answers at {bootstrap} within {timeout:g} s")
        time.sleep(0.1)
