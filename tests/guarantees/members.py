"""A group of workers as processes, one topic that they work on, and the file their bodies count themselves in."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.guarantees.observers import Line, read_lines
from tests.services.process import WorkerProcess
from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until

# With PYRULA_SOAK=1 tests take as long as a doubt may need.
SOAK = os.environ.get("PYRULA_SOAK") == "1"
PROGRAM = Path(__file__).parent / "programs" / "member.py"


class Members:
    """The group and its topic have one name."""

    def __init__(self, kafka: str, valkey: str, topic: str, namespace: str, log: Path, *, partitions: int) -> None:
        self.topics = Topics(kafka)
        self.topic = topic
        self.log = log
        self.letters = f"{topic}.{topic}.dlq"
        self.outputs = f"{topic}.out"
        self.topics.create(topic, partitions=partitions)
        self.topics.create(self.letters, self.outputs)
        self._arguments = (kafka, valkey, namespace, topic, str(log))
        self._stack = ExitStack()
        self._produced = 0

    def start(
        self,
        body: str = "steps",
        seconds: float = 0.02,
        *,
        options: Mapping[str, Any] | None = None,
        binding: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """One more member, ended with the test."""
        variables = {
            "BODY": body,
            "SECONDS": str(seconds),
            "OPTIONS": json.dumps(dict(options or {})),
            "BINDING": json.dumps(dict(binding or {})),
            **(env or {}),
        }
        return self._stack.enter_context(WorkerProcess(PROGRAM, *self._arguments, env=variables))

    def produce(
        self, count: int, *, keys: int = 50, partition: int | None = None, body: Mapping[str, Any] | None = None
    ) -> None:
        """So many more records; keys take turns. `body` names what to do where it isn't the worker's own."""
        numbers = range(self._produced, self._produced + count)
        self._produced += count
        value = json.dumps(dict(body or {})).encode()
        messages = (Message(f"k{n % keys}".encode(), value, partition=partition) for n in numbers)
        self.topics.produce(self.topic, messages)

    @contextmanager
    def load(self, a_second: int, *, keys: int = 50) -> Iterator[None]:
        """Records at a steady rate while the block lasts."""
        end = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while not end.wait(0.25):
                    self.produce(a_second // 4, keys=keys)
            except BaseException as failure:  # noqa: BLE001 - told in the test's own thread
                failures.append(failure)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        assert failures == []

    @property
    def lines(self) -> list[Line]:
        return read_lines(self.log)

    def wait_for(self, what: str, *, count: int = 1, timeout: float = 90.0, pid: int | None = None) -> None:
        """So many lines of a kind (``done`` stands for any attempt)."""

        def found() -> bool:
            matching = [n for n in self.lines if n.what.split("/")[0] == what and pid in (None, n.pid)]
            return len(matching) >= count

        wait_until(found, description=f"{count} lines of {what}", timeout=timeout, interval=0.1)

    def wait_assigned(self, *workers: WorkerProcess, timeout: float = 90.0) -> None:
        """Each of the workers has had an assignment."""
        for worker in workers:
            self.wait_for("assigned", pid=worker.pid, timeout=timeout)

    def wait_drained(self, *, timeout: float = 90.0) -> None:
        self.topics.wait_committed(self.topic, self.topic, timeout=timeout)

    def committed(self) -> dict[int, int]:
        return {partition: at.offset for partition, at in self.topics.committed(self.topic, self.topic).items()}

    @property
    def records(self) -> set[tuple[int, int]]:
        """All that the topic holds, as (partition, offset)."""
        return {(one, offset) for one, end in self.topics.ends(self.topic).items() for offset in range(end)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
