"""What README.md and docs/ tell a person to write and to type does work, in order, in one fresh folder a text.

A block after a line that ends in "`file.name`:" is written to that file. A ```python block must be importable, and the
tests in one that is called test_….py must pass.
A ```console block is what a person types after "$ " and what appears; the command must succeed. Of the commands only
`pyrula dev` is run: the others need servers.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"(?:`([\w.-]+\.\w+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}"
    return done.stdout


def blocks(text: Path) -> list[tuple[str, str, str]]:
    """Of each: the file it is written to, if any, its language and its text."""
    return _BLOCK.findall(text.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_what_a_text_says_works(text: Path, tmp_path: Path) -> None:
    for number, (named, language, block) in enumerate(blocks(text)):
        if language == "python":
            name = named or f"block_{number}.py"
            (tmp_path / name).write_text(block, encoding="utf-8")
            run(tmp_path, "-W", "error", "-c", f"import {name.removesuffix('.py')}")
            if name.startswith("test_"):
                run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", name)
        elif named:
            (tmp_path / named).write_text(block, encoding="utf-8")
        elif language == "console":
            for line in block.splitlines():
                if line.startswith("$ pyrula dev "):
                    run(tmp_path, "-m", "pyrula.cli", *shlex.split(line)[2:])


def test_the_workflow_of_the_readme_charges_an_order(tmp_path: Path) -> None:
    (code,) = [block for _, language, block in blocks(ROOT / "README.md") if language == "python"]
    bound = code + '\nbindings = [Binding(charge_order, topic="orders", group="billing")]\n'
    (tmp_path / "readme.py").write_text(bound, encoding="utf-8")
    (tmp_path / "orders.jsonl").write_text('{"id": "o-1", "amount_cents": 5}\n')
    said = run(
        tmp_path, "-m", "pyrula.cli", "dev", "readme.py", "--records", "orders.jsonl", "--partitions=1", "--show=0@0"
    )
    assert re.search(r'step charge +value +"charge-of-o-1"', said)
    assert "completed at attempt 1" in said
