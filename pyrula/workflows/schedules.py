"""When a schedule fires: plain rules. The fire times come from the trigger alone, never from what ran last.

A schedule is a trigger with what it starts, kept as JSON by the store. Nothing here reads a clock: times come in, in
seconds since 1970.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import Fragment, dumps, loads
from pyrula.workflows.errors import ConfigurationError

__all__ = ["CatchUp", "Cron", "Every", "Fires", "Overlap", "Plan", "Trigger", "fires_of", "first_fire"]

CatchUp: TypeAlias = Literal["one", "all", "none"]
Overlap: TypeAlias = Literal["skip", "allow"]

DAY: Final = 86_400.0

# A schedule with "all" that was away for long: the oldest ones are left out.
MOST_FIRES: Final = 1_000

# A fire that is so little late is no missed one.
_IN_TIME: Final = 60.0


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields: minute, hour, day of month, month, day of week. `tz` is a zone such as "Europe/Paris".

    A time of day that the clocks leave out fires when they have been put forward, one that comes twice fires once;
    expressions with a wildcard minute or hour go on in even steps.

    >>> Cron("0 9 * * mon-fri", tz="Europe/Paris")
    Cron(expression='0 9 * * mon-fri', tz='Europe/Paris')
    """

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise ConfigurationError(
                f"Cron({self.expression!r}): an expression is a text of five fields, such as Cron('*/5 * * * *') for "
                "every five minutes; for so many seconds there is Every(seconds)"
            )
        try:
            ZoneInfo(self.tz)
        except (ValueError, OSError, LookupError, TypeError) as error:
            raise ConfigurationError(f"Cron(tz={self.tz!r}) is no time zone: {error}") from error
        try:
            next(CronSim(self.expression, datetime(2025, 1, 1, tzinfo=UTC)))
        except (CronSimError, AttributeError, TypeError) as error:
            raise ConfigurationError(f"Cron({self.expression!r}): {error or 'no cron expression'}") from error
        except StopIteration:
            raise ConfigurationError(f"Cron({self.expression!r}) never fires") from None

    def after(self, moment: float) -> Iterator[float]:
        """The fire times after that moment."""
        for fire in CronSim(self.expression, datetime.fromtimestamp(moment, ZoneInfo(self.tz))):
            yield fire.timestamp()


@dataclass(frozen=True, slots=True)
class Every:
    """Each so many seconds, or a timedelta, counted from 1970 on: the same fire times in every process.

    >>> next(Every(timedelta(hours=1)).after(3700.0))
    7200.0
    """

    interval: float | timedelta

    def __post_init__(self) -> None:
        seconds = to_seconds(self.interval, "Every(interval=)", zero=False)
        if seconds < 1:
            raise ConfigurationError(f"Every(interval=) must be at least a second, not {self.interval!r}")
        object.__setattr__(self, "interval", seconds)

    def after(self, moment: float) -> Iterator[float]:
        """The fire times after that moment."""
        interval = to_seconds(self.interval, "Every(interval=)")
        number = math.floor(moment / interval)
        while True:
            number += 1
            yield number * interval


Trigger: TypeAlias = Cron | Every


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a schedule starts and when. `params` and `metadata` are JSON.

    `catch_up` is for fires that were missed, as when no worker was there: the last "one" of them, "all", or "none";
    those longer ago than `window` seconds never count. `overlap` "skip" fires nothing while the run of the last fire
    hasn't ended.
    """

    workflow: str
    trigger: Trigger
    params: bytes = b"{}"
    owner: str = ""
    metadata: bytes = b"null"
    catch_up: CatchUp = "one"
    window: float = DAY
    overlap: Overlap = "skip"

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, (Cron, Every)):
            raise ConfigurationError(f"a schedule's trigger is a Cron or an Every, not {self.trigger!r}")
        if self.catch_up not in get_args(CatchUp):
            raise ConfigurationError(f"catch_up must be one of {get_args(CatchUp)}, not {self.catch_up!r}")
        if self.overlap not in get_args(Overlap):
            raise ConfigurationError(f"overlap must be one of {get_args(Overlap)}, not {self.overlap!r}")

    def encode(self) -> bytes:
        """As the store keeps it."""
        trigger = self.trigger
        told = (
            {"cron": trigger.expression, "tz": trigger.tz} if isinstance(trigger, Cron) else {"every": trigger.interval}
        )
        return dumps(
            {
                "workflow": self.workflow,
                "trigger": told,
                "params": Fragment(self.params),
                "owner": self.owner,
                "metadata": Fragment(self.metadata),
                "catch_up": self.catch_up,
                "window": self.window,
                "overlap": self.overlap,
            }
        )

    @staticmethod
    def decode(spec: bytes) -> "Plan":
        fields: dict[str, Any] = loads(spec)
        told = fields.pop("trigger")
        trigger: Trigger = Cron(told["cron"], told["tz"]) if "cron" in told else Every(told["every"])
        params, metadata = dumps(fields.pop("params")), dumps(fields.pop("metadata"))
        return Plan(trigger=trigger, params=params, metadata=metadata, **fields)


class Fires(NamedTuple):
    """What is to be started now, how many fires are left out, and the next fire time."""

    times: tuple[float, ...]
    skipped: int
    following: float | None


def fires_of(plan: Plan, due: float, now: float) -> Fires:
    """For a schedule that was due then."""
    begin = max(due, now - plan.window)
    times: list[float] = []
    following = None
    for moment in plan.trigger.after(begin - 1e-3):
        if moment > now:
            following = moment
            break
        times.append(moment)
    if plan.catch_up == "all":
        kept = times[-MOST_FIRES:]
    elif plan.catch_up == "one":
        kept = times[-1:]
    else:
        kept = [moment for moment in times[-1:] if now - moment <= _IN_TIME]
    return Fires(tuple(kept), len(times) - len(kept), following)


def first_fire(trigger: Trigger, now: float) -> float | None:
    """Of a schedule that is made now."""
    return next(islice(trigger.after(now), 1), None)
