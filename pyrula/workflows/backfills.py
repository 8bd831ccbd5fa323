"""What a backfill is asked to do, and how far it has come: plain data and rules, kept as JSON by the store.

A backfill runs a range of a topic's records through a workflow. Its *request* says which records and how; its *pace*
(how many at once, how many a second) may change while it runs, the request may not. The range of each partition is
fixed when the backfill begins, so that it ends; its *progress* says which records of that range are done. Nothing here
reads a clock or knows a broker: offsets are numbers, times are seconds since 1970.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.errors import ConfigurationError

__all__ = [
    "Bound",
    "Boundary",
    "Pace",
    "Progress",
    "Request",
    "checked_backfill_id",
    "checked_where",
    "name_of",
]

Boundary: TypeAlias = int | str | datetime | timedelta
"""One end of a range: an offset, a time (an aware datetime, or ISO 8601 text), how long ago (a timedelta, or text such
as "24h" or "1d12h"), "earliest" or "latest"."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_WHERE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_<][\w.<>]*")
_AGO = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_MAX_OFFSET: Final = 2**63 - 1
_LONGEST_AGO: Final = 100 * 366 * 86_400.0

BoundKind: TypeAlias = Literal["offset", "time", "ago", "earliest", "latest"]


class Bound(NamedTuple):
    """One end of a range, checked. `value` is an offset, seconds since 1970, or seconds ago; else 0.

    >>> str(Bound.parse("1d12h", "start")), str(Bound.parse("2026-11-28T00:00Z", "start"))
    ('1d12h ago', '2026-11-28T00:00:00+00:00')
    """

    kind: BoundKind
    value: float = 0

    @classmethod
    def parse(cls, given: Boundary, what: str) -> "Bound":
        """ConfigurationError, naming `what`, for anything that isn't one end of a range."""
        if isinstance(given, datetime):
            return cls._time(given, what, repr(given))
        if isinstance(given, timedelta):
            return cls._ago(given.total_seconds(), what, repr(given))
        if isinstance(given, int) and not isinstance(given, bool):
            if 0 <= given <= _MAX_OFFSET:
                return cls("offset", given)
            raise ConfigurationError(f"{what}={given} is no offset: offsets start at 0")
        if not isinstance(given, str):
            raise ConfigurationError(f"{what}={given!r} is {_KINDS}")
        text = given.strip()
        if text in ("earliest", "latest"):
            return cls(text)  # type: ignore[arg-type]
        if text.isascii() and text.isdecimal():
            return cls.parse(int(text), what)
        short = text.removesuffix("ago").strip()
        if _AGO.fullmatch(short):
            parts = re.findall(r"([\d.]+)([smhdw])", short)
            return cls._ago(sum(float(number) * _SECONDS[unit] for number, unit in parts), what, repr(given))
        try:
            return cls._time(datetime.fromisoformat(text), what, repr(given))
        except ValueError:
            raise ConfigurationError(f"{what}={given!r} is {_KINDS}") from None

    @classmethod
    def _time(cls, time: datetime, what: str, shown: str) -> "Bound":
        if time.tzinfo is None:
            raise ConfigurationError(
                f"{what}={shown} has no time zone, so it means another moment on every machine; say "
                f"{time.isoformat()}+00:00 (UTC) or with your own offset; of a datetime, .replace(tzinfo=UTC)"
            )
        return cls("time", time.timestamp())

    @classmethod
    def _ago(cls, seconds: float, what: str, shown: str) -> "Bound":
        if not 0 <= seconds <= _LONGEST_AGO:
            raise ConfigurationError(f"{what}={shown} is how long ago, so it must be from 0 to 100 years")
        return cls("ago", seconds)

    def __str__(self) -> str:
        if self.kind == "offset":
            return f"offset {int(self.value)}"
        if self.kind == "time":
            return _iso(self.value)
        return f"{_long(self.value)} ago" if self.kind == "ago" else self.kind


