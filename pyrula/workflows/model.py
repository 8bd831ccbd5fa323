"""Plain data and the limits that several modules share. No behaviour, no imports of ours."""

from typing import Any, Final, NamedTuple

__all__ = [
    "DEFAULT_VERSION",
    "MAX_ENTRIES",
    "MAX_JOURNAL",
    "MAX_VALUE",
    "RunInfo",
]

MAX_VALUE: Final = 1 << 20
"""Bytes of one value as JSON: a step's result, a message, a run's params."""

MAX_ENTRIES: Final = 50_000
"""Entries of one journal; warnings at a tenth and a quarter."""

MAX_JOURNAL: Final = 32 << 20
"""Bytes of one journal; warnings at a tenth and a quarter."""

DEFAULT_VERSION: Final = "1"
"""A constant, never a hash of code: a deploy doesn't strand the runs that sleep."""


class RunInfo(NamedTuple):
    """What a body may know about its own run: `ctx.run`. `attempt` counts from 1.

    `owner` and `metadata` are what it was submitted with; "" and None if it wasn't.
    """

    id: str
    name: str
    version: str
    attempt: int
    owner: str = ""
    metadata: Any = None
