"""Every script tells its keys, arguments and reply, and runs by the digest of its text."""

import re
from hashlib import sha1
from pathlib import Path

import pytest

import pyrula.workflows.store.valkey as package
from pyrula.workflows.store.valkey.scripts import script

NAMES = sorted(path.stem for path in (Path(package.__file__).parent / "lua").glob("*.lua"))


def test_all_are_there() -> None:
    assert NAMES == ["append", "claim", "lower", "prune", "refresh", "release"]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_headed_by_what_it_takes_and_gives(name: str) -> None:
    found = script(name)
    assert found.digest.decode() == sha1(found.text).hexdigest()
    head = found.text.decode().split("\n")
    comment = "\n".join(line for line in head[1:] if line.startswith("--"))
    assert head[0].startswith("#!lua")
    for word in ("KEYS", "ARGV", "reply", "Keeps:"):
        assert word in comment, f"{name}.lua doesn't tell {word}"
    # what a server at its memory limit must refuse is refused before the script starts
    assert ("flags=allow-oom" in head[0]) == (name not in ("append", "claim"))


def test_no_key_is_made_up_in_a_script() -> None:
    """On a cluster a script may touch what it was given in KEYS, and a key made inside it may lie on another node."""
    calls = 0
    for path in (Path(package.__file__).parent / "lua").rglob("*.lua"):
        text = re.sub(r"--.*", "", path.read_text())
        for command, key in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'\s*,\s*([^,]+?)\s*(?=[,)])", text):
            calls += 1
            if command != "PUBLISH":
                assert "'" not in key, f"{path.name}: {command} {key}"
                assert ".." not in key, f"{path.name}: {command} {key}"
    assert calls > 100
