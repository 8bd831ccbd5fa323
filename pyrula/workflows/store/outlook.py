"""What stands between a queued run and its start: plain data for who explains runs.

A store tells facts of one moment; the words are made by the client.
"""

from dataclasses import dataclass
from typing import Final, Literal

from pyrula.workflows.stamps import LimitStamp, RateStamp

__all__ = ["HOLDERS_TOLD", "Outlook"]

HOLDERS_TOLD: Final = 10


@dataclass(frozen=True, slots=True)
class Outlook:
    """A run in the store. `since`: when it got its status, None for one that has ended. `now`: the store's time.

    `limit`, `rate`: its stamps; `used` slots of the Limit's key, `holders` some of the runs that have them;
    `next_start`: when the Rate's next token is due, None if it has had its own. `gate`: where it waits, if it does.
    `before`: runs of its owner ahead of it there, up to about a hundred; `owners_before`: owners ahead of its own. The
    run of a record that is queued in its lane is `behind` the lane's head, with `before` runs ahead of it there.
    """

    since: float | None
    now: float
    limit: LimitStamp | None = None
    rate: RateStamp | None = None
    used: int = 0
    holders: tuple[str, ...] = ()
    next_start: float | None = None
    gate: Literal["Limit", "Rate"] | None = None
    before: int = 0
    owners_before: int = 0
    behind: str | None = None
