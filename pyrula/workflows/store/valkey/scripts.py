"""The Lua scripts, one a file in ``lua/``: loaded once, run by digest."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: bytes
    digest: bytes


@cache
def script(name: str) -> Script:
    text = files(__package__).joinpath("lua", f"{name}.lua").read_bytes()
    # the server names a script by this digest; nothing is kept secret by it
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
