"""The queue of submitted runs in memory: those that are ready, and those that wait at the gates of flow control.

The same algorithm as `lua/runs/queue.lua`, call by call, so that both stores start runs in one order; its structures
and rules are in docs/formats-runs.md, "The queue". Times are microseconds and come in as arguments.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Literal

from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.memory_cohorts import Cohort, CohortId, Facts, Queued, Taken
from pyrula.workflows.store.memory_ready import Class, Gate, Place, Rings

_RESERVED_MICROSECONDS = 10_000_000
_BOUNCES = 3
_STEPS = 64
_POLICIES: dict[str, Literal["Limit", "Rate"]] = {"l": "Limit", "r": "Rate"}


class Gates:
    """Slots, rates, cohorts, and the runs that are ready."""

    def __init__(self) -> None:
        self.rings: Rings[str | CohortId] = Rings()
        self.slots: dict[Gate, dict[str | CohortId, None]] = {}
        """The only truth about slots: runs that are held, and cohorts for which one is reserved."""
        self.arrivals: dict[Gate, float] = {}
        self._full: list[tuple[float, Gate]] = []
        self.cohorts: dict[CohortId, Cohort] = {}
        self.waiting: dict[Gate, set[Class]] = {}
        self.open: dict[tuple[Gate, Class], set[CohortId]] = {}
        self._queued: dict[str, Queued] = {}
        self._submits = 0
        self._due: dict[Gate | CohortId, int] = {}
        self._timers: list[tuple[int, str, int, Gate | CohortId]] = []
        self._serial = 0

    def next_order(self) -> int:
        self._submits += 1
        return self._submits

    # runs

    def enqueue(self, queued: Queued, now: int) -> None:
        self._queued[queued.run] = queued
        cid = queued.cohort
        if cid is None:
            self.rings.add(Place(queued.cls), queued.owner, queued.key, queued.run)
            return
        cohort = self.cohorts.get(cid)
        if cohort is not None:
            insort(cohort.runs, (queued.key, queued.run))
            if cohort.runs[0][0] != cohort.key:
                self._rekey(cohort, now)
            return
        cohort = Cohort(cid, queued.key, self.rings.tick(), runs=[(queued.key, queued.run)])
        gate = self._gate_for(cohort, now)
        self._put(cohort, gate)
        if gate is not None:
            self.wake(gate, now)

    def dequeue(self, run: str, now: int) -> None:
        """Out of the queue; nothing if it isn't in it."""
        queued = self._queued.pop(run, None)
        if queued is None:
            return
        cid = queued.cohort
        if cid is None:
            self.rings.remove(Place(queued.cls), queued.owner, queued.key)
            return
        cohort = self.cohorts[cid]
        cohort.runs.remove((queued.key, run))
        if not cohort.runs:
            self._drop(cohort, now)
        elif cohort.runs[0][0] != cohort.key:
            self._rekey(cohort, now)

    def release(self, run: str, workflow: str, stamp: Stamp | None, now: int) -> None:
        """The run isn't held any more."""
        if stamp is None or stamp.limit is None:
            return
        gate = Gate("l", workflow, stamp.limit.key)
        if self._free_slot(gate, run):
            self.wake(gate, now)

    def take(self, classes: Sequence[Class], most: int, now: int) -> list[Taken]:
        """The next runs in turn."""
        taken: list[Taken] = []
        for _ in range(most + _STEPS):
            heads = [(head, cls) for cls in classes if (head := self.rings.head(Place(cls))) is not None]
            if len(taken) == most or not heads:
                break
            (turn, since, owner), cls = min(heads, key=lambda pair: pair[0][:2])
            place = Place(cls)
            if turn < self.rings.last_served(owner):
                # the owner had its turn in another class
                self.rings.sit(place, owner, self.rings.last_served(owner), since)
                continue
            item = self.rings.first(place, owner)
            cohort = None if isinstance(item, str) else self.cohorts[item]
            if cohort is not None and not self._passes(cohort, now):
                continue
            tick = self.rings.tick()
            self.rings.serve(owner, tick)
            if cohort is None:
                assert isinstance(item, str)
                run, paid = item, False
                self.dequeue(run, now)
            else:
                run, paid = cohort.runs[0][1], cohort.rate is not None
                self._serve(cohort, tick, now)
            if self.rings.seated(place, owner):
                self.rings.sit(place, owner, tick, tick)
            taken.append(Taken(run, cls, paid))
        return taken

    def facts(self, run: str, workflow: str, stamp: Stamp | None, paid: bool, now: int) -> Facts:
        """For who explains."""
        used, due = 0, None
        holders: tuple[str, ...] = ()
        if stamp is not None and stamp.limit is not None:
            slots = self.slots.get(Gate("l", workflow, stamp.limit.key), {})
            used, holders = len(slots), tuple(sorted(holder for holder in slots if isinstance(holder, str)))
        if stamp is not None and stamp.rate is not None and not paid:
            arrival = max(self.arrivals.get(Gate("r", workflow, stamp.rate.key), 0.0), now)
            due = arrival - (stamp.rate.burst - 1) * 1e6 / stamp.rate.per_second
        queued = self._queued.get(run)
        if queued is None:
            return Facts(used, holders, due, None, 0, 0)
        place, key, inside = Place(queued.cls), queued.key, 0
        if queued.cohort is not None:
            cohort = self.cohorts[queued.cohort]
            place, key = Place(queued.cls, cohort.gate), cohort.key
            inside = bisect_left(cohort.runs, (queued.key, run))
        owners, items = self.rings.ahead(place, queued.owner, key)
        before = inside + sum(1 if isinstance(item, str) else len(self.cohorts[item].runs) for item in items)
        gate = None if place.gate is None else _POLICIES[place.gate.kind]
        return Facts(used, holders, due, gate, before, owners)

    # gates

    def free(self, cohort: Cohort, gate: Gate, now: int) -> int:
        """How many of these could pass the gate now."""
        if gate.kind == "l":
            assert cohort.id[2] is not None
            return cohort.id[2].max - len(self.slots.get(gate, ())) + cohort.reserved
        return math.floor((now - self.due(cohort, now)) / _interval(cohort)) + 1

    def due(self, cohort: Cohort, now: int) -> float:
        """When the next start is due, by the theoretical arrival time that the gate keeps (GCRA)."""
        assert cohort.id[3] is not None
        gate = cohort.rate
        assert gate is not None
        return max(self.arrivals.get(gate, 0.0), now) - (cohort.id[3].burst - 1) * _interval(cohort)

    def wake(self, gate: Gate, now: int) -> None:
        """Offer what is free to who waits longest, in each class: a class may have no worker. A claim takes."""
        heads = []
        for cls in self.waiting.get(gate, ()):
            head = self.rings.head(Place(cls, gate))
            assert head is not None
            heads.append((head, cls))
        for (_, _, owner), cls in sorted(heads, key=lambda pair: pair[0][:2]):
            item = self.rings.first(Place(cls, gate), owner)
            assert not isinstance(item, str)
            cohort = self.cohorts[item]
            free = self.free(cohort, gate, now)
            if free <= 0:
                if gate.kind == "r":
                    self._set_timer(gate, math.ceil(self.due(cohort, now)))
            elif len(self.open.get((gate, cls), ())) < free:
                self._take(cohort)
                self._put(cohort, None)

    def _wake_all(self, cohort: Cohort, now: int) -> None:
        for gate in cohort.gates():
            self.wake(gate, now)

    def _gate_for(self, cohort: Cohort, now: int) -> Gate | None:
        """Where it has to wait behind others, or for itself; None if it may go into the ready ring."""
        for gate in cohort.gates():
            if gate.kind == "l" and cohort.reserved:
                continue
            if gate in self.waiting or len(self.open.get((gate, cohort.cls), ())) >= self.free(cohort, gate, now):
                return gate
        return None

    def _passes(self, cohort: Cohort, now: int) -> bool:
        """Whether its gates let its first run start; if not, it goes to the one that is shut."""
        shut = next((gate for gate in cohort.gates() if self.free(cohort, gate, now) <= 0), None)
        if shut is None:
            return True
        self._take(cohort)
        if shut.kind == "r":
            cohort.bounces += 1
            limit = cohort.limit
            if limit is not None and cohort.bounces >= _BOUNCES and not cohort.reserved and limit[1:] != shut[1:]:
                # with two keys a slot may be free whenever no token is, and the other way round
                cohort.reserved = True
                self.slots.setdefault(limit, {})[cohort.id] = None
                self._set_timer(cohort.id, math.floor(max(self.due(cohort, now), now) + 0.5) + _RESERVED_MICROSECONDS)
        self._put(cohort, shut)
        self._wake_all(cohort, now)
        return False

    def _serve(self, cohort: Cohort, tick: int, now: int) -> None:
        """Its first run starts: it takes its slot and pays its token. What is left of the cohort waits anew."""
        _, run = cohort.runs.pop(0)
        del self._queued[run]
        if cohort.limit is not None:
            self._unreserve(cohort)
            self.slots.setdefault(cohort.limit, {})[run] = None
        if cohort.rate is not None:
            arrival = max(self.arrivals.get(cohort.rate, 0.0), now) + _interval(cohort)
            self.arrivals[cohort.rate] = arrival
            heapq.heappush(self._full, (arrival, cohort.rate))
        if not cohort.runs:
            self._drop(cohort, now)
            return
        self._take(cohort)
        cohort.key, cohort.since, cohort.bounces = cohort.runs[0][0], tick, 0
        self._put(cohort, self._gate_for(cohort, now))
        self._wake_all(cohort, now)

    # cohorts

    def _put(self, cohort: Cohort, gate: Gate | None) -> None:
        cohort.gate = gate
        self.cohorts[cohort.id] = cohort
        self.rings.add(Place(cohort.cls, gate), cohort.owner, cohort.key, cohort.id, cohort.since)
        if gate is not None:
            self.waiting.setdefault(gate, set()).add(cohort.cls)
            return
        for needed in cohort.gates():
            if needed.kind == "r" or not cohort.reserved:
                self.open.setdefault((needed, cohort.cls), set()).add(cohort.id)

    def _take(self, cohort: Cohort) -> None:
        place = Place(cohort.cls, cohort.gate)
        self.rings.remove(place, cohort.owner, cohort.key)
        if cohort.gate is None:
            for gate in cohort.gates():
                opened = self.open.get((gate, cohort.cls), set())
                opened.discard(cohort.id)
                if not opened:
                    self.open.pop((gate, cohort.cls), None)
        elif self.rings.head(place) is None:
            self.waiting[cohort.gate].discard(cohort.cls)
            if not self.waiting[cohort.gate]:
                del self.waiting[cohort.gate]

    def _rekey(self, cohort: Cohort, now: int) -> None:
        """Its first run is another one now."""
        key = cohort.runs[0][0]
        self.rings.rekey(Place(cohort.cls, cohort.gate), cohort.owner, cohort.key, key, cohort.id)
        cohort.key = key
        if cohort.gate is not None:
            self.wake(cohort.gate, now)

    def _drop(self, cohort: Cohort, now: int) -> None:
        self._take(cohort)
        self._unreserve(cohort)
        del self.cohorts[cohort.id]
        self._wake_all(cohort, now)

    def _unreserve(self, cohort: Cohort) -> None:
        if cohort.reserved:
            cohort.reserved = False
            assert cohort.limit is not None
            self._free_slot(cohort.limit, cohort.id)
            self._due.pop(cohort.id, None)

    def _free_slot(self, gate: Gate, holder: str | CohortId) -> bool:
        slots = self.slots.get(gate, {})
        if holder not in slots:
            return False
        del slots[holder]
        if not slots:
            del self.slots[gate]
        return True

    # time

    def _set_timer(self, member: Gate | CohortId, due: int) -> None:
        known = self._due.get(member)
        if known is None or due < known:
            self._due[member] = due
            self._serial += 1
            kind = "g" if isinstance(member, Gate) else "v"
            heapq.heappush(self._timers, (due, kind, self._serial, member))

    def next_due(self) -> tuple[int, str] | None:
        """When the next token or the end of a reservation is due, and a text that sorts after runs due then."""
        while self._timers:
            due, kind, _, member = self._timers[0]
            if self._due.get(member) == due:
                return due, kind
            heapq.heappop(self._timers)
        return None

    def fire(self, now: int) -> None:
        """Fire the timer that `next_due` told of."""
        _, _, _, member = heapq.heappop(self._timers)
        del self._due[member]
        if isinstance(member, Gate):
            self.wake(member, now)
            return
        cohort = self.cohorts.get(member)
        if cohort is not None and cohort.reserved:
            self._unreserve(cohort)
            limit = cohort.limit
            assert limit is not None
            if cohort.gate is None:
                self.open.setdefault((limit, cohort.cls), set()).add(cohort.id)
            self.wake(limit, now)

    def forget_full(self, now: int) -> None:
        """An arrival that has passed is a full bucket."""
        while self._full and self._full[0][0] <= now:
            arrival, gate = heapq.heappop(self._full)
            if self.arrivals.get(gate) == arrival:
                del self.arrivals[gate]


def _interval(cohort: Cohort) -> float:
    assert cohort.id[3] is not None
    return 1e6 / cohort.id[3].per_second
