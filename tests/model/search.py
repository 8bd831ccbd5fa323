"""Breadth first over all interleavings of a world: what breaks is found by its shortest way, told in words."""

import itertools
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from tests.model.world import State, World


class Violation(AssertionError):
    """A promise that doesn't hold, with the shortest interleaving that breaks it."""

    def __init__(self, what: str, steps: list[str]) -> None:
        self.what = what
        self.steps = steps
        told = "\n".join(f"{number:3d}. {step}" for number, step in enumerate(steps, 1))
        super().__init__(f"{what}, in {len(steps)} steps:\n{told}")


@dataclass(frozen=True)
class Found:
    """What an exhaustive search has seen."""

    states: int
    steps: int
    ends: int
    store_states: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.steps:,} steps, {self.ends:,} ends, {self.store_states:,} states of the "
            f"store, {self.seconds:.1f} s"
        )


class Search:
    """One search. The order of what is met is the same each time."""

    def __init__(self, world: World, most: int = 5_000_000) -> None:
        self.world = world
        self._most = most
        self._numbers: dict[Hashable, int] = {}
        self._parents: list[int] = []
        self._goals: list[int] = []
        self._backwards: list[list[int]] = []
        self._dead = bytearray()
        self._parts: dict[Hashable, Hashable] = {}

    def run(self) -> Found:
        """Raises Violation; answers when every state was seen and an end can be reached from each without a fault."""
        world, began, steps = self.world, time.process_time(), 0
        first = world.first()
        self._add(first, -1)
        queue = deque([first])
        while queue:
            state = queue.popleft()
            number = self._numbers[state]
            for _, after, fault in world.steps(state):
                steps += 1
                found = self._numbers.get(after)
                if found is None:
                    after = self._shared(after)
                    found = self._add(after, number)
                    queue.append(after)
                    if broken := world.broken(after):
                        raise self._violation(broken, found)
                    if world.is_end(after):
                        self._goals.append(found)
                if not fault:
                    self._backwards[found].append(number)
                    if found != number:
                        self._dead[number] = 0
            if len(self._parents) > self._most:
                raise RuntimeError(f"more than {self._most} states")
        self._check_ends()
        seconds = time.process_time() - began
        return Found(len(self._parents), steps, len(self._goals), len(world.snapshots), seconds)

    def _add(self, state: State, parent: int) -> int:
        number = self._numbers[state] = len(self._parents)
        self._parents.append(parent)
        self._backwards.append([])
        self._dead.append(1)
        return number

    def _shared(self, state: State) -> State:
        parts = self._parts
        return State(*(parts.setdefault(part, part) for part in state))  # type: ignore[arg-type]

    def _check_ends(self) -> None:
        reached = bytearray(len(self._parents))
        queue = deque(self._goals)
        for goal in self._goals:
            reached[goal] = 1
        while queue:
            for before in self._backwards[queue.popleft()]:
                if not reached[before]:
                    reached[before] = 1
                    queue.append(before)
        stuck = reached.find(0)
        if stuck >= 0:
            # where nothing goes on at all is the best example
            stuck = next((one for one, dead in enumerate(self._dead) if dead and not reached[one]), stuck)
            raise self._violation("it comes home: from here no end can be reached without a further fault", stuck)

    def _path(self, number: int) -> list[int]:
        path = [number]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        return path[::-1]

    def _violation(self, what: str, number: int) -> Violation:
        """Told from the beginning."""
        world, path = self.world, self._path(number)
        wanted = set(path)
        states = {place: state for state, place in self._numbers.items() if place in wanted}
        told = []
        for at, following in itertools.pairwise(path):
            told.append(next(text for text, after, _ in world.steps(states[at]) if after == states[following]))
        return Violation(what, told)
