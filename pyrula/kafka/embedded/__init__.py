"""A Kafka broker in a child process, for `pyrula dev`, tests and notebooks: no server, no Docker, no JVM.

It is the mock cluster of librdkafka (it comes with confluent-kafka, the optional extra ``dev``), spoken to over TCP by
any client. This module owns the child process and its topics. It is no real Kafka:

- everything is in memory and gone when the broker stops;
- a partition keeps its last 5 MB (`KEPT_BYTES`) and drops the oldest without a word, so feed it no faster than it is
  read: at most `SAFE_BYTES` unread;
- it doesn't wake a fetch that waits for data: consume with ``fetch_max_wait=FETCH_MAX_WAIT``, or see records late;
- a group has one member: a second one is refused when it joins;
- it knows no CreateTopics request: a topic is made by `EmbeddedBroker.create_topic`, or with four partitions by the
  first client that asks for it.

The child ends when the parent does, however that happens: it reads its standard input, which the parent holds open, to
the end. Only `child` knows confluent_kafka.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pyrula.workflows.errors import ConfigurationError, PyrulaError

__all__ = ["FETCH_MAX_WAIT", "KEPT_BYTES", "SAFE_BYTES", "EmbeddedBroker"]

KEPT_BYTES = 5 * 1024 * 1024
SAFE_BYTES = 2 * 1024 * 1024
FETCH_MAX_WAIT = 0.01


class EmbeddedBroker:
    """A broker of this process's own.

    with EmbeddedBroker({"orders": 6}) as broker:
        options = KafkaOptions(bootstrap_servers=broker.bootstrap, fetch_max_wait=FETCH_MAX_WAIT)
    """

    def __init__(self, topics: Mapping[str, int] | None = None, *, answer_timeout: float = 15.0) -> None:
        """`topics` are made at the start, each with its number of partitions. `answer_timeout` is in seconds."""
        self._topics = dict(topics or {})
        self._answer_timeout = answer_timeout
        self._child: subprocess.Popen[str] | None = None
        self._bootstrap = ""

    @property
    def bootstrap(self) -> str:
        """Where it listens, as ``host:port``."""
        self._running()
        return self._bootstrap

    def check(self) -> None:
        """Raise PyrulaError if the child is gone."""
        child = self._running()
        if child.poll() is not None:
            raise self._died(child)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._running().pid

    def start(self) -> None:
        """Start the child and make the topics. Returns when it answers; does nothing when it runs."""
        if self._child is not None:
            return
        if find_spec("confluent_kafka") is None:
            raise ConfigurationError(
                "the embedded broker needs confluent-kafka, which is not installed. Run: pip install 'pyrula[dev]'"
            )
        self._child = subprocess.Popen(
            # By its path: with -m the child would import aiokafka and all of pyrula.kafka first.
            [sys.executable, "-P", str(Path(__file__).with_name("child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._bootstrap = self._answer()["bootstrap"]
            for topic, partitions in self._topics.items():
                self.create_topic(topic, partitions)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the child. Safe to call twice."""
        child, self._child = self._child, None
        if child is None:
            return
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                # What was written and not yet read is of no use to a child that has died.
                with suppress(OSError):
                    stream.close()
        try:
            child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def create_topic(self, topic: str, partitions: int = 4) -> None:
        """Make a topic; one that exists keeps its partitions."""
        if not topic or partitions < 1:
            raise ConfigurationError(f"no topic can be named {topic!r} and have {partitions} partitions")
        child = self._running()
        try:
            _open(child.stdin).write(json.dumps({"create": topic, "partitions": partitions}) + "\n")
            _open(child.stdin).flush()
        except BrokenPipeError:
            raise self._died(child) from None
        self._answer()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> "subprocess.Popen[str]":
        if self._child is None:
            raise PyrulaError("the embedded broker is not running: call start() first")
        return self._child

    def _answer(self) -> dict[str, Any]:
        child = self._running()
        silent = threading.Timer(self._answer_timeout, child.kill)
        silent.start()
        line = _open(child.stdout).readline()
        silent.cancel()
        if not line:
            raise self._died(child)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PyrulaError(f"the embedded broker refused: {answer['error']}")
        return answer

    def _died(self, child: "subprocess.Popen[str]") -> PyrulaError:
        said = _open(child.stderr).read().strip() or "it said nothing"
        return PyrulaError(f"the embedded broker is gone (status {child.wait()}): {said}")


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
