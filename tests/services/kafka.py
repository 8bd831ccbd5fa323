"""A single Kafka node (KRaft: broker and controller in one process) from Apache's jars.

Settings are those of a test: nothing is created by a typo, a group's first rebalance doesn't wait, the cleaner looks
every 200 ms so that a test can see compaction, sessions may be short. A restart keeps the port and the data.
"""

import contextlib
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.child import Child, StartFailed, free_port, remove_folder, temporary_folder
from tests.services.kafka_jars import find_jars, find_java

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


class KafkaServer:
    """One broker. ``with KafkaServer() as kafka: ... kafka.bootstrap``; settings override those of the node."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, heap_mb: int = 384, port: int | None = None
    ) -> None:
        self._settings = dict(settings or {})
        self._heap_mb = heap_mb
        self._port = port if port is not None else free_port()
        self._controller_port = free_port()
        self._folder: Path | None = None
        self._child: Child | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Start and wait until the broker answers a request; the first start formats its folder."""
        java, jars = find_java(), find_jars()
        if self._folder is None:
            self._folder = temporary_folder("kafka")
            self._format(java, jars, self._folder)
        command = [java, f"-Xmx{self._heap_mb}m", f"-Xms{self._heap_mb // 2}m", "-XX:+UseSerialGC"]
        command += [*_java_options(jars), "kafka.Kafka", str(self._folder / "server.properties")]
        self._child = Child(command, folder=self._folder)
        self._child.wait_ready(lambda: broker_answers(self.bootstrap), name="Kafka", timeout=_START_TIMEOUT)

    def stop(self) -> None:
        """End the broker and remove its data."""
        self.kill()
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None

    def shut_down(self) -> None:
        """A clean end as an operator would: SIGTERM. The data stays for `start()`."""
        self._running().stop(timeout=30)
        self._child = None

    def kill(self) -> None:
        """SIGKILL. The data stays for `start()`."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        """Shut down and start on the same port and data; after `kill()`, only start."""
        if self._child is not None:
            self.shut_down()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def log_tail(self) -> str:
        return self._child.log_tail() if self._child is not None else ""

    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError("this KafkaServer is not running")
        return self._child

    def _format(self, java: str, jars: Path, folder: Path) -> None:
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}"
        settings = {
            **NODE_SETTINGS,
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": str(folder / "data"),
            **self._settings,
        }
        properties = folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_java_options(jars)]
        command += ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_TIMEOUT, check=False)
        if done.returncode != 0:
            raise StartFailed(f"Kafka's folder could not be formatted:\n{(done.stdout + done.stderr)[-2000:]}")


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
