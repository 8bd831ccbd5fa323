"""A line of one's own for an operation that a body forgot to await: it never happened, and Python says so in passing.

Python warns when the coroutine is dropped, and names neither the operation nor, if that is later, the line.
"""

import linecache
import logging
import re
import sys
import warnings
from typing import TextIO

__all__ = ["told"]

log = logging.getLogger("pyrula.cli")

_OPERATION = re.compile(r"coroutine '(?:Context|Talking)\.(\w+)' was never awaited")
_CREATED = re.compile(r'File "(.+)", line (\d+), in (\w+)\n')


def told(*, exactly: bool = False) -> None:
    """From now on. `exactly`: where it was asked for, also if it is dropped elsewhere; this makes coroutines dearer."""
    former = warnings.showwarning
    if exactly:
        sys.set_coroutine_origin_tracking_depth(1)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        found = _OPERATION.search(str(message)) if issubclass(category, RuntimeWarning) else None
        if found is None:
            former(message, category, filename, lineno, file, line)
            return
        created = _CREATED.search(str(message))
        if created is not None:
            filename, lineno = created[1], int(created[2])
        text = linecache.getline(filename, lineno).strip()
        asked = f": `{text}`" if f".{found[1]}(" in text else ""
        log.warning(
            "%s:%d: ctx.%s was never awaited, so that it did not happen; write `await ctx.%s(...)`%s",
            filename, lineno, found[1], found[1], asked,
        )  # fmt: skip

    warnings.showwarning = show
