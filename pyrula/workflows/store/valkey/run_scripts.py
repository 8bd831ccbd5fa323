"""The scripts of submitted runs: one a file in ``lua/runs``, with the library they share behind their first line."""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from pyrula.workflows.store.valkey.run_keys import STRUCTURES
from pyrula.workflows.store.valkey.scripts import Script

# scripts that carry a change of a holder
_CHANGING = {"append", "park", "pause", "release", "finish", "continue"}
_ALONE = {"schedule"}
_LIBRARIES = ("listing", "library", "queue", "inbox")


@cache
def run_script(name: str) -> Script:
    parts = [_read(name)]
    if name not in _ALONE:
        first, rest = parts[0].split(b"\n", 1)
        changing = [_read("change")] if name in _CHANGING else []
        parts = [first, b"local SHARED = %d" % len(STRUCTURES), *map(_read, _LIBRARIES), *changing, rest]
    text = b"\n".join(parts)
    # the server names a script by this digest; nothing is kept secret by it
    return Script(f"runs/{name}", text, sha1(text, usedforsecurity=False).hexdigest().encode())


def _read(name: str) -> bytes:
    return files(__package__).joinpath("lua", "runs", f"{name}.lua").read_bytes()
