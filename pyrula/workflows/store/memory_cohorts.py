"""Queued runs and cohorts in memory: plain data of memory_gates.py."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from pyrula.workflows.stamps import LimitStamp, RateStamp, Stamp
from pyrula.workflows.store.memory_ready import Class, Gate, SortKey

CohortId: TypeAlias = tuple[Class, str, LimitStamp | None, RateStamp | None]


class Queued(NamedTuple):
    """A run as the queue knows it. `paid`: it has had its token."""

    run: str
    cls: Class
    owner: str
    key: SortKey
    stamp: Stamp | None
    paid: bool

    @property
    def cohort(self) -> CohortId | None:
        limit = None if self.stamp is None else self.stamp.limit
        rate = None if self.stamp is None or self.paid else self.stamp.rate
        return None if limit is None and rate is None else (self.cls, self.owner, limit, rate)


class Facts(NamedTuple):
    """What stands before a run: see Standing. `due` is in microseconds."""

    used: int
    holders: tuple[str, ...]
    due: float | None
    gate: Literal["Limit", "Rate"] | None
    before: int
    owners_before: int


class Taken(NamedTuple):
    """A run that starts, the class by which it was found, and whether it paid its token just now."""

    run: str
    cls: Class
    paid: bool


@dataclass(slots=True)
class Cohort:
    """Queued runs with class, owner, gates and stamps in common. `gate` is where it waits, None if it is ready."""

    id: CohortId
    key: SortKey
    since: int
    gate: Gate | None = None
    bounces: int = 0
    reserved: bool = False
    runs: list[tuple[SortKey, str]] = field(default_factory=list)

    @property
    def cls(self) -> Class:
        return self.id[0]

    @property
    def owner(self) -> str:
        return self.id[1]

    @property
    def limit(self) -> Gate | None:
        return None if self.id[2] is None else Gate("l", self.cls[0], self.id[2].key)

    @property
    def rate(self) -> Gate | None:
        return None if self.id[3] is None else Gate("r", self.cls[0], self.id[3].key)

    def gates(self) -> Iterator[Gate]:
        for gate in (self.limit, self.rate):
            if gate is not None:
                yield gate
