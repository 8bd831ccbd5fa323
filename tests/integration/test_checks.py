"""What every test is checked for, shown by a test run of its own on tests that offend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(folder: Path, source: str, **env: str) -> str:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", str(folder)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYRULA_")}
    done = subprocess.run(
        command, cwd=ROOT, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def test_a_task_left_behind_fails_the_test_by_name(tmp_path: Path) -> None:
    source = """
import asyncio

async def test_leaves_one():
    asyncio.get_running_loop().create_task(asyncio.sleep(60), name="forgotten")

async def test_cancels_it():
    asyncio.get_running_loop().create_task(asyncio.sleep(60)).cancel()
"""
    output = run_pytest(tmp_path, source)
    assert "the test left tasks behind:\nforgotten: <coroutine object sleep" in output
    assert "2 passed, 1 error" in output


def test_a_warning_fails_the_test(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "import warnings\n\ndef test_warns():\n    warnings.warn('careful')\n")
    assert "UserWarning: careful" in output
    assert "1 failed" in output


@pytest.mark.parametrize(("required", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_a_missing_server_skips_or_fails(tmp_path: Path, required: str, outcome: str) -> None:
    env = {"PYRULA_VALKEY": "valkey://127.0.0.1:1", "PYRULA_REQUIRE_SERVICES": required}
    patch = "from tests.services import find\nfind._ANSWER_TIMEOUT = 0.0\n\n"
    output = run_pytest(tmp_path, f"{patch}def test_needs(valkey):\n    pass\n", **env)
    assert "no Valkey answers at 127.0.0.1:1" in output
    assert outcome in output
