"""The embedded broker's process: librdkafka's mock cluster by its C functions.

confluent_kafka's Python API starts such a cluster too, but can't make a topic with a given number of partitions. Runs
as a script and imports nothing of pyrula. Protocol, a JSON object a line: on start it tells
``{"bootstrap": "host:port"}``; each request ``{"create": topic, "partitions": n}`` is answered with ``{}`` or
``{"error": text}``; it ends when its standard input does.
"""

import ctypes
import json
import os
import signal
import sys

_PRODUCER = 0
_TOPIC_EXISTS = 36
# A lone worker need not wait the mock's 3 s for others to join its group.
_REBALANCE_DELAY_MS = 50

_TEXT, _POINTER, _INT, _SIZE = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_FUNCTIONS = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (_INT, [_POINTER, _TEXT, _TEXT, _TEXT, _SIZE]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _TEXT, _SIZE]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, [_POINTER]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_topic_create": (_INT, [_POINTER, _TEXT, _INT, _INT]),
    "rd_kafka_err2str": (_TEXT, [_INT]),
}


class MockCluster:
    """One broker on a port of its own choosing, listening until the process ends."""

    def __init__(self) -> None:
        from confluent_kafka import cimpl

        # A symbol is looked up in the extension's dependencies too: the librdkafka that comes with the wheel.
        self._lib = lib = ctypes.CDLL(cimpl.__file__)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        said = ctypes.create_string_buffer(512)
        config = lib.rd_kafka_conf_new()
        lib.rd_kafka_conf_set(config, b"log_level", b"0", said, len(said))
        client = lib.rd_kafka_new(_PRODUCER, config, said, len(said))
        self._cluster = client and lib.rd_kafka_mock_cluster_new(client, 1)
        if not self._cluster:
            raise RuntimeError(f"librdkafka can't start its mock cluster: {said.value.decode() or 'no reason given'}")
        lib.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, _REBALANCE_DELAY_MS)

    def bootstrap(self) -> str:
        told: bytes = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return told.decode()

    def create_topic(self, topic: str, partitions: int) -> str | None:
        """Make a topic, unless it exists. What went wrong, as text, or None."""
        code = self._lib.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        if code in (0, _TOPIC_EXISTS):
            return None
        said: bytes = self._lib.rd_kafka_err2str(code)
        return said.decode()


def main() -> None:
    # What ends the parent's process group reaches us too; it still needs us while it drains, then closes our input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cluster = MockCluster()
    _tell(bootstrap=cluster.bootstrap())
    for line in sys.stdin:
        request = json.loads(line)
        refused = cluster.create_topic(request["create"], request["partitions"])
        _tell(**{"error": refused} if refused else {})


def _tell(**answer: str) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    # The cluster's memory and threads go with the process; taking it down in order could only hang.
    os._exit(0)
