"""What a NonDeterminismError says: what was recorded, what was attempted, where, the usual cause and the way out."""

import sys
from typing import Final

from pyrula.workflows.errors import NonDeterminismError
from pyrula.workflows.replay.journal import Entry

__all__ = ["CHANGED", "PLAIN_AWAITS", "PYTHON", "describe", "mismatch"]

PYTHON: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"

CHANGED: Final = "the workflow's code was changed, or what it does depends on something that isn't journaled"
PLAIN_AWAITS: Final = (
    "a plain await (asyncio.sleep, I/O) decided whether operations were cancelled; do it in a step, or use ctx.timeout"
)

_WAY_OUT: Final = (
    'Guard the change with `if ctx.patched("change-id"):` so that runs which started before it take the old way, or '
    "give the changed workflow a new version; the run is paused until code that fits its journal is deployed."
)


def describe(kind: str, name: str, op: str) -> str:
    """An operation for a person: step `charge` (operation 3)."""
    path, _, number = op.rpartition(":")
    where = f"operation {number} of task {path}" if path else f"operation {number}"
    return f"{kind} `{name}` ({where})" if name else f"{kind} ({where})"


def mismatch(
    recorded: Entry, index: int, attempted: str, difference: str, cause: str, python: str | None = None
) -> NonDeterminismError:
    """The error for a body that doesn't follow delivery number `index` (from 0). `python` wrote the journal."""
    if python is not None and python != PYTHON:
        cause = f"{cause}; also, the journal was written by Python {python} and this is {PYTHON}"
    return NonDeterminismError(
        f"the body doesn't follow its journal at entry {index}.\n"
        f"  recorded:  {_describe_entry(recorded)}\n"
        f"  attempted: {attempted}\n"
        f"  different: {difference}\n"
        f"Usual cause: {cause}.\n{_WAY_OUT}"
    )


def _describe_entry(entry: Entry) -> str:
    if entry.kind in ("cancel", "abort"):
        return f"{entry.kind}, after {entry.clock} operations"
    if entry.kind == "update":
        return f"update `{entry.name}`, delivered after {entry.clock} operations"
    return f"{describe(entry.opkind, entry.name, entry.op)}, its {entry.kind} delivered after {entry.clock} operations"
