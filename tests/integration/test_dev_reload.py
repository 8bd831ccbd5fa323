"""`pyrula dev` with records from a pipe, and with files that change while it runs. All as processes."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_HEAD = """
import asyncio
from pyrula.kafka import Binding
from pyrula.workflows import Retry, step, workflow

"""

_SHOP = (
    _HEAD
    + """
@step
async def charge(number: int) -> str:
    print(f"charged {number} by VERSION", flush=True)
    return f"{number}-VERSION"

@workflow(name="shop")
async def shop(ctx, number: int) -> None:
    receipt = await ctx.step(charge, number)
    print(f"ended {receipt} by VERSION", flush=True)

bindings = Binding(shop, topic="numbers", group="g", ordering="partition")
"""
)


class Dev:
    """A `pyrula dev` whose output is read line by line."""

    def __init__(self, folder: Path, *arguments: str, stdin: int = subprocess.PIPE) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "pyrula", "dev", *arguments],
            cwd=folder,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, pattern: str, seconds: float = 60.0) -> str:
        """The first line from here on that has this in it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in time:\n{''.join(self.said)}") from None
            assert line is not None, f"no {pattern!r}:\n{''.join(self.said)}"
            self.said.append(line)
            if re.search(pattern, line):
                return line

    def give(self, *lines: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("".join(f"{line}\n" for line in lines))
        self.child.stdin.flush()

    def end(self) -> int:
        """Close the pipe, and read to the end."""
        if self.child.stdin is not None:
            self.child.stdin.close()
        while (line := self._lines.get(timeout=30)) is not None:
            self.said.append(line)
        return self.child.wait(timeout=30)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        self._reader.join()
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                stream.close()

    @property
    def text(self) -> str:
        return "".join(self.said)


@pytest.fixture
def started() -> Iterator[list[Dev]]:
    devs: list[Dev] = []
    yield devs
    for dev in devs:
        dev.kill()


def write(folder: Path, name: str, text: str) -> None:
    """As most editors do: a new file in the old one's place."""
    new = folder / f".{name}.new"
    new.write_text(text)
    new.replace(folder / name)


def test_each_line_of_an_open_pipe_is_a_record_at_once(tmp_path: Path, started: list[Dev]) -> None:
    write(tmp_path, "shop.py", _SHOP)
    dev = Dev(tmp_path, "shop.py", "--partitions", "1")
    started.append(dev)
    for number in (5, 6):
        dev.give(str(number))
        dev.until(rf"^numbers/0@{number - 5} +completed")
    dev.give("", "7", "oops")
    assert dev.end() == 0, dev.text
    assert "4 of 4 records" in dev.text
    assert re.search(r"numbers/0@3 +dead-lettered", dev.text)


def test_a_file_of_records_on_standard_input_wins_over_the_samples(tmp_path: Path) -> None:
    write(tmp_path, "shop.py", _SHOP + '\ndef sample_records(count):\n    yield ("k", 1000)\n')
    (tmp_path / "records.jsonl").write_text("".join(f"{number}\n" for number in range(700)))
    with (tmp_path / "records.jsonl").open() as records:
        done = subprocess.run(
            [sys.executable, "-m", "pyrula", "dev", "shop.py"],
            cwd=tmp_path, stdin=records, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "700 of 700 records" in done.stdout
    assert "charged 1000" not in done.stdout
    # the first ones have a line each, the others a bar
    assert len(re.findall(r"^numbers/\d@\d+ +completed", done.stdout, re.MULTILINE)) == 100
    assert "700 of 700 records (100%)" in done.stdout


def test_samples_are_fed_where_standard_input_is_a_silent_pipe(tmp_path: Path, started: list[Dev]) -> None:
    write(tmp_path, "shop.py", _SHOP + '\ndef sample_records(count):\n    yield ("k", 8)\n')
    dev = Dev(tmp_path, "shop.py")
    started.append(dev)
    dev.until(r"^1 of 1 records")
    assert dev.child.wait(timeout=30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_the_pipe_is_open(number: signal.Signals, tmp_path: Path, started: list[Dev]) -> None:
    write(tmp_path, "shop.py", _SHOP)
    dev = Dev(tmp_path, "shop.py")
    started.append(dev)
    dev.give("1")
    dev.until("completed")
    os.killpg(dev.child.pid, number)
    assert dev.child.wait(timeout=30) == 130
    dev.until("interrupted")
    assert "Traceback" not in dev.text


def test_new_code_takes_over_and_a_finished_step_is_not_run_again(tmp_path: Path, started: list[Dev]) -> None:
    waits = "\n    await asyncio.Event().wait()"
    write(tmp_path, "shop.py", _SHOP.replace("VERSION", "old").replace("(charge, number)", f"(charge, number){waits}"))
    dev = Dev(tmp_path, "shop.py", "--partitions", "1")
    started.append(dev)
    dev.give("1")
    dev.until("charged 1 by old")
    write(tmp_path, "shop.py", _SHOP.replace("VERSION", "new"))
    dev.until(r"shop.py has changed: the new code is running")
    # its step's value is from the journal that the old code wrote
    dev.until("ended 1-old by new")
    dev.give("2")
    dev.until("ended 2-new by new")
    assert dev.end() == 0, dev.text
    assert dev.text.count("charged 1 ") == 1
    assert "2 of 2 records" in dev.text


def test_broken_code_leaves_the_former_running_and_says_why(tmp_path: Path, started: list[Dev]) -> None:
    write(tmp_path, "prices.py", "PRICE = 1\n")
    good = _SHOP.replace("import asyncio", "import asyncio, prices").replace("{receipt}", "{receipt} at {prices.PRICE}")
    write(tmp_path, "shop.py", good)
    dev = Dev(tmp_path, "shop.py", "--partitions", "1")
    started.append(dev)
    dev.give("1")
    dev.until("ended 1-VERSION at 1")
    write(tmp_path, "shop.py", good + "\ndef broken(:\n")
    dev.until("shop.py has changed, but the former code goes on")
    dev.until("SyntaxError")
    dev.give("2")
    dev.until("ended 2-VERSION at 1")

    # what is at fault may be a module next to it, one that wasn't there before as well
    write(tmp_path, "taxes.py", "TAX = 1 / 0\n")
    write(tmp_path, "prices.py", "from taxes import TAX\nPRICE = 10 + TAX\n")
    write(tmp_path, "shop.py", good)
    dev.until("the former code goes on")
    dev.until("ZeroDivisionError")
    dev.give("3")
    dev.until("ended 3-VERSION at 1")
    write(tmp_path, "taxes.py", "TAX = 2\n")
    dev.until("the new code is running")
    dev.give("4")
    dev.until("ended 4-VERSION at 12")
    assert dev.end() == 0, dev.text
    assert "4 of 4 records" in dev.text


def test_a_change_of_the_same_length_within_a_second_counts(tmp_path: Path, started: list[Dev]) -> None:
    write(tmp_path, "prices.py", "PRICE = 0\n")
    good = _SHOP.replace("import asyncio", "import asyncio, prices").replace("{receipt}", "{receipt} at {prices.PRICE}")
    write(tmp_path, "shop.py", good)
    dev = Dev(tmp_path, "shop.py", "--partitions", "1")
    started.append(dev)
    for number in range(4):
        dev.give(str(number))
        dev.until(f"ended {number}-VERSION at {number}")
        write(tmp_path, "prices.py", f"PRICE = {number + 1}\n")
        dev.until("the new code is running")
    assert dev.end() == 0, dev.text


def test_bindings_that_read_something_else_need_a_new_session(tmp_path: Path, started: list[Dev]) -> None:
    write(tmp_path, "shop.py", _SHOP)
    dev = Dev(tmp_path, "shop.py", "--partitions", "1")
    started.append(dev)
    dev.give("1")
    dev.until("ended 1-VERSION")
    write(tmp_path, "shop.py", _SHOP.replace('group="g"', 'group="h"'))
    dev.until("the former code goes on: the bindings read numbers in group h now, instead of numbers in group g: start")
    dev.give("2")
    dev.until("numbers/0@1 +completed")
    assert dev.end() == 0, dev.text
    assert "2 of 2 records" in dev.text


def test_with_watch_the_samples_are_fed_again_until_ctrl_c(tmp_path: Path, started: list[Dev]) -> None:
    samples = '\ndef sample_records(count):\n    yield ("k", 1)\n'
    write(tmp_path, "shop.py", _SHOP.replace("VERSION", "old") + samples)
    dev = Dev(tmp_path, "shop.py", "--watch", stdin=subprocess.DEVNULL)
    started.append(dev)
    dev.until("1 of 1 records")
    dev.until("waiting for a change of shop.py; Ctrl-C ends")
    write(tmp_path, "shop.py", _SHOP.replace("VERSION", "new") + samples)
    dev.until("charged 1 by new")
    dev.until("2 of 2 records")
    dev.until("waiting for a change")
    # samples that fail are told, and may be mended too
    write(tmp_path, "shop.py", _SHOP.replace("VERSION", "new") + samples + "    raise RuntimeError('no more')\n")
    dev.until("RuntimeError: no more")
    dev.until("3 of 3 records")
    os.killpg(dev.child.pid, signal.SIGINT)
    assert dev.child.wait(timeout=30) == 0
    assert "Traceback" not in dev.text.replace('Traceback (most recent call last):\n  File "' + str(tmp_path), "")


def test_a_held_record_goes_on_with_mended_code(tmp_path: Path, started: list[Dev]) -> None:
    picky = _SHOP.replace('group="g"', 'group="g", on_failure="stop"').replace(
        '    print(f"ended', '    if number == 3: raise ValueError("not three")\n    print(f"ended'
    )
    write(tmp_path, "shop.py", picky)
    dev = Dev(tmp_path, "shop.py", "--partitions", "1")
    started.append(dev)
    dev.give("3")
    dev.until("STOPPED .*not three")
    write(tmp_path, "shop.py", picky.replace("number == 3", "number == 4"))
    dev.until("ended 3-VERSION")
    assert dev.end() == 0, dev.text
    assert dev.text.count("charged 3") == 1
