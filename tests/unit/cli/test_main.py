import subprocess
import sys

import pytest

from pyrula import __version__
from pyrula.cli import main


def status(*argv: str) -> int:
    try:
        return main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--version") == 0
    assert capsys.readouterr().out == f"pyrula {__version__}\n"


@pytest.mark.parametrize("module", ["pyrula", "pyrula.cli"])
def test_the_command_is_a_module_too(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"pyrula {__version__}\n")


@pytest.mark.parametrize("argv", [(), ("deploy",), ("dev",), ("worker",), ("dev", "x.py", "--count", "0")])
def test_a_wrong_command_line_is_a_usage_error(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*argv) == 2
    assert "usage: pyrula" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [("dev", "nosuchfile.py"), ("worker", "nosuchmodule:worker")])
def test_a_problem_is_told_without_a_traceback(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("pyrula: ")
    assert "Traceback" not in err
