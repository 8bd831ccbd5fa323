"""The scripts on a server answer as MemoryStore does, whose rules are searched, and leave the same behind.

Calls are played to both stores along random paths through all states of the store that the searches met.
"""

import os
import pickle
import random
from collections import defaultdict

from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.server import Server
from tests.model import calls, raw
from tests.model.calls import Answer, Call
from tests.model.search import Search
from tests.model.snapshots import Snapshots, run_now
from tests.model.world import Faults, Setup, World

PATHS = 5000 if os.environ.get("PYRULA_SOAK") == "1" else 300
LONGEST = 40
SEED = 6

SETUPS = (
    Setup("aa", ("p", "d"), 1, faults=Faults(crash=1)),
    Setup("aa", ("p", "dp"), 1, faults=Faults(lost=1)),
    Setup("aaa", ("p", "d", "d"), 2, faults=Faults(cancel=1)),
    Setup("aa", ("f", "d"), 1, again=1, faults=Faults(cancel=1)),
    Setup("aa", ("p", "d"), faults=Faults(early=1)),
    Setup("aa", ("p", "d"), faults=Faults(lease=1), executors=2),
    Setup("ab", ("p", "dp"), 1),
    Setup("-", ("p",), faults=Faults(crash=1, copy=1)),
)


def met() -> Snapshots:
    """All states of a store that some searches meet, with what leads from one to the next."""
    snapshots = Snapshots()
    for setup in SETUPS:
        Search(World(setup, snapshots)).run()
    return snapshots


class Paths:
    """Random paths: to a call that was never played if there is one, and on from there."""

    def __init__(self, snapshots: Snapshots, seed: int) -> None:
        self.edges = snapshots.edges()
        self._parents = snapshots.paths
        self._after: dict[int, list[tuple[int, Call, Answer, int]]] = defaultdict(list)
        for edge in self.edges:
            self._after[edge[0]].append(edge)
        self._random = random.Random(seed)
        self._waiting = list(range(len(self.edges)))
        self._random.shuffle(self._waiting)
        self.played: set[int] = set()
        self._places = {edge[:2]: place for place, edge in enumerate(self.edges)}

    def draw(self) -> list[Call]:
        while self._waiting and self._waiting[-1] in self.played:
            self._waiting.pop()
        aim = self._waiting[-1] if self._waiting else self._random.randrange(len(self.edges))
        state, call, _, after = self.edges[aim]
        path = [(state, call)]
        while (parent := self._parents[path[0][0]]) is not None:
            path.insert(0, parent)
        while len(path) < LONGEST and (following := self._after.get(after)):
            state, call, _, after = self._random.choice(following)
            path.append((state, call))
        self.played.update(self._places[step] for step in path)
        return [call for _, call in path]


async def test_the_scripts_answer_as_the_rules_that_are_searched(valkey: str, namespace: str) -> None:
    paths = Paths(met(), SEED)
    server = Server(valkey, namespace)
    stores = [ValkeyStore(valkey, namespace=namespace) for _ in range(3)]
    for store in stores:
        await store.open()
    shard, runs = stores[0].shard_of(calls.SOURCE), raw.run_ids(stores[0], 4)
    try:
        for number in range(PATHS):
            first = MemoryStore()
            memory = [first, first.twin(), first.twin()]
            played: list[Call] = []
            for call in paths.draw():
                played.append(call)
                told = f"path {number} of seed {SEED}:\n" + "\n".join(map(str, played))
                expected = run_now(calls.call(memory, call))
                assert await calls.call(stores, call) == expected, told
            assert await raw.of_server(server, shard, runs, ("x0", "x1")) == raw.of_memory(first), told
            await server.call("UNLINK", *raw.all_names(namespace, shard, runs))
        print(f"{PATHS} paths with {len(paths.played):,} of {len(paths.edges):,} calls")
        assert {key for key in await server.keys() if not key.endswith(b"}meta")} == set()
    finally:
        for store in stores:
            await store.close()
        await server.clear()
        await server.close()


def test_a_snapshot_goes_on_as_the_store_itself() -> None:
    snapshots = Snapshots()
    Search(World(SETUPS[3], snapshots)).run()
    paths = Paths(snapshots, SEED)
    for _ in range(100):
        first = MemoryStore()
        whole = [first, first.twin(), first.twin()]
        copied = pickle.loads(pickle.dumps(whole))
        for call in paths.draw():
            assert run_now(calls.call(copied, call)) == run_now(calls.call(whole, call))
            copied = pickle.loads(pickle.dumps(copied))
        assert raw.of_memory(copied[0]) == raw.of_memory(first)
