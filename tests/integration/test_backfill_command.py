"""`pyrula backfill MODULE:WORKER` as a person types it: what it prints, how it ends, and the verbs beside it."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until

ROOT = Path(__file__).parents[2]

_SHOP = """
import asyncio, os, time
from pyrula.kafka import Binding, KafkaOptions, KafkaWorker, Record
from pyrula.workflows import Limit, ValkeyStore, step, workflow

TOPIC = os.environ["TOPIC"]

@step
async def slowly(number: int) -> int:
    await asyncio.sleep(float(os.environ.get("SECONDS", "0")))
    if number == int(os.environ.get("DEADLY", "-1")):
        os.kill(os.getpid(), 9)
    if number == 13 and "MENDED" not in os.environ:
        raise ValueError("thirteen")
    return number * 2

@workflow(name="double")
async def double(ctx, number: int) -> int:
    return await ctx.step(slowly, number)

def is_even(record: Record[int]) -> bool:
    return record.value % 2 == 0

worker = KafkaWorker(
    [Binding(double, topic=TOPIC, output=TOPIC + ".out", group=TOPIC)],
    store=ValkeyStore(os.environ["VALKEY"], namespace=os.environ["NAMESPACE"]),
    kafka=KafkaOptions(
        bootstrap_servers=os.environ["KAFKA"], commit_interval=0.1, drain_timeout=1,
        session_timeout=float(os.environ.get("LEASE", "10")), heartbeat_interval=0.5,
    ),
)
"""


class Shop:
    """A module with a worker, its topics, and commands given in its folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.topic = environment["TOPIC"]
        self.topics = Topics(environment["KAFKA"])
        self.environment = environment
        (folder / "shop.py").write_text(_SHOP)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "pyrula.cli", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def backfill(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Exit status, standard output and standard error of one command."""
        process = self.start("backfill", "shop:worker", *arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def report(self, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
        status, out, err = self.backfill(*arguments, "--json", **environment)
        assert "Traceback" not in err, err
        return status, json.loads(out)


@pytest.fixture
def shop(kafka: str, valkey: str, topic_prefix: str, namespace: str, tmp_path: Path) -> Iterator[Shop]:
    names = {"KAFKA": kafka, "VALKEY": valkey, "TOPIC": topic_prefix, "NAMESPACE": namespace}
    shop = Shop(tmp_path, {**names, "PYTHONPATH": str(ROOT)})
    shop.topics.create(topic_prefix, f"{topic_prefix}.out", f"{topic_prefix}.{topic_prefix}.dlq", partitions=2)
    shop.topics.produce(topic_prefix, [Message(b"%d" % n, b"%d" % n, partition=n % 2) for n in range(40)])
    yield shop
    for process in shop.started:
        process.kill()
        process.communicate()


def test_a_range_is_run_and_reported(shop: Shop) -> None:
    status, out, err = shop.backfill("--start", "5", "--where", "shop:is_even", "--id", "b")
    assert status == 0, err
    assert "backfill b: completed" in out
    assert "30 read, 15 matched, 15 completed, 0 failed, 0 skipped" in out
    assert re.search(r"^0 +5 - 20 +15 +15 +15 +0 +0 +5 20\S+ +19 20\S+$", out, re.MULTILINE), out
    assert "--id b" in err
    results = sorted(int(one.value or b"") for one in shop.topics.read(f"{shop.topic}.out"))
    assert results == [2 * n for n in range(40) if n % 2 == 0 and n // 2 >= 5]
    assert "nothing has run now" not in err
    status, out, err = shop.backfill("--start", "5", "--where", "shop:is_even", "--id", "b")
    assert (status, "completed" in out) == (0, True)
    assert "it was completed before, so nothing has run now; give another --id" in err
    assert len(shop.topics.read(f"{shop.topic}.out")) == 15


def test_failed_records_are_counted_and_told(shop: Shop) -> None:
    status, report = shop.report("--id", "b")
    assert status == 1
    assert (report["status"], report["completed"], report["failed"]) == ("completed", 39, 1)
    assert report["partitions"][1]["failed"] == 1
    status, out, _ = shop.backfill("status", "b")
    assert status == 0
    assert f"1 dead letters are in {shop.topic}.{shop.topic}.dlq, with the header pyrula-backfill: b" in out
    assert "to run them once more: pyrula backfill MODULE:WORKER redrive b" in out
    status, report = shop.report("redrive", "b")
    assert (status, report["id"], report["failed_of"]) == (1, "b.redrive", "b")
    assert (report["read"], report["matched"], report["failed"]) == (1, 1, 1)
    status, report = shop.report("redrive", "b.redrive", "--id", "mended", MENDED="1")
    assert (status, report["id"], report["matched"], report["completed"]) == (0, "mended", 1, 1)
    status, out, _ = shop.backfill("redrive", "b", "--id", "mended-again", MENDED="1")
    assert status == 0, out
    assert b"26" in [one.value for one in shop.topics.read(f"{shop.topic}.out")]


def test_a_dry_run_says_what_would_run(shop: Shop) -> None:
    status, out, err = shop.backfill("--partitions", "1", "--dry-run")
    assert status == 0, err
    assert "dry run of double" in out
    assert "20 read, 20 would run" in out
    assert shop.topics.read(f"{shop.topic}.out") == []
    _, out, err = shop.backfill("list")
    assert (out, "no backfills in ValkeyStore(" in err) == ("", True)


def test_a_range_that_matches_nothing_says_so(shop: Shop) -> None:
    status, out, _ = shop.backfill("--start", "2100-01-01T00:00:00Z")
    assert status == 0
    assert f"nothing in the range: {shop.topic} has no records from 2100-01-01T00:00:00+00:00 up to latest" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "no-such-topic"], "topic no-such-topic does not exist at"),
        (["--partitions", "0,7"], "has partitions 0 to 1, so there is no partition 7"),
    ],
)
def test_what_does_not_exist(shop: Shop, arguments: list[str], said: str) -> None:
    for more in ([], ["--dry-run"]):
        status, out, err = shop.backfill(*arguments, *more)
        assert status == 2
        assert said in out + err
        assert "Traceback" not in err


def test_an_id_that_no_backfill_has(shop: Shop) -> None:
    status, _, err = shop.backfill("pause", "x")
    assert (status, "no backfill has the id 'x'" in err, "Traceback" in err) == (2, True, False)


def test_a_worker_takes_it_while_others_watch_pause_and_resume(shop: Shop) -> None:
    worker = shop.start("worker", "shop:worker", SECONDS="0.05")
    status, out, err = shop.backfill("--id", "b", "--detach", "--rate", "1", "--max-concurrency", "2")
    assert (status, out) == (0, "b\n"), err
    until(shop, "b", lambda report: report["completed"] >= 2)
    watching = shop.start("backfill", "shop:worker", "--watch", "--id", "b")
    assert shop.report("pause", "b")[1]["status"] == "paused"
    until(shop, "b", lambda report: all(one["worker"] is None for one in report["partitions"]))
    before = shop.report("status", "b")[1]["completed"]
    assert 2 <= before < 39
    assert watching.poll() is None
    seen = ""
    while "backfill b: paused" not in seen:
        assert watching.stderr is not None
        line = watching.stderr.readline()
        assert line, seen
        seen += line
    assert shop.report("resume", "b")[1]["status"] == "running"
    # the same again, faster
    shop.backfill("--id", "b", "--detach", "--rate", "1000", "--max-concurrency", "16")
    said, err = watching.communicate(timeout=60)
    assert watching.returncode == 1, err
    assert "39 completed, 1 failed" in said
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    status, out, _ = shop.backfill("list")
    assert (status, "b  completed  double" in out) == (0, True)
    status, _, err = shop.backfill("cancel", "b")
    assert (status, "is completed, so there is nothing to cancel" in err) == (2, True)


@pytest.mark.bench
def test_a_record_that_kills_its_process_is_found(shop: Shop) -> None:
    """Started again and again, as a supervisor would, it comes to its end; one record is to blame."""
    for attempt in range(1, 12):  # noqa: B007 - it is told
        process = shop.start("backfill", "shop:worker", "--id", "b", "--json", DEADLY="24", LEASE="2")
        out, _ = process.communicate(timeout=60)
        if process.returncode != -signal.SIGKILL:
            break
    print(f"{attempt} attempts")
    report = json.loads(out)
    assert (report["status"], report["completed"], report["failed"]) == ("completed", 38, 2)
    letters = {one.value: dict(one.headers) for one in shop.topics.read(f"{shop.topic}.{shop.topic}.dlq")}
    assert letters[b"24"]["pyrula-dlq-reason"] == b"worker died"
    assert set(letters) == {b"13", b"24"}


def test_interrupted_it_lets_go_and_goes_on_with_its_id(shop: Shop) -> None:
    process = shop.start("backfill", "shop:worker", "--id", "b", "--rate", "1")
    until(shop, "b", lambda report: report["completed"] >= 2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; to go on with it: --id b" in err
    report = shop.report("status", "b")[1]
    assert (report["status"], [one["worker"] for one in report["partitions"]]) == ("running", [None, None])
    before = len(shop.topics.read(f"{shop.topic}.out"))
    assert before == report["completed"] > 0
    status, report = shop.report("--id", "b")
    assert (status, report["completed"], report["failed"]) == (1, 39, 1)
    assert len(shop.topics.read(f"{shop.topic}.out")) == 39


def until(shop: Shop, backfill_id: str, reached: Callable[[dict[str, Any]], bool]) -> None:
    def look() -> bool:
        _, out, _ = shop.backfill("status", backfill_id, "--json")
        return bool(out) and reached(json.loads(out))

    wait_until(look, description="the backfill to come that far", timeout=40)
