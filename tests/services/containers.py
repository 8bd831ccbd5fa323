"""The same two servers by Docker, through testcontainers, for a machine where an engine answers.

testcontainers is imported inside the functions: it is a test dependency, and a benchmark or compose/start may run
without. Kafka must advertise the address its clients use, so its host port is chosen before the start instead of read
after it.
"""

import contextlib
import importlib.util
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.services.child import ServiceUnavailable, free_port
from tests.services.kafka import wait_for_broker
from tests.services.kafka_jars import KAFKA_VERSION
from tests.services.valkey import wait_for_valkey

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

KAFKA_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
VALKEY_IMAGE = "valkey/valkey:8"
_START_TIMEOUT = 120.0
_DEFAULT_ENGINE = "unix:///var/run/docker.sock"
_KAFKA_ENVIRONMENT = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


def engine_answers() -> bool:
    """Whether testcontainers is installed and a Docker engine answers a ping within two seconds.

    Asked by hand over the engine's socket: Docker's own client leaves sockets open where nobody answers.
    """
    if importlib.util.find_spec("testcontainers") is None:
        return False
    address = urlsplit(os.environ.get("DOCKER_HOST") or _DEFAULT_ENGINE)
    with contextlib.suppress(OSError):
        if address.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX)
            target: Any = address.path
        else:
            connection = socket.socket()
            target = (address.hostname or "127.0.0.1", address.port or 2375)
        with connection:
            connection.settimeout(2)
            connection.connect(target)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in connection.recv(64)
    return False


@contextlib.contextmanager
def kafka_container(settings: dict[str, str]) -> Iterator[str]:
    """A broker's bootstrap address; `settings` are server properties."""
    from testcontainers.core.container import DockerContainer

    port = free_port()
    environment = {
        **{f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()},
        **_KAFKA_ENVIRONMENT,
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
    }
    container = DockerContainer(KAFKA_IMAGE)
    for name, value in environment.items():
        container = container.with_env(name, value)
    with _started(_published(container, 9092, port)):
        wait_for_broker(f"127.0.0.1:{port}", timeout=_START_TIMEOUT)
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def valkey_container(*, appendonly: bool) -> Iterator[str]:
    """A Valkey's URL."""
    from testcontainers.core.container import DockerContainer

    port = free_port()
    command = f"valkey-server --save '' --appendonly {'yes' if appendonly else 'no'}"
    container = DockerContainer(VALKEY_IMAGE).with_command(command)
    with _started(_published(container, 6379, port)):
        wait_for_valkey("127.0.0.1", port, timeout=_START_TIMEOUT)
        yield f"valkey://127.0.0.1:{port}"


def _published(container: "DockerContainer", inside: int, port: int) -> "DockerContainer":
    # with_bind_ports would publish on every interface; Docker's own form of a binding takes the address too.
    bindings: dict[str, Any] = container.ports
    bindings[f"{inside}/tcp"] = ("127.0.0.1", port)
    return container


@contextlib.contextmanager
def _started(container: "DockerContainer") -> Iterator[None]:
    from docker.errors import DockerException

    try:
        try:
            container.start()
        except DockerException as refusal:
            raise ServiceUnavailable(f"Docker's engine could not start {container.image}: {refusal}") from None
        yield
    finally:
        container.stop()
