"""Which Kafka and which Valkey a test run uses: the environment's, Docker's, or local binaries.

Both functions are context managers that give an address and, where they started the server, end it.
"""

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.services.child import ServiceUnavailable, StartFailed
from tests.services.containers import engine_answers, kafka_container, valkey_container
from tests.services.kafka import NODE_SETTINGS, KafkaServer, wait_for_broker
from tests.services.valkey import ValkeyServer, wait_for_valkey

KAFKA_VARIABLE = "PYRULA_KAFKA"
VALKEY_VARIABLE = "PYRULA_VALKEY"
_ANSWER_TIMEOUT = 15.0


@contextlib.contextmanager
def open_kafka() -> Iterator[str]:
    """The bootstrap address of a broker. ServiceUnavailable if there is none and none can be started."""
    if given := os.environ.get(KAFKA_VARIABLE):
        with _as_unavailable(KAFKA_VARIABLE):
            wait_for_broker(given, timeout=_ANSWER_TIMEOUT)
        yield given
    elif engine_answers():
        with kafka_container(NODE_SETTINGS) as bootstrap:
            yield bootstrap
    else:
        with KafkaServer() as server:
            yield server.bootstrap


@contextlib.contextmanager
def open_valkey(*, appendonly: bool = False) -> Iterator[str]:
    """The URL of a Valkey. ServiceUnavailable if there is none and none can be started."""
    if given := os.environ.get(VALKEY_VARIABLE):
        address = urlsplit(given)
        with _as_unavailable(VALKEY_VARIABLE):
            wait_for_valkey(address.hostname or "127.0.0.1", address.port or 6379, timeout=_ANSWER_TIMEOUT)
        yield given
    elif engine_answers():
        with valkey_container(appendonly=appendonly) as url:
            yield url
    else:
        with ValkeyServer(appendonly=appendonly) as server:
            yield server.url


@contextlib.contextmanager
def _as_unavailable(variable: str) -> Iterator[None]:
    try:
        yield
    except StartFailed as silent:
        raise ServiceUnavailable(f"{silent} (the address is that of {variable})") from None
