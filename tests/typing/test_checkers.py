"""What type checkers see through Pyrula. The other files here hold the right code and the wrong; each wrong line has an
`ignore`, and one that is not needed is an error, so a checker that sees too little fails as one that refuses too much.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REQUIRE_VARIABLE

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in Path(__file__).parent.glob("*.py") if path.name != Path(__file__).name)

# In a file of its own: pyright takes no options for its rules on the command line.
_PYRIGHT = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "enableTypeIgnoreComments": True,
    "reportUnnecessaryTypeIgnoreComment": True,
    # a pytest's way to name a value that is not used
    "reportUnusedFunction": False,
    "reportUnusedVariable": False,
}


def checker(name: str) -> None:
    if find_spec(name) is None:
        missing = f"{name} is not installed: pip install 'pyrula[lint]'"
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            pytest.fail(f"{missing} ({REQUIRE_VARIABLE}=1, so this is no skip)", pytrace=False)
        pytest.skip(missing)


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy() -> None:
    checker("mypy")
    run("mypy", *map(str, FILES))


def test_pyright(tmp_path: Path) -> None:
    # Microsoft's own package fetches itself when it is first run; this one has all it needs in its wheels.
    checker("basedpyright")
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps({**_PYRIGHT, "include": list(map(str, FILES)), "extraPaths": [str(ROOT)]}))
    run("basedpyright", "--pythonpath", sys.executable, "--project", str(project))
