"""What a store says no to, told apart, so that each caller's error is the right one."""

from collections.abc import Sequence

from pyrula.workflows.errors import StoreError

__all__ = [
    "InboxFullError",
    "RunFinishedError",
    "RunNotFoundError",
    "RunNotWaitingError",
    "TransitionRefused",
    "not_waiting",
]


class RunNotFoundError(StoreError):
    """No run has this id: it never had, its retention is over, or the text is no id at all. `why` says it if known."""

    def __init__(self, run_id: object, why: str = "") -> None:
        self.run_id = run_id
        self.why = why
        super().__init__(f"no run has the id {run_id!r:.100}{why and f': {why}'}")

    def __reduce__(self) -> tuple[type["RunNotFoundError"], tuple[object, str]]:
        return type(self), (self.run_id, self.why)


class _Refused(StoreError):
    """A refusal that names the run and the status it is in."""

    def __init__(self, run_id: str, status: str, text: str) -> None:
        self.run_id = run_id
        self.status = status
        self.text = text
        super().__init__(f"run {run_id} {text}")

    def __reduce__(self) -> tuple[type["_Refused"], tuple[str, str, str]]:
        return type(self), (self.run_id, self.status, self.text)


class RunFinishedError(_Refused):
    """The run has ended, so it reads no message any more. `status` says how it ended."""


class RunNotWaitingError(_Refused):
    """The run isn't waiting on that interrupt; the text names the open ones."""


class InboxFullError(_Refused):
    """The run has as many unread messages as it may have: it doesn't read, or its senders are too many."""


class TransitionRefused(_Refused):
    """The run's present status doesn't allow this, `retry` of a running one for instance."""


def not_waiting(run_id: str, status: str, wait_id: str, waiting: Sequence[str]) -> RunNotWaitingError:
    """The refusal of a resume that fits none of the open interrupts, or more than one."""
    if wait_id:
        text = f"isn't waiting on the interrupt {wait_id!r:.100}"
    elif waiting:
        text = "is waiting on several interrupts: say which by wait_id"
    else:
        text = "isn't waiting on an interrupt"
    names = ", ".join(repr(name) for name in sorted(waiting))
    return RunNotWaitingError(run_id, status, f"{text} (open: {names or 'none'}; status {status})")
