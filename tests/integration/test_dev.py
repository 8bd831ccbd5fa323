"""`pyrula dev` on workflows that do other things than succeed. No service: the broker is the embedded one."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_HEAD = """
import asyncio
from pyrula.kafka import Binding
from pyrula.workflows import Retry, step, workflow

"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pyrula.cli", "dev", *arguments]


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dev(code: str, *arguments: str) -> tuple[int, str]:
    Path("shop.py").write_text(_HEAD + code)
    done = subprocess.run(
        command("shop.py", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    return done.returncode, done.stdout


def test_records_that_runs_send_to_another_binding_are_waited_for() -> None:
    status, said = dev(
        """
@workflow(name="first")
async def first(ctx, number: int) -> None:
    await ctx.send("second", number, key=str(number))
    await ctx.send("second", -number, key=str(number))

@workflow(name="second")
async def second(ctx, number: int) -> None:
    await asyncio.sleep(0.05)

bindings = [Binding(first, topic="first", group="a"), Binding(second, topic="second", group="b")]

def sample_records(count):
    return ({"topic": "first", "value": number} for number in range(count))
""",
        "--count",
        "10",
    )
    assert status == 0, said
    assert "30 of 30 records" in said
    assert len(re.findall(r"^b/second +second/", said, re.MULTILINE)) == 20


def test_records_that_were_sent_while_the_ends_of_topics_were_asked_for_are_waited_for() -> None:
    status, said = dev(
        """
from pyrula.cli.dev import session

ends = session.DevClient.ends

async def ends_of_a_moment_ago(client, topics):
    found = await ends(client, topics)
    await asyncio.sleep(0.5)
    return found

session.DevClient.ends = ends_of_a_moment_ago

@workflow(name="first")
async def first(ctx, number: int) -> None:
    await asyncio.sleep(0.6)
    await ctx.send("second", number)

@workflow(name="second")
async def second(ctx, number: int) -> None:
    await asyncio.sleep(0.6)

bindings = [Binding(first, topic="first", group="a"), Binding(second, topic="second", group="b")]

def sample_records(count):
    return ({"topic": "first", "value": number} for number in range(count))
""",
        "--count",
        "3",
    )
    assert status == 0, said
    assert "6 of 6 records" in said


def test_a_stopped_record_makes_the_status_1_and_is_named() -> None:
    status, said = dev(
        """
@workflow(name="picky")
async def picky(ctx, number: int) -> None:
    if number == 3:
        raise ValueError("not three")

bindings = [Binding(picky, topic="numbers", group="g", on_failure="stop", ordering="unordered")]

def sample_records(count):
    return (("k", number) for number in range(count))
""",
        "--count",
        "6",
    )
    assert status == 1, said
    assert "5 of 6 records" in said
    assert re.search(r"^  UNFINISHED +1$", said, re.MULTILINE)
    assert re.search(r"held records:\n  numbers/\d@3  k\n      ValueError: not three", said)
    assert said.count("ValueError: not three") == 2  # in its line, and there


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_a_body_that_would_end_the_process_is_tried_again_and_dead_lettered(kind: str) -> None:
    status, said = dev(
        f"""
@workflow(name="exits", retry=Retry(max_attempts=2, initial=0))
async def exits(ctx, number: int) -> None:
    if number == 1:
        raise {kind}

bindings = Binding(exits, topic="numbers", group="g", ordering="partition")

def sample_records(count):
    return ((b"k", number) for number in range(count))
""",
        "--count",
        "3",
    )
    assert status == 0, said
    assert re.search(r"^  completed +2$", said, re.MULTILINE)
    assert re.search(r"^  retried +1 ", said, re.MULTILINE)
    assert f"the body raised {kind}" in said


def test_a_record_that_a_run_sent_is_shown() -> None:
    code = """
@workflow(name="first")
async def first(ctx, number: int) -> None:
    await ctx.send("receipts", {"of": number}, partition=0)

bindings = Binding(first, topic="first", group="a")

def sample_records(count):
    return ((None, number) for number in range(count))
"""
    status, said = dev(code, "--count", "1", "--partitions", "1", "--show", "receipts/0@0")
    assert status == 0, said
    assert said.startswith("record receipts/0@0\n")
    assert '"of": 0' in said
    status, said = dev(code, "--count", "1", "--show", "nothing/0@0")
    assert status == 1
    assert "there is no record nothing/0@0" in said


def test_a_run_that_is_tried_again_counts_as_retried() -> None:
    status, said = dev(
        """
tries = []

@workflow(name="flaky")
async def flaky(ctx, number: int) -> None:
    tries.append(number)
    if tries.count(number) < 3 and number == 1:
        raise ValueError("not yet")

bindings = Binding(flaky, topic="numbers", group="g", retry=Retry(max_attempts=3, initial=0.01))

def sample_records(count):
    return ((None, number) for number in range(count))
""",
        "--count",
        "4",
    )
    assert status == 0, said
    assert re.search(r"^  completed +4$", said, re.MULTILINE)
    assert re.search(r"^  retried +1 ", said, re.MULTILINE)
    assert said.count("tried again    ") == 2
    assert "attempt 3" in said


def test_more_than_the_broker_keeps_passes_through() -> None:
    status, said = dev(
        """
@workflow(name="slow")
async def slow(ctx, text: str) -> None:
    await asyncio.sleep(0.001)

bindings = Binding(slow, topic="texts", group="g", ordering="unordered")

def sample_records(count):
    return ((None, f"{number:06}" + "x" * 10_000) for number in range(count))
""",
        "--count",
        "3000",
        "--partitions",
        "2",
    )
    assert status == 0, said
    assert "3,000 of 3,000 records" in said
    assert re.search(r"^  completed +3,000$", said, re.MULTILINE)


def test_two_topics_need_a_topic_in_each_record() -> None:
    code = """
@workflow(name="two")
async def two(ctx, value: int) -> None: ...

bindings = Binding(two, topics=["a", "b"], group="g")

def sample_records(count):
    return [("k", 1)]
"""
    status, said = dev(code)
    assert status == 2
    assert "the bindings read a, b: say with a record's topic which one it is for" in said
    assert "Traceback" not in said


def test_no_records_says_how_to_give_some() -> None:
    code = '@workflow(name="none")\nasync def none(ctx) -> None: ...\nbindings = Binding(none, topic="t", group="g")\n'
    status, said = dev(code)
    assert status == 2
    assert "--records FILE" in said
    assert "def sample_records(count):" in said


def test_an_error_in_the_samples_is_the_users_to_see() -> None:
    code = """
@workflow(name="wrong")
async def wrong(ctx, value: int) -> None: ...

bindings = Binding(wrong, topic="t", group="g")

def sample_records(count):
    yield ("k", 1)
    raise RuntimeError("no more samples")
"""
    status, said = dev(code)
    assert status != 0
    assert "RuntimeError: no more samples" in said
    assert "shop.py" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_leaves_nothing_behind(number: signal.Signals) -> None:
    Path("shop.py").write_text(
        _HEAD
        + """
@workflow(name="endless")
async def endless(ctx, value: int) -> None:
    await asyncio.sleep(0.2)

bindings = Binding(endless, topic="t", group="g", max_concurrency=1)

def sample_records(count):
    return ((None, number) for number in range(count))
"""
    )
    child = subprocess.Popen(
        command("shop.py", "--count", "50"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        first = child.stdout.readline()
        os.killpg(child.pid, number)
        said, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert b"Traceback" not in first + said
    assert b"interrupted" in said
    assert re.search(rb"^unfinished records:\n(  t/\d@\d+\n)+  and \d+ more$", said, re.MULTILINE)
    assert child.returncode == 130


@pytest.mark.parametrize(
    ("statement", "line"), [("ctx.step(charge, number)", 12), ("kept = ctx.step(charge, number)", 12)]
)
def test_an_operation_that_is_not_awaited_is_told_with_its_line(statement: str, line: int) -> None:
    status, said = dev(
        f"""
@step
async def charge(number: int) -> None: ...

@workflow(name="forgets")
async def forgets(ctx, number: int) -> None:
    {statement}

bindings = Binding(forgets, topic="numbers", group="g")

def sample_records(count):
    return ((None, number) for number in range(count))
""",
        "--count",
        "2",
    )
    assert status == 0, said
    told = "shop.py:12: ctx.step was never awaited, so that it did not happen; write `await ctx.step(...)`"
    assert said.count(f"{told}: `{statement}`") == 1, said
