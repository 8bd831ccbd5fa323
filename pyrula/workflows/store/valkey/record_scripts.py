"""The scripts about runs of records: one a file in ``lua/records``, with the library they share behind their first
line."""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from pyrula.workflows.store.valkey.run_scripts import behind_libraries
from pyrula.workflows.store.valkey.scripts import Script

_ALONE = {"pass"}
_OF_RUNS = {"hand_over", "line_up", "homecoming", "redrive"}


@cache
def record_script(name: str) -> Script:
    text = _read(name)
    if name in _OF_RUNS:
        text = behind_libraries(text)
    elif name not in _ALONE:
        first, rest = text.split(b"\n", 1)
        text = b"\n".join([first, _read("library"), rest])
    # the server names a script by this digest; nothing is kept secret by it
    return Script(f"records/{name}", text, sha1(text, usedforsecurity=False).hexdigest().encode())


def _read(name: str) -> bytes:
    return files(__package__).joinpath("lua", "records", f"{name}.lua").read_bytes()
