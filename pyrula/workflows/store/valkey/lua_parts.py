"""What a script needs of the libraries that all scripts share. Pure.

A server makes every function and table of a script anew at each call, so what a script doesn't use costs it time for
nothing. A library is a row of statements that begin with ``local`` at the start of a line and have no effect but the
names they make; what stands behind may use what stands before.
"""

import re

_WORD = re.compile(rb"[A-Za-z_]\w*")
_MADE = re.compile(rb"local (?:function (\w+)|([\w, ]+))")


def needed(library: bytes, script: bytes, *, functions_only: bool = False) -> bytes:
    """The library's statements that the script needs, directly or through others, without comments.

    With ``functions_only`` nothing but functions is left out: the others read arguments, whose order counts.

    >>> needed(b"local a = 1\\nlocal function f()\\n  return a\\nend\\nlocal b = 2", b"return f()")
    b'local a = 1\\nlocal function f()\\n  return a\\nend'
    """
    wanted = set(_WORD.findall(script))
    kept: list[bytes] = []
    for statement in reversed(_statements(library)):
        made = _MADE.match(statement)
        assert made is not None, statement
        if (functions_only and made[2]) or wanted & set(_WORD.findall(made[1] or made[2])):
            wanted |= set(_WORD.findall(statement))
            kept.append(statement)
    return b"\n".join(reversed(kept))


def _statements(library: bytes) -> list[bytes]:
    found: list[list[bytes]] = []
    for line in library.splitlines():
        if not line.strip() or line.lstrip().startswith(b"--"):
            continue
        if line.startswith(b"local "):
            found.append([])
        found[-1].append(line)
    return [b"\n".join(lines) for lines in found]