_KINDS = (
    'no end of a range: give an offset, a time such as "2026-11-28T00:00:00Z", how long ago such as "24h" or a '
    'timedelta, "earliest" or "latest"'
)


def _long(seconds: float) -> str:
    """A duration in the largest units that give it whole."""
    parts = ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        number, seconds = divmod(seconds, size)
        parts += f"{number:g}{unit}" if number else ""
    return parts if parts and not seconds else f"{parts}{seconds:g}s"


_EARLIEST: Final = Bound("earliest")
_LATEST: Final = Bound("latest")


def _iso(seconds: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which records of a topic go through which workflow. Two with the same fields are the same backfill.

    `group` names the binding of the workflow whose options count (None: the workflow's only binding, or the options'
    defaults); `where` the predicate, as ``module:name``; `output` and `dead_letter_topic` take the place of the
    binding's. `failed_of` is the backfill whose dead letters, and nothing else of the topic, are run. Raises
    ConfigurationError for what can't be meant.
    """

    workflow: str
    topic: str
    group: str | None = None
    cluster: str = "default"
    partitions: tuple[int, ...] | None = None
    start: Bound = _EARLIEST
    end: Bound = _LATEST
    where: str | None = None
    output: str | None = None
    dead_letter_topic: str | None = None
    failed_of: str | None = None

    def __post_init__(self) -> None:
        start, end = self.start, self.end
        if start.kind == end.kind and start.kind in ("offset", "time") and end.value < start.value:
            raise ConfigurationError(f"the end ({end}) is before the start ({start})")
        if start.kind == end.kind == "ago" and end.value > start.value:
            raise ConfigurationError(f"the end ({end}) is before the start ({start})")
        if start.kind == "latest" and end.kind == "earliest":
            raise ConfigurationError("the end (earliest) is before the start (latest)")
        if self.failed_of is not None and self.where is not None:
            raise ConfigurationError("a redrive runs all that failed, so it takes no where=")

    @classmethod
    def of(
        cls,
        workflow: str,
        topic: str,
        *,
        group: str | None = None,
        cluster: str = "default",
        partitions: Iterable[int] | None = None,
        start: Boundary = "earliest",
        end: Boundary = "latest",
        where: str | None = None,
        output: str | None = None,
        dead_letter_topic: str | None = None,
        failed_of: str | None = None,
    ) -> "Request":
        """From what a person gives."""
        return cls(
            workflow=workflow,
            topic=topic,
            group=group,
            cluster=cluster,
            partitions=None if partitions is None else _partitions(partitions),
            start=Bound.parse(start, "start"),
            end=Bound.parse(end, "end"),
            where=None if where is None else checked_where(where),
            output=output,
            dead_letter_topic=dead_letter_topic,
            failed_of=None if failed_of is None else checked_backfill_id(failed_of),
        )

    def encode(self) -> bytes:
        """The same bytes for the same request."""
        return dumps([1, {**asdict(self), "start": [*self.start], "end": [*self.end]}])

    @classmethod
    def decode(cls, data: bytes) -> "Request":
        """What `encode` wrote. ConfigurationError for another format."""
        stored = _versioned(data, "a backfill's request")
        stored["partitions"] = None if stored["partitions"] is None else tuple(stored["partitions"])
        for name in ("start", "end"):
            stored[name] = Bound(*stored[name])
        return cls(**stored)

    def differences(self, other: "Request") -> list[str]:
        """What `other` asks differently, in words."""
        pairs = ((one.name, getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        return [f"{name} is {_shown(mine)}, not {_shown(theirs)}" for name, mine, theirs in pairs if mine != theirs]


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _versioned(data: bytes, what: str) -> dict[str, Any]:
    version, stored = loads(data)
    if version != 1:
        raise ConfigurationError(f"{what} has format {version}, this version of Pyrula reads 1: upgrade it")
    found: dict[str, Any] = stored
    return found


def _partitions(given: Iterable[int]) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"partitions={given!r} is no list of numbers, such as [{given}]")
    chosen = list(given)
    for number in chosen:
        if type(number) is not int or number < 0:
            raise ConfigurationError(f"partitions={chosen!r}: {number!r} is no number of a partition")
    if not chosen:
        raise ConfigurationError("partitions=[] names none; leave it out for all of the topic's")
    return tuple(sorted(set(chosen)))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a backfill may go: bodies at once in each worker, and records a second in all of them together."""

    max_concurrency: int = 16
    rate: float | None = None

    def __post_init__(self) -> None:
        if type(self.max_concurrency) is not int or self.max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency={self.max_concurrency!r} is no count of at least 1")
        rate = self.rate
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9):
            raise ConfigurationError(f"rate={rate!r} is no number of records a second above 0")

    def encode(self) -> bytes:
        return dumps([1, asdict(self)])

    @classmethod
    def decode(cls, data: bytes) -> "Pace":
        """What `encode` wrote. ConfigurationError for another format."""
        return cls(**_versioned(data, "a backfill's pace"))


