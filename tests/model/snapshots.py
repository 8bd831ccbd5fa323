"""A store's whole state as a value: `MemoryStore` is copied, compared and gone on with from any state it was ever in.

The rules that are searched are the store's own: a call on a state runs the real code on a copy of the store, once, and
what came of it is remembered, so that the search meets each state of the store many times and pays for it once.
"""

import pickle
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

from pyrula.workflows.clock import ManualClock
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.memory_ready import Rings
from tests.model import calls
from tests.model.calls import Answer, Call

# What the rules never look at: texts for people, times, counters that are compared with themselves only.
_IGNORED = {"events", "clock", "counters", "beats", "_serial", "on_ready", "on_inbox", "on_change", "pass_elsewhere"}


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing but its next turn."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stopped:
            return stopped.value


def frozen(value: Any) -> Hashable:
    """All that an object is made of, as a value: equal ones behave the same."""
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Rings):
        return _rings(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields") and not value:
        return ()
    if isinstance(value, (tuple, list, deque)):
        return tuple([frozen(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return frozenset([frozen(item) for item in value])
    if isinstance(value, Mapping):
        return tuple([(frozen(key), frozen(item)) for key, item in value.items()])
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
    elif hasattr(value, "__dict__"):
        names = list(vars(value))
    else:
        raise TypeError(f"a store holds a {type(value).__name__}, which snapshots.frozen doesn't know")
    found = [(name, frozen(getattr(value, name))) for name in names if name not in _IGNORED]
    return (type(value).__name__, *found)


def _rings(rings: Rings[Any]) -> Hashable:
    """Turns are compared with one another only, so their order is all that counts."""
    turns = sorted(
        {turn for pair in rings._seats.values() for turn in pair} | {last for _, last in rings._served.values()}
    )
    rank = {turn: place for place, turn in enumerate(turns)}
    seats = {where: (rank[turn], rank[since]) for where, (turn, since) in rings._seats.items()}
    served = {owner: (count, rank[last]) for owner, (count, last) in rings._served.items()}
    return frozen((sorted(seats.items()), sorted(served.items()), sorted(rings._items.items(), key=repr)))


class Held(NamedTuple):
    """A run in the store that hasn't ended; `worker` and `epoch` are of who holds it."""

    status: str
    worker: str | None
    epoch: int


class View(NamedTuple):
    """What the properties and the environment see of a store's state."""

    runs: tuple[tuple[str, Held], ...]
    token: str
    """Of who has the partition, as the store knows it."""
    away: bool
    """Whether a lane is away, as the store knows it."""
    queued: int
    """The most that stand behind one head."""

    @property
    def held(self) -> dict[str, Held]:
        return dict(self.runs)

    @property
    def offsets(self) -> set[int]:
        return {calls.offset_of(run) for run, _ in self.runs}


class Snapshots:
    """All states of a store that were met. `make` gives the handle of its first process."""

    def __init__(self, make: Callable[[ManualClock], MemoryStore] = MemoryStore, processes: int = 3) -> None:
        first = make(ManualClock())
        self._numbers: dict[Hashable, int] = {}
        self._pickled: list[bytes] = []
        self.views: list[View] = []
        self._calls: dict[tuple[int, Call], tuple[Answer, int]] = {}
        self._known: dict[bytes, int] = {}
        self.paths: list[tuple[int, Call] | None] = []
        """How each state was first come by: from which, by which call."""
        self.first = self._number([first, *(first.twin() for _ in range(processes - 1))], None)

    def _number(self, stores: list[MemoryStore], by: tuple[int, Call] | None) -> int:
        data = pickle.dumps(stores)
        known = self._known.get(data)
        if known is not None:
            return known
        shared = stores[0]
        parts = (shared._sources, shared._board, shared._records.addresses, shared._records.runs, shared._records.gone)
        claimants = [stores.index(source.claimant) for source in shared._sources.values()]  # type: ignore[arg-type]
        for source in shared._sources.values():
            source.claimant = None
        value = (frozen(parts), tuple(claimants))
        number = self._numbers.setdefault(value, len(self._pickled))
        self._known[data] = number
        if number == len(self._pickled):
            self._pickled.append(data)
            self.views.append(_view(shared))
            self.paths.append(by)
        return number

    def __len__(self) -> int:
        return len(self._pickled)

    def call(self, state: int, call: Call) -> tuple[Answer, int]:
        """What a call answers in a state, and the state it leads to."""
        found = self._calls.get((state, call))
        if found is None:
            stores = pickle.loads(self._pickled[state])
            answer = run_now(calls.call(stores, call))
            found = self._calls[state, call] = answer, self._number(stores, (state, call))
        return found

    def edges(self) -> list[tuple[int, Call, Answer, int]]:
        """Every call that was ever made: from which state, what it answered, where it led."""
        return [(state, call, answer, after) for (state, call), (answer, after) in self._calls.items()]


def _view(store: MemoryStore) -> View:
    live = {}
    for chain_id, chain in store._board.chains.items():
        if chain.status in TERMINAL:
            continue
        status = "behind" if chain.behind else str(chain.status)
        live[calls.run_of(chain_id)] = Held(status, chain.worker, chain.epoch)
    tokens = [str(source.token) for source in store._sources.values()]
    lanes = [lane for address in store._records.addresses.values() for lane in address.lanes.values()]
    queued = max([len(lane.queue) for lane in lanes], default=0)
    return View(tuple(sorted(live.items())), "".join(tokens), any(lane.head for lane in lanes), queued)


RUNNING = str(RunStatus.RUNNING)
