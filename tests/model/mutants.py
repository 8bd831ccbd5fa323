"""Rules left out, one at a time: the search has to notice each.

A rule of the owner's, or of how its calls are answered, is left out by name (`Setup.without`). One of the store's is
left out of its code: a line of a method is replaced while the search runs. If that line isn't there any more the mutant
says so; then the rule has moved, and the mutant has to follow it.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.memory_board import Board
from pyrula.workflows.store.memory_holders import MemoryRunHolder
from pyrula.workflows.store.memory_lanes import MemoryLanes
from pyrula.workflows.store.memory_records import MemoryRecords
from tests.model.world import Faults, Setup


@dataclass(frozen=True)
class Patch:
    """One line of a method, and what stands in its place."""

    cls: type
    method: str
    line: str
    instead: str


@dataclass(frozen=True)
class Mutant:
    """`breaks` is the property whose breach is told."""

    name: str
    setup: Setup
    breaks: str
    patch: Patch | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


@contextmanager
def left_out(patch: Patch | None) -> Iterator[None]:
    """The method without its line, as long as this lasts."""
    if patch is None:
        yield
        return
    original: Any = vars(patch.cls)[patch.method]
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(patch.line) != 1:
        raise LookupError(
            f"{patch.cls.__name__}.{patch.method} has {source.count(patch.line)} times, not once:\n{patch.line}\n"
            "The rule has moved: let the mutant follow it."
        )
    made: dict[str, Any] = {}
    exec(source.replace(patch.line, patch.instead), original.__globals__, made)
    setattr(patch.cls, patch.method, made[patch.method])
    try:
        yield
    finally:
        setattr(patch.cls, patch.method, original)


_CRASH, _MOVED = Faults(crash=1), Faults(reassign=1)
_FIRST = Setup("aa", ("p", "d"), faults=_CRASH)
_SECOND = Setup("aa", ("d", "p"), faults=_CRASH)
_FIRST_MOVED = Setup("aa", ("p", "d"), faults=_MOVED)

OWNER = (
    Mutant("floors", _SECOND.but("floors"), "the floor"),
    Mutant("claim before reading the lanes", _FIRST_MOVED.but("claim before reading"), "the floor"),
    Mutant("confirm", _FIRST_MOVED.but("confirm"), "the floor"),
    Mutant("one word of the store brings home", Setup("aaa", ("p", "p", "d")).but("home by the store's word"), "order"),
    Mutant("complete when it is durable", _FIRST.but("complete when durable"), "nothing lost"),
    Mutant("the lane goes along", Setup("aa", ("p", "d")).but("lane goes along"), "order"),
    Mutant("a lane that is away waits", Setup("aa", ("p", "d")).but("away"), "order"),
    Mutant("prune after the commit", _FIRST.but("prune after the commit"), "the floor"),
    Mutant("marks of records without a lane", Setup("-", ("p",), faults=_CRASH).but("marks"), "one live body"),
    Mutant("commit under the group's fence", _FIRST_MOVED.but("the group's fence"), "nothing lost"),
    Mutant(
        "disk before a hand-over is answered",
        Setup("a", ("p",), faults=Faults(restart=1)).but("fsync before hand over"),
        "nothing lost",
    ),
    Mutant(
        "disk before home is answered",
        Setup("aa", ("p", "d"), faults=Faults(restart=1)).but("fsync before come home", "fsync before finish"),
        "order",
    ),
    Mutant(
        "disk before a claim of the partition is answered",
        Setup("a", ("dp",), faults=Faults(restart=1, reassign=1)).but("fsync before claim", "fsync before register"),
        "nothing lost",
    ),
)

STORE = (
    Mutant(
        "hand-overs are fenced",
        _FIRST_MOVED,
        "the floor",
        Patch(MemoryLanes, "hand_over", "self.check_token(registration.source, token)", "pass"),
    ),
    Mutant(
        "a claim raises the fence",
        _FIRST_MOVED,
        "the floor",
        Patch(MemoryStore, "_take_over", "token = Token(stored.incarnation, generation)", "token = stored"),
    ),
    Mutant(
        "what was handed over is taken once",
        Setup("-", ("p",), faults=Faults(lost=1)),
        "one live body",
        Patch(MemoryLanes, "hand_over", "or address.board.get(position) == HANDED_OVER", ""),
    ),
    Mutant(
        "a lane is home when its head has ended",
        Setup("aa", ("p", "d")),
        "order",
        Patch(MemoryLanes, "_stands", "if not lane.head:", "if True:"),
    ),
    Mutant(
        "every end of a head brings its lane home",
        Setup("aa", ("p", "d"), faults=Faults(cancel=1)),
        "it comes home",
        Patch(Board, "end", "if chain.on_end is not None:", 'if chain.on_end is not None and status == "completed":'),
    ),
    Mutant(
        "a lane that is away is never forgotten",
        _FIRST,
        "order",
        Patch(MemoryRecords, "pass_records", "not lane.head and lane.floor < below", "lane.floor < below"),
    ),
    Mutant(
        "a floor is kept until it is committed",
        Setup("aaa", ("p", "d", "p"), faults=_CRASH),
        "the floor",
        Patch(MemoryRecords, "pass_records", "not lane.head and lane.floor < below", "not lane.head"),
    ),
    Mutant(
        "a dead executor's runs are put back",
        Setup("a", ("p",), faults=Faults(executor_crash=1)),
        "it comes home",
        Patch(MemoryRunHolder, "reap", "board.enqueue(chain)", "pass"),
    ),
    Mutant(
        "a new owner reads what was handed over",
        _FIRST,
        "order",
        Patch(MemoryLanes, "lanes", "bool(lane.head)", "False"),
    ),
)