Place: TypeAlias = tuple[int, int]
"""An offset, and the timestamp of the record there in milliseconds."""


@dataclass(slots=True)
class Progress:
    """How far one partition has come. Every record of the range below `position`, and those in `done`, need nothing
    more; the counts are of the records below `read_to`.

    `matched` are those that `where` let through, `undecided` those it raised for or could not read, which are not run.
    `failed` were dead-lettered; `skipped` ended without a result (on_failure="skip", or cancelled). `lost` are offsets
    that were no longer, or not yet, in the log when they were to be read. `note` says the first such thing in words.
    """

    start: int
    end: int
    position: int
    read_to: int
    done: tuple[tuple[int, int], ...] = ()
    read: int = 0
    matched: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    undecided: int = 0
    lost: int = 0
    first: Place | None = None
    last: Place | None = None
    witness: str = ""
    note: str = ""

    @classmethod
    def over(cls, start: int, end: int) -> "Progress":
        """Of a partition that hasn't begun."""
        return cls(start, end, start, start)

    def encode(self) -> bytes:
        return dumps([1, asdict(self)])

    @classmethod
    def decode(cls, data: bytes) -> "Progress":
        """What `encode` wrote. ConfigurationError for another format."""
        stored = _versioned(data, "a backfill's progress")
        stored["done"] = tuple((first, stop) for first, stop in stored["done"])
        for name in ("first", "last"):
            stored[name] = None if stored[name] is None else tuple(stored[name])
        return cls(**stored)


def checked_backfill_id(backfill_id: object) -> str:
    """It stands in headers, commands and addresses, so it is plain. ConfigurationError."""
    if not isinstance(backfill_id, str) or not _ID.fullmatch(backfill_id):
        raise ConfigurationError(
            f"{backfill_id!r:.100} can't be the id of a backfill: it must be 1 to 200 letters, digits, '.', '_', ':' "
            "or '-', and begin with a letter or digit"
        )
    return backfill_id


def checked_where(name: object) -> str:
    """A predicate's name, for workers to import it by. ConfigurationError."""
    if not isinstance(name, str) or not _WHERE.fullmatch(name):
        raise ConfigurationError(f"where={name!r:.100} is no name like shop.orders:is_german, by which it is imported")
    return name


def name_of(predicate: Callable[..., object]) -> str:
    """The name by which workers import it. ConfigurationError for what has none: a lambda, an inner function."""
    name = shown_name(predicate)
    if not is_importable(name):
        raise ConfigurationError(
            f"where={predicate!r:.100} can't be imported by a worker; make it a function at the top of a module"
        )
    return name


def shown_name(predicate: Callable[..., object]) -> str:
    """Its module and name, also of what can't be imported by that."""
    qualname = getattr(predicate, "__qualname__", None) or f"{type(predicate).__qualname__}.<instance>"
    return f"{getattr(predicate, '__module__', None) or type(predicate).__module__}:{qualname}"


def is_importable(where: str) -> bool:
    """Whether a predicate's name is one that another process can import."""
    return "<" not in where and not where.startswith("__main__:")
