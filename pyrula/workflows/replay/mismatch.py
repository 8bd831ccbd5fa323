"""What a NonDeterminismError says: what was recorded, what was attempted, where, the usual cause and the way out."""

from pyrula.workflows.errors import NonDeterminismError
from pyrula.workflows.replay.journal import Entry

__all__ = ["describe", "mismatch"]

_WAY_OUT = (
    'Guard the change with `if ctx.patched("change-id"):` so that runs which started before it take the old way, or '
    "give the changed workflow a new version; the run is paused until code that fits its journal is deployed."
)


def describe(kind: str, name: str, op: str) -> str:
    """An operation for a person: step `charge` (operation 3)."""
    path, _, number = op.rpartition(":")
    where = f"operation {number} of task {path}" if path else f"operation {number}"
    return f"{kind} `{name}` ({where})" if name else f"{kind} ({where})"


def mismatch(recorded: Entry, index: int, attempted: str, difference: str, cause: str) -> NonDeterminismError:
    """The error for a body that asked for something else than entry number `index` (of those delivered, from 0)."""
    return NonDeterminismError(
        f"the body doesn't follow its journal at entry {index}.\n"
        f"  recorded:  {describe_entry(recorded)}\n"
        f"  attempted: {attempted}\n"
        f"  different: {difference}\n"
        f"Usual cause: {cause}\n{_WAY_OUT}"
    )


def describe_entry(entry: Entry) -> str:
    """A delivery for a person."""
    if entry.kind in ("cancel", "abort"):
        return f"{entry.kind}, after {entry.clock} operations"
    return f"{describe(entry.opkind, entry.name, entry.op)}, the {entry.kind} delivered after {entry.clock} operations"
