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
from pyrula.workflows.store.memory_record_runs import RecordRuns
from pyrula.workflows.store.memory_records import MemoryRecords
from pyrula.workflows.store.memory_senders import MemoryRunSender
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
    exec(source.replace(patch.line, patch.instead), inspect.unwrap(original).__globals__, made)
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

QUEUE = (
    Mutant(
        "one call at a time about a lane",
        Setup("aaa", ("p", "d", "d"), 1).but("one call at a time"),
        "nothing lost",
    ),
    Mutant(
        "disk before a place in the queue is answered",
        Setup("aa", ("p", "d"), 1, faults=Faults(restart=1)).but("fsync before line up"),
        "nothing lost",
    ),
    Mutant(
        "the floor is looked at before the head",
        Setup("aa", ("p", "d"), 1, faults=Faults(lost=1)),
        "the floor",
        Patch(MemoryLanes, "_line_up", "or run_id.position <= lane.floor", ""),
    ),
    Mutant(
        "nothing is queued where there is no head",
        Setup("aa", ("p", "d"), 1),
        "it comes home",
        Patch(MemoryLanes, "_line_up", "if not lane.head:", "if False:"),
    ),
    Mutant(
        "a queue is bounded",
        Setup("aaa", ("p", "d", "d"), 1),
        "bound",
        Patch(MemoryLanes, "_is_full", "len(lane.queue) >= bounds.records", "len(lane.queue) > bounds.records"),
    ),
    Mutant(
        "what is queued raises the floor",
        Setup("aa", ("p", "d"), 1, faults=_CRASH),
        "the floor",
        Patch(MemoryLanes, "_line_up", "lane.floor = run_id.position", "pass"),
    ),
    Mutant(
        "the end of a head makes the next one ready",
        Setup("aa", ("p", "d"), 1),
        "it comes home",
        Patch(RecordRuns, "leave_lane", "self.board.enqueue(following)", "pass"),
    ),
    Mutant(
        "the next of the queue is the head",
        Setup("aaa", ("p", "d", "d"), 1),
        "order",
        Patch(RecordRuns, "leave_lane", 'next(iter(lane.queue), "")', '""'),
    ),
    Mutant(
        "the first of the queue is the next",
        Setup("aaa", ("p", "d", "d"), 2),
        "order",
        Patch(RecordRuns, "leave_lane", 'next(iter(lane.queue), "")', 'next(reversed(lane.queue), "")'),
    ),
    Mutant(
        "one that is cancelled leaves the queue",
        Setup("aa", ("p", "d"), 1, faults=Faults(cancel=1)),
        "it comes home",
        Patch(RecordRuns, "leave_lane", "del lane.queue[chain.id]", "pass"),
    ),
    Mutant(
        "every end of a head makes the next one ready",
        Setup("aa", ("f", "d"), 1, faults=Faults(cancel=1)),
        "it comes home",
        Patch(
            Board, "cancel", 'self.end(chain, RunStatus.CANCELLED, b"null", None)', "chain.status = RunStatus.CANCELLED"
        ),
    ),
    Mutant(
        "one that is queued isn't claimed",
        Setup("aa", ("p", "d"), 1),
        "order",
        Patch(MemoryLanes, "_put_behind", "board.put_behind(chain)", "board.enqueue(chain)"),
    ),
    Mutant(
        "one that failed and blocks its lane is retried",
        Setup("aa", ("f", "d"), 1),
        "it comes home",
        Patch(MemoryRunSender, "_again", "self._board.enqueue(chain)", "pass"),
    ),
    Mutant(
        "a lane with a queue is never forgotten",
        Setup("aa", ("p", "d"), 1, faults=_CRASH),
        "order",
        Patch(MemoryRecords, "pass_records", "not lane.head and lane.floor < below", "lane.floor < below"),
    ),
)
