"""`pyrula worker MODULE:WORKER` as a process: it works until a signal, and says why when it can't."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until

_SHOP = """
import os
from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import MemoryStore, workflow

@workflow(name="double")
async def double(ctx, number: int) -> int:
    return number * 2

def worker():
    topic = os.environ["TOPIC"]
    return KafkaWorker(
        [Binding(double, topic=topic, output=topic + ".out", group=topic)],
        store=MemoryStore(),
        kafka=KafkaOptions(bootstrap_servers=os.environ["KAFKA"], commit_interval=0.1),
    )
"""


def start(folder: Path, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    (folder / "shop.py").write_text(_SHOP)
    return subprocess.Popen(
        [sys.executable, "-m", "pyrula.cli", "worker", "shop:worker"],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_it_works_until_sigterm_and_ends_well(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    topics = Topics(kafka)
    topics.create(topic_prefix, f"{topic_prefix}.out", f"{topic_prefix}.{topic_prefix}.dlq", partitions=2)
    topics.produce(topic_prefix, [Message(b"%d" % number, b"%d" % number) for number in range(50)])
    worker = start(tmp_path, {"KAFKA": kafka, "TOPIC": topic_prefix})
    try:
        wait_until(
            lambda: sum(topics.ends(f"{topic_prefix}.out").values()) == 50, description="all outputs", timeout=30
        )
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, said
    assert "Traceback" not in said
    assert sorted(int(record.value or b"") for record in topics.read(f"{topic_prefix}.out")) == [*range(0, 100, 2)]
    ends = topics.ends(topic_prefix)
    assert {partition: kept.offset for partition, kept in topics.committed(topic_prefix, topic_prefix).items()} == ends


def test_its_topics_are_listed_and_made(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(_SHOP)
    letters, output = f"{topic_prefix}.{topic_prefix}.dlq", f"{topic_prefix}.out"

    def topics(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pyrula", "topics", "shop:worker", *options],
            cwd=tmp_path,
            env={"KAFKA": kafka, "TOPIC": topic_prefix},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout

    said = f"{{0}} {topic_prefix}  (input)\n{{0}} {output}  (output)\n{{0}} {letters}  (dead letters)\n"
    assert topics() == (1, said.format("MISSING "))
    assert topics("--create", "--partitions", "3") == (0, said.format("made    "))
    assert len(Topics(kafka).ends(letters)) == 3
    assert topics("--create") == (0, said.format("exists  "))
    assert topics() == (0, said.format("exists  "))


def test_the_broker_of_topics_is_named_when_it_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(_SHOP)
    done = subprocess.run(
        [sys.executable, "-m", "pyrula", "topics", "shop:worker"],
        cwd=tmp_path,
        env={"KAFKA": "127.0.0.1:1", "TOPIC": "orders"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pyrula: no Kafka broker answered at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_that_does_not_answer_is_named(tmp_path: Path) -> None:
    worker = start(tmp_path, {"KAFKA": "127.0.0.1:1", "TOPIC": "orders"})
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "waiting for the store: MemoryStore(" in said
    assert "waiting for Kafka at 127.0.0.1:1 (cluster 'default')" in said
    assert "no Kafka broker answered at 127.0.0.1:1" in said
    assert "Traceback" not in said


_RUNS = """
import os
from pyrula.workflows import ValkeyStore, WorkerOptions, WorkflowWorker, workflow

@workflow(name="command_runs")
async def runs(ctx, number: int) -> int:
    return number * 2

worker = WorkflowWorker([runs], store=ValkeyStore(os.environ["VALKEY"], namespace=os.environ["NAMESPACE"]))
"""


def start_runs(folder: Path, valkey: str, namespace: str) -> "subprocess.Popen[str]":
    (folder / "runs.py").write_text(_RUNS)
    return subprocess.Popen(
        [sys.executable, "-m", "pyrula", "worker", "runs:worker"],
        cwd=folder,
        env={**os.environ, "VALKEY": valkey, "NAMESPACE": namespace},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


async def test_a_worker_of_submitted_runs_works_until_sigterm(valkey: str, namespace: str, tmp_path: Path) -> None:
    worker = start_runs(tmp_path, valkey, namespace)
    try:
        async with WorkflowClient(ValkeyStore(valkey, namespace=namespace)) as client:
            run = await client.submit("command_runs", {"number": 21})
            assert await run.result(timeout=180) == 42
        worker.send_signal(signal.SIGTERM)
        said, _ = await asyncio.to_thread(worker.communicate, timeout=30)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, said
    assert f"waiting for the store: ValkeyStore('{valkey}" in said
    assert " executes runs of command_runs\n" in said


def test_what_is_waited_for_is_told_before_it_answers(tmp_path: Path) -> None:
    worker = start_runs(tmp_path, "valkey://127.0.0.1:1", "n")
    try:
        assert worker.stdout is not None
        assert "waiting for the store: ValkeyStore('valkey://127.0.0.1:1/0', namespace='n')" in worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, said
