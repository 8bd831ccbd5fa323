"""Ids of runs: `<shard, 2 hex>-<26 character ULID>`, and `~<number>` behind it from a chain's second link on.

Rules: an id tells its shard and its chain, so every key of a run can be named without a look-up. A record's run has
the id of its record in the ULID's place (`k<digest>-<partition>-<offset>`, `.<incarnation>` behind it). What isn't an
id of either kind names no run: RunNotFoundError, never another error. Pure: time and randomness come in as arguments.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["RunId", "digest", "first_id", "home_shard", "new_run_id", "shard_for"]

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID: Final = re.compile(
    r"([0-9a-f]{2,4})-([0-7][0-9A-HJKMNP-TV-Z]{25}|k[0-9a-z]{10}-\d{1,10}-\d{1,19}(?:\.[1-9]\d{0,18})?)"
    r"(?:~([1-9]\d{0,8}))?",
    re.ASCII,
)


class RunId(NamedTuple):
    """An id, taken apart. `chain` is the id of the chain's first run, `link` counts from 1.

    >>> RunId.parse("0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC~2")
    RunId(shard=10, chain='0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC', link=2)
    """

    shard: int
    chain: str
    link: int

    @classmethod
    def parse(cls, text: str) -> "RunId":
        """Raises RunNotFoundError for what is no id."""
        if not isinstance(text, str):
            raise RunNotFoundError(text)
        return _parsed(text)

    def __str__(self) -> str:
        return self.chain if self.link == 1 else f"{self.chain}~{self.link}"


@lru_cache(maxsize=8192)
def _parsed(text: str) -> RunId:
    """A run's id is taken apart at each call of its life."""
    match = _ID.fullmatch(text)
    # "~1" is never written, so that a run has one id
    if match is None or match[3] == "1":
        raise RunNotFoundError(text)
    return RunId(int(match[1], 16), f"{match[1]}-{match[2]}", int(match[3] or "1"))


def new_run_id(shard: int, seconds: float, random: int) -> str:
    """An id that sorts by time within its shard. `random` gives its lower 80 bits."""
    number = (int(seconds * 1000) & ((1 << 48) - 1)) << 80 | (random & ((1 << 80) - 1))
    return f"{shard:02x}-" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def first_id(seconds: float) -> str:
    """The lowest ULID of this millisecond: what sorts by it sorts by time."""
    return new_run_id(0, max(seconds, 0.0), 0)[3:]


def digest(*parts: str, size: int = 12) -> bytes:
    """What stands for users' text in keys and members: fixed in width, the same for the same parts only."""
    hashed = blake2b(digest_size=size)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8) + data)
    return hashed.digest()


def home_shard(
    shards: int,
    name: str,
    *,
    gates: Sequence[str] | None,
    idempotency_key: str | None,
    batch_key: str | None,
    parent: int | None,
) -> int | None:
    """Where a run belongs: where its gates are, else with its idempotency key, else with its batch's key, else on its
    parent's shard. None: anywhere."""
    if gates is not None:
        return shard_for(shards, name, *gates)
    key = batch_key if idempotency_key is None else idempotency_key
    return parent if key is None else shard_for(shards, name, key)


def shard_for(shards: int, *parts: str) -> int:
    """Where the runs that share these texts lie."""
    return int.from_bytes(digest(*parts, size=8)) % shards
