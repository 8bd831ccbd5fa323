"""What README.md and docs/ tell a person to write and to type does work, in order, in one fresh folder a text.

A ```python block whose first line is a comment with a file's name is written to that file; any other one must compile.
A ```console block is what a person types after "$ " and what appears; a command must end as the text's next
"# exit status N" says, 0 if there is none. Only `pyrula` and `cat` are run: the rest is for machines with servers.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.-]+\.\w+)$")
# Needs a real Kafka.
_NOT_RUN = ("pyrula worker",)


def blocks(text: Path) -> list[tuple[str, str]]:
    return _BLOCK.findall(text.read_text(encoding="utf-8"))


def commands(block: str) -> Iterator[tuple[str, int]]:
    lines = block.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("$ pyrula ") and not line[2:].startswith(_NOT_RUN):
            told = [re.fullmatch(r"# exit status (\d+)", after) for after in lines[number + 1 :]]
            yield line[2:], next((int(found[1]) for found in told if found), 0)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_what_a_text_says_works(text: Path, tmp_path: Path) -> None:
    for language, block in blocks(text):
        first = _FILE.match(block.split("\n", 1)[0])
        if first:
            content = block if language == "python" else block.split("\n", 1)[1]
            (tmp_path / first[1]).write_text(content, encoding="utf-8")
        if language == "python":
            compile(block, text.name, "exec", flags=0x2000)  # a top-level await is allowed
        if language == "console":
            for command, status in commands(block):
                words = shlex.split(command)[1:]
                done = subprocess.run(
                    [sys.executable, "-m", "pyrula.cli", *words],
                    cwd=ROOT if any(word.startswith("examples/") for word in words) else tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=120,
                )
                assert done.returncode == status, f"{command}\n{done.stdout}"
