"""The scripts of submitted runs: one a file in ``lua/runs``, with the library they share behind their first line."""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from pyrula.workflows.store.valkey.lua_parts import needed
from pyrula.workflows.store.valkey.run_keys import STRUCTURES
from pyrula.workflows.store.valkey.scripts import Script

# scripts that carry a change of a holder
_CHANGING = {"append", "park", "pause", "release", "finish", "continue"}
_ALONE = {"schedule"}
_LIBRARIES = ("listing", "library", "queue", "inbox")


@cache
def run_script(name: str) -> Script:
    text = _read(name)
    if name not in _ALONE:
        text = behind_libraries(text, *(["change"] if name in _CHANGING else []))
    # the server names a script by this digest; nothing is kept secret by it
    return Script(f"runs/{name}", text, sha1(text, usedforsecurity=False).hexdigest().encode())


def behind_libraries(text: bytes, *more: str) -> bytes:
    """A script with what all of them share, and what it needs beside, behind its first line."""
    first, rest = text.split(b"\n", 1)
    shared = b"local SHARED = %d" % len(STRUCTURES)
    own = b"\n".join([*(needed(_read(name), rest, functions_only=True) for name in more), rest])
    return b"\n".join([first, shared, needed(b"\n".join(map(_read, _LIBRARIES)), own), own])


def _read(name: str) -> bytes:
    return files(__package__).joinpath("lua", "runs", f"{name}.lua").read_bytes()
