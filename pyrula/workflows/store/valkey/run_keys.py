"""Names of the keys of submitted runs: pure functions, written down in docs/formats-runs.md.

Users' text (names, owners, idempotency keys, ids of schedules and questions) stands for itself nowhere: it is hashed.
"""

from functools import lru_cache
from typing import Final

from pyrula.workflows.store.ids import RunId, digest
from pyrula.workflows.store.valkey import wire

STRUCTURES: Final = (
    b"run",
    b"q",
    b"ring",
    b"seat",
    b"own",
    b"timer",
    b"held",
    b"beat",
    b"meta",
    b"out",
    b"ask",
    b"asked",
    b"reply",
    b"list",
    b"cohort",
    b"gidx",
    b"open",
    b"slot",
    b"rate",
)
"""What all runs of a shard share; every script gets them, in this order."""


@lru_cache(maxsize=1024)
def structures(namespace: str, shard: int) -> tuple[bytes, ...]:
    return tuple(tag(namespace, shard) + name for name in STRUCTURES)


@lru_cache(maxsize=1024)
def packed_structures(namespace: str, shard: int) -> tuple[bytes, bytes]:
    """The first of them, and all as a request has them."""
    names = structures(namespace, shard)
    return names[0], wire.packed(names)


def tag(namespace: str, shard: int) -> bytes:
    return b"{%b:%d}" % (namespace.encode(), shard)


class RunKeys:
    """The keys of one run: `hash`, `inbox`, `met`, `consumed` and `extras` are its chain's; `journal`, `events` and
    `kept` (what stays of a link that continued as new) its own."""

    __slots__ = ("consumed", "events", "extras", "hash", "inbox", "journal", "kept", "met")

    def __init__(self, namespace: str, run: RunId) -> None:
        prefix, chain, link = tag(namespace, run.shard), run.chain.encode(), str(run).encode()
        self.hash = b"%br:%b" % (prefix, chain)
        self.inbox = b"%bm:%b" % (prefix, chain)
        self.met = b"%bu:%b" % (prefix, chain)
        self.consumed = b"%bd:%b" % (prefix, chain)
        self.extras = b"%bx:%b" % (prefix, chain)
        self.journal = b"%bj:%b" % (prefix, link)
        self.events = b"%be:%b" % (prefix, link)
        self.kept = b"%bl:%b" % (prefix, link)

    def all(self) -> tuple[bytes, ...]:
        """What the scripts that change a run get, in their order."""
        return self.hash, self.journal, self.events, self.inbox, self.met, self.consumed, self.extras


@lru_cache(maxsize=4096)
def keys_of(namespace: str, run: RunId) -> RunKeys:
    """A run's keys; the same again for the calls that follow one another in its life."""
    return RunKeys(namespace, run)


def idempotency_key(namespace: str, shard: int, entry: str) -> bytes:
    """`entry` is `idempotency_entry`'s."""
    return b"%bi:%b" % (tag(namespace, shard), entry.encode())


def idempotency_entry(name: str, key: str) -> str:
    return digest("key", name, key, size=16).hex()


def answer_key(namespace: str, shard: int, question: str) -> bytes:
    return b"%ba:%b" % (tag(namespace, shard), digest("question", question, size=16).hex().encode())


def schedule_keys(namespace: str) -> tuple[bytes, bytes]:
    """Schedules are few: they lie on shard 0."""
    prefix = tag(namespace, 0)
    return prefix + b"schedules", prefix + b"schedules_due"


@lru_cache(maxsize=4096)
def class_of(name: str, version: str | None) -> bytes:
    return digest("class", name) if version is None else digest("class", name, version)


@lru_cache(maxsize=4096)
def owner_of(owner: str) -> bytes:
    return digest("owner", owner)


def gate_of(kind: str, workflow: str, key: str) -> bytes:
    """`kind` is "l" or "r"."""
    return kind.encode() + digest("gate", workflow, key)


@lru_cache(maxsize=4096)
def worker_of(worker: str) -> bytes:
    return digest("worker", worker)
