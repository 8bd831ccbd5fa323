"""What flow control a run is submitted under: its policies with their keys resolved for its params.

Rules: a stamp is made once, at submission, by whichever path submits, from the definition that this process has
imported. From then on the run is held to its stamp, whatever becomes of the decorator. Where a gated run lies is
decided by what is declared, not by what keys resolve to: with one policy, or two on the same parameter, its shard is
that of (workflow, resolved key), so that all runs of a key meet there; with two of any other kind, the workflow's.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.policies import Limit, Rate, resolve_key

__all__ = ["LimitStamp", "RateStamp", "Stamp", "stamp_of"]

_COMPUTED = "key"


class LimitStamp(NamedTuple):
    """At most `max` runs of `key` at once. `label` is what it is called: the parameter's name, "key" for a function."""

    label: str
    key: str
    max: int


class RateStamp(NamedTuple):
    """`per_second` starts of `key`, up to `burst` at once."""

    label: str
    key: str
    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """A run's gates. `place` is what its shard is made of, beside the workflow's name.

    >>> stamp = Stamp(limit=LimitStamp("tenant_id", "acme", 2), place=("acme",))
    >>> Stamp.decode(stamp.encode()) == stamp
    True
    """

    limit: LimitStamp | None = None
    rate: RateStamp | None = None
    place: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """JSON, as it stands in the run's hash and in its parent's journal."""
        return dumps([self.limit and [*self.limit], self.rate and [*self.rate], [*self.place]])

    @staticmethod
    def decode(data: bytes) -> "Stamp":
        limit, rate, place = loads(data)
        return Stamp(limit and LimitStamp(*limit), rate and RateStamp(*rate), tuple(place))


def stamp_of(definition: WorkflowDefinition[..., Any], params: bytes) -> Stamp | None:
    """The stamp for these params (JSON); None for a workflow without Limit and Rate.

    Raises ValueError naming workflow and key for a key's function that fails."""
    concurrency, rate_limit = definition.concurrency, definition.rate_limit
    if concurrency is None and rate_limit is None:
        return None
    fields = loads(params)
    limit = None if concurrency is None else _limit(concurrency, fields, definition.name)
    rate = None if rate_limit is None else _rate(rate_limit, fields, definition.name)
    return Stamp(limit, rate, _place(concurrency, rate_limit, limit, rate))


def _limit(policy: Limit, fields: dict[str, Any], workflow: str) -> LimitStamp:
    return LimitStamp(_label(policy), _text(resolve_key(policy, fields, workflow)), policy.max)


def _rate(policy: Rate, fields: dict[str, Any], workflow: str) -> RateStamp:
    assert policy.burst is not None
    key = _text(resolve_key(policy, fields, workflow))
    return RateStamp(_label(policy), key, float(policy.per_second), policy.burst)


def _label(policy: Limit | Rate) -> str:
    return policy.key if isinstance(policy.key, str) else _COMPUTED


def _text(key: str) -> str:
    # a function may give what no UTF-8 text can hold
    return key.encode("utf-8", "backslashreplace").decode()


def _place(
    concurrency: Limit | None, rate_limit: Rate | None, limit: LimitStamp | None, rate: RateStamp | None
) -> tuple[str, ...]:
    if concurrency is not None and rate_limit is not None:
        shared = isinstance(concurrency.key, str) and concurrency.key == rate_limit.key
        return (limit.key,) if shared and limit is not None else ()
    only = limit or rate
    assert only is not None
    return (only.key,)
