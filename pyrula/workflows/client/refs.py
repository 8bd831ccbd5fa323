"""How callers name a run and what they pass by the way, checked before anything is sent."""

from datetime import timedelta

from pyrula.workflows.clock import to_seconds
from pyrula.workflows.store.runs import MAX_PRIORITY, MIN_PRIORITY

__all__ = ["RunRef", "checked_priority", "checked_text", "seconds_or_none"]


class RunRef:
    """Something that stands for a run: its text is the run's id, and it equals and hashes as that text."""

    __slots__ = ("run_id",)

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def __str__(self) -> str:
        return self.run_id

    def __eq__(self, other: object) -> bool:
        return str(other) == self.run_id if isinstance(other, (str, RunRef)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.run_id)


def checked_text(value: str, what: str) -> str:
    """Names and ids: "" is none anywhere. ValueError naming `what`."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a text that isn't empty, not {value!r:.100}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is no text that UTF-8 can hold: {error}") from error
    return value


def checked_priority(priority: int) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        bounds = f"from {MIN_PRIORITY} to {MAX_PRIORITY}"
        raise ValueError(f"priority must be a whole number {bounds}, not {priority!r:.100}")
    return priority


def seconds_or_none(duration: float | timedelta | None, what: str) -> float | None:
    return None if duration is None else to_seconds(duration, what)
