"""The whole: a group, its workers, executors, the store, what is on its way between them, and everything that may go
wrong. A state is a value; `steps` gives each step that may come next, with what it is in words.

Calls take effect some time after they were sent, also after their sender died or lost the partition. Call and answer
are one step: between them a sender does nothing that an answer which came later could change. Faults come as budgets.
A step that breaks a promise says so in the state it leads to.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.model.calls import Call, offset_of
from tests.model.owner import Owner, Worker
from tests.model.snapshots import RUNNING, Held, Snapshots


class Faults(NamedTuple):
    """How often each may come."""

    crash: int = 0
    reassign: int = 0
    lost: int = 0
    copy: int = 0
    executor_crash: int = 0
    lease: int = 0
    cancel: int = 0
    early: int = 0
    restart: int = 0
    no_map: int = 0


@dataclass(frozen=True)
class Setup:
    """A configuration. `memory` says for each offset how a body may end there: d(one), p(arks), f(ails and blocks)."""

    keys: str
    memory: tuple[str, ...]
    bound: int = 0
    """How many may be queued behind a head."""
    faults: Faults = field(default_factory=Faults)
    again: int = 0
    """How often a run in the store may park again, or fail."""
    executors: int = 1
    without: frozenset[str] = frozenset()
    """Rules of the owner's, or of the way answers come, that are left out."""

    @property
    def once(self) -> bool:
        """Whether every record must be completed only once."""
        faults = self.faults
        return not (faults.crash or faults.reassign or faults.lease or faults.restart or faults.executor_crash)

    def whole(self) -> "Setup":
        """With all rules."""
        return replace(self, without=frozenset())

    def but(self, *without: str) -> "Setup":
        return replace(self, without=self.without | set(without))


class Message(NamedTuple):
    """A call on its way. `awaited`: its sender is there and waits for the answer."""

    call: Call
    awaited: bool


class State(NamedTuple):
    committed: int
    map: frozenset[int]
    generation: int
    owner: int
    store: int
    durable: int
    net: tuple[Message, ...]
    workers: tuple[Worker, ...]
    executors: tuple[tuple[str, int, tuple[tuple[int, str], ...]] | None, ...]
    completed: tuple[tuple[int, bool], ...]
    """In the order of the last time; with whether the store may still lose it."""
    handed: tuple[tuple[str, int, int], ...]
    """The highest offset of each key that the store has ever taken, and the highest that it can't lose."""
    dropped: frozenset[int]
    """Those that were cancelled before they began."""
    left: Faults
    again: int
    broken: str = ""
    """A promise that the last step broke."""


Step = tuple[str, State, bool]
"""What happens, what it leads to, and whether it is a fault."""


class World:
    """All steps of one configuration over a store's snapshots."""

    def __init__(self, setup: Setup, snapshots: Snapshots | None = None) -> None:
        self.setup = setup
        self.snapshots = snapshots or Snapshots()
        self.owner = Owner(setup.keys, setup.bound, setup.without)
        self._end = len(setup.keys)
        self._restarts = setup.faults.restart > 0
        self._volatile = frozenset(
            name.removeprefix("fsync before ") for name in setup.without if name.startswith("fsync before ")
        )

    def first(self) -> State:
        first = self.snapshots.first
        setup = self.setup
        return State(
            0,
            frozenset(),
            0,
            -1,
            first,
            first,
            (),
            (Worker(), Worker()),
            (None,) * setup.executors,
            (),
            (),
            frozenset(),
            setup.faults,
            setup.again,
        )

    def name(self, offset: int) -> str:
        key = self.setup.keys[offset]
        return f"null{offset}" if key == "-" else f"{key}{offset}"

    # steps

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._group(state)
        for who, worker in enumerate(state.workers):
            yield from self._work(state, who, worker)
        yield from self._delivered(state)
        for who, held in enumerate(state.executors):
            yield from self._execute(state, who, held)
        yield from self._clients(state)
        yield from self._faults(state)

    def _group(self, state: State) -> Iterator[Step]:
        if state.owner < 0:
            for who in range(len(state.workers) if state.generation else 1):
                yield self._assign(state, who, f"the group gives the partition to W{who + 1}", False)
        elif state.workers[state.owner].phase == "out":
            yield self._assign(state, state.owner, f"W{state.owner + 1} opens again", False, again=True)

    def _assign(self, state: State, who: int, text: str, fault: bool, again: bool = False) -> Step:
        generation = state.generation if again else state.generation + 1
        worker, sent = self.owner.assigned(who, generation)
        state = self._dropped(state, who)._replace(generation=generation, owner=who)
        return text, self._with(state, who, worker, sent), fault

    def _work(self, state: State, who: int, worker: Worker) -> Iterator[Step]:
        owner, name = self.owner, f"W{who + 1}"
        if worker.phase in ("claimed", "stale"):
            if worker.generation == state.generation or "confirm" in owner.without:
                found, sent = owner.confirmed(who, worker, state.committed, state.map)
                yield f"{name} reads the committed offset and confirms it", self._with(state, who, found, sent), False
                if state.left.no_map and state.map:
                    found, sent = owner.confirmed(who, worker, state.committed, frozenset())
                    lost = self._spent(state, "no_map")._replace(map=frozenset())
                    yield f"{name} confirms; the map is lost", self._with(lost, who, found, sent), True
            else:
                yield f"{name} can't confirm: the group went on", self._dropped(state, who), False
        elif worker.phase == "reading":
            answer, _ = self.snapshots.call(state.store, ("lanes", who))
            found, sent = owner.read(who, worker, answer)
            yield f"{name} reads the lanes: {_lanes(found)}", self._with(state, who, found, sent), False
        elif worker.phase == "at work":
            yield from self._at_work(state, who, worker)

    def _at_work(self, state: State, who: int, worker: Worker) -> Iterator[Step]:
        owner, name, setup = self.owner, f"W{who + 1}", self.setup
        for offset in owner.may_start(worker):
            found = self._with(state, who, owner.starts(worker, offset))
            yield f"{name} starts {self.name(offset)}", self._starting(found, who, offset), False
        for offset, stage in worker.bodies:
            if stage == "handing":
                continue
            if stage == "woken" or "d" in setup.memory[offset]:
                yield from self._completes(state, who, worker, offset)
            if stage == "runs" and "p" in setup.memory[offset]:
                yield self._parks(state, who, worker, offset)
            if stage == "runs" and "f" in setup.memory[offset]:
                yield self._parks(state, who, worker, offset, failed=True)
        found, sent = owner.asks(who, worker)
        if sent:
            texts = ", ".join(self.name(offset) for _, offset in sent[0][3])
            yield f"{name} asks whether {texts} may run", self._with(state, who, found, sent), False
        for found, sent in owner.lines_up(who, worker):
            texts = ", ".join(self.name(offset) for _, offsets in sent[0][3] for offset in offsets)
            yield f"{name} sends {texts} to the queue", self._with(state, who, found, sent), False
        if owner.commits(who, worker)[1]:
            found, sent = owner.commits(who, worker)
            yield f"{name} sends a commit of {sent[0][3]}", self._with(state, who, found, sent), False
        found, sent = owner.prunes(who, worker)
        if sent:
            yield f"{name} prunes under {sent[0][3]}", self._with(state, who, found, sent), False

    def _completes(self, state: State, who: int, worker: Worker, offset: int) -> Iterator[Step]:
        number, text = self.owner.number(worker, offset), f"W{who + 1} completes {self.name(offset)}"
        if number is not None:
            call = "end", who, worker.token, offset, self.owner.holder(who, worker), number + 1
            answer, store = self.snapshots.call(state.store, call)
            if answer == ("lost",):
                yield f"{text}: refused", self._dropped(state, who), False
                return
            state = self._on_disk(state._replace(store=store))
            worker = self.owner.changed(worker, offset)
        found = self._with(state, who, self.owner.completes(worker, offset))
        # one that the group has gone on without counts until its successor has claimed: it may still hand over
        if self.snapshots.views[found.store].token == worker.token:
            found = self._completed(found, offset, soft=False)
        yield text, found, False

    def _parks(self, state: State, who: int, worker: Worker, offset: int, *, failed: bool = False) -> Step:
        number = self.owner.number(worker, offset) or 0
        call = "wait", who, worker.token, offset, self.owner.holder(who, worker), number + 1
        answer, store = self.snapshots.call(state.store, call)
        text = f"W{who + 1} {'blocks' if failed else 'parks'} {self.name(offset)}"
        if answer == ("lost",):
            return f"{text}: its rows are refused", self._dropped(state, who), False
        state = self._on_disk(state._replace(store=store))
        found, sent = self.owner.hands_over(who, self.owner.changed(worker, offset), offset, failed=failed)
        return f"{text}: its hand-over is sent", self._with(state, who, found, sent), False

    # what is on its way

    def _delivered(self, state: State) -> Iterator[Step]:
        for place, message in enumerate(state.net):
            if place and state.net[place - 1] == message:
                continue
            rest = state.net[:place] + state.net[place + 1 :]
            yield from self._takes_effect(state._replace(net=rest), message)

    def _takes_effect(self, state: State, message: Message) -> Iterator[Step]:
        call, awaited = message
        who, text = call[1], f"{_sender(message)} {self._text(call)}"
        if call[0] == "finish":
            # only copies of it are on their way
            answer, store = self.snapshots.call(state.store, call)
            yield f"{text}: {' '.join(map(str, answer))}", state._replace(store=store), False
            return
        if call[0] == "commit":
            accepted = call[2] == state.generation or "the group's fence" in self.setup.without
            answer: tuple[Any, ...] = ("committed",) if accepted else ("refused",)
            after = state._replace(committed=call[3], map=call[4]) if accepted else state
        elif call[0] == "head ended":
            answer, after = ("told",), state
        else:
            answer, store = self.snapshots.call(state.store, call)
            after = self._noted(state._replace(store=store), call, answer)
        told = f"{text}: {' '.join(str(part) for part in answer[:2])}"
        if not awaited:
            yield told, after, False
            return
        if state.left.lost:
            again = _sorted((*after.net, message))
            yield f"{told}, but the answer is lost", self._spent(after, "lost")._replace(net=again), True
        if call[0] not in self._volatile and call[0] not in ("commit", "head ended"):
            after = self._on_disk(after)
        worker, sent = self.owner.on_answer(after.workers[who], call, answer)
        after = self._dropped(after, who) if worker.phase == "out" else self._with(after, who, worker, sent)
        yield told, after, False
        if state.left.copy and call[0] != "commit":
            late = _sorted((*after.net, Message(call, False)))
            yield f"{told}; a copy of it is still on its way", self._spent(after, "copy")._replace(net=late), True

    def _noted(self, state: State, call: Call, answer: tuple[Any, ...]) -> State:
        """What a call did in the store that the properties are about."""
        if call[0] == "hand over" and answer == ("taken",) and call[4]:
            return _with_floor(state, call[4], call[3])
        if call[0] == "line up" and answer != ("lost",):
            for (lane, offsets), (taken, _) in zip(call[3], answer, strict=True):
                if taken:
                    state = _with_floor(state, lane, offsets[taken - 1])
        return state

    def _on_disk(self, state: State) -> State:
        """An answer has come: whatever was done before is on disk."""
        if not self._restarts:
            return state
        hard: list[tuple[int, bool]] = []
        for offset, _ in state.completed:
            hard = [one for one in hard if one[0] != offset]
            hard.append((offset, False))
        handed = tuple((key, floor, floor) for key, floor, _ in state.handed)
        return state._replace(durable=state.store, completed=tuple(hard), handed=handed)

    # executors and clients

    def _execute(self, state: State, who: int, held: tuple[str, int, Any] | None) -> Iterator[Step]:
        view, name = self.snapshots.views[state.store], f"X{who + 1}"
        if held is None:
            if any(run.status == "queued" for _, run in view.runs):
                answer, store = self.snapshots.call(state.store, ("take", who))
                if answer[0] == "run":
                    found = self._with_executor(state._replace(store=store), who, answer[1:])
                    found = found if "take" in self._volatile else self._on_disk(found)
                    found = self._one_body(found, offset_of(answer[1]))
                    yield f"{name} claims the run of {self.name(offset_of(answer[1]))}", found, False
            return
        run, epoch, messages = held
        offset = offset_of(run)
        consumed = tuple(number for number, _ in messages)
        cancelled = any(kind == "cancel" for _, kind in messages)
        call: Call = ("finish", who, run, epoch, consumed, "cancelled" if cancelled else "completed")
        answer, store = self.snapshots.call(state.store, call)
        ended = self._with_executor(state._replace(store=store), who, None)
        if answer == ("lost",):
            yield f"{name} can't end the run of {self.name(offset)}: its lease is lost", ended, False
            return
        ended = self._completed(ended, offset, soft=True)
        if "finish" not in self._volatile:
            ended = self._on_disk(ended)
        text = f"{name} ends the run of {self.name(offset)}"
        if "home by the store's word" in self.setup.without:
            published = Message(("head ended", state.owner, self.owner.lane(offset)), True)
            ended = ended._replace(net=_sorted((*ended.net, published)))
        yield text, ended, False
        if state.left.copy:
            late = _sorted((*ended.net, Message(call, False)))
            yield f"{text}; a copy of it is on its way", self._spent(ended, "copy")._replace(net=late), True
        if state.again and not cancelled:
            answer, store = self.snapshots.call(state.store, ("park", who, run, epoch, consumed))
            parked = state._replace(store=store, again=state.again - 1)
            if answer == ("parked",):
                found = self._on_disk(self._with_executor(parked, who, None))
                yield f"{name} parks the run of {self.name(offset)} again", found, False
            if "f" in self.setup.memory[offset]:
                _, store = self.snapshots.call(state.store, ("block", who, run, epoch, consumed))
                blocked = state._replace(store=store, again=state.again - 1)
                found = self._on_disk(self._with_executor(blocked, who, None))
                yield f"{name}'s run of {self.name(offset)} fails, and blocks its lane", found, False

    def _clients(self, state: State) -> Iterator[Step]:
        view = self.snapshots.views[state.store]
        for run, held in view.runs:
            name = self.name(offset_of(run))
            if held.status == "signal_waiting":
                yield f"a client signals the run of {name}", self._tell(state, run, "signal", held), False
            if held.status == "paused":
                _, store = self.snapshots.call(state.store, ("retry", 0, run))
                yield f"a client retries the run of {name}", self._on_disk(state._replace(store=store)), False
            if state.left.cancel:
                found = self._spent(self._tell(state, run, "cancel", held), "cancel")
                if run not in self.snapshots.views[found.store].held:
                    found = found._replace(dropped=found.dropped | {offset_of(run)})
                if found.store != state.store:
                    yield f"a client cancels the run of {name}", found, True
        if state.left.early:
            for worker in state.workers:
                for offset, stage in worker.bodies:
                    if stage == "handing" and offset not in view.offsets:
                        found = self._spent(self._tell(state, str(offset), "signal", None), "early")
                        yield f"a client signals {self.name(offset)} before the store has it", found, True

    def _tell(self, state: State, run: str, kind: str, held: Held | None) -> State:
        number = 0 if held is None else held.epoch
        _, store = self.snapshots.call(state.store, ("tell", 0, run, kind, number))
        return self._on_disk(state._replace(store=store))

    # faults

    def _faults(self, state: State) -> Iterator[Step]:
        left = state.left
        if left.crash:
            for who, worker in enumerate(state.workers):
                if worker.phase != "out":
                    found = self._dropped(self._spent(state, "crash"), who)
                    if state.owner == who:
                        found = found._replace(owner=-1)
                    yield f"W{who + 1} crashes", found, True
        if left.reassign and state.owner >= 0:
            other = 1 - state.owner
            text = f"the group gives the partition to W{other + 1}; W{state.owner + 1} doesn't know"
            yield self._assign(self._spent(state, "reassign"), other, text, True)
        for who, held in enumerate(state.executors):
            if held is None:
                continue
            if left.lease and self._has_lease(state, who):
                yield self._reaped(self._spent(state, "lease"), who, f"X{who + 1} loses its lease, and goes on")
            if left.executor_crash:
                gone = self._with_executor(self._spent(state, "executor_crash"), who, None)
                yield self._reaped(gone, who, f"X{who + 1} crashes")
        if left.restart:
            hard = tuple(one for one in state.completed if not one[1])
            handed = tuple((key, kept, kept) for key, _, kept in state.handed)
            found = self._spent(state, "restart")._replace(store=state.durable, completed=hard, handed=handed)
            yield "the store restarts from its disk", found, True

    def _reaped(self, state: State, who: int, text: str) -> Step:
        _, store = self.snapshots.call(state.store, ("reap", who))
        return text, self._on_disk(state._replace(store=store)), True

    def _has_lease(self, state: State, who: int) -> bool:
        held = state.executors[who]
        if held is None:
            return False
        run = self.snapshots.views[state.store].held.get(held[0])
        return run is not None and (run.status, run.worker, run.epoch) == (RUNNING, f"x{who}", held[1])

    # properties

    def _is_owner(self, state: State, who: int, worker: Worker) -> bool:
        return state.owner == who and state.generation == worker.generation

    def _starting(self, state: State, who: int, offset: int) -> State:
        """A body starts in memory."""
        worker = state.workers[who]
        if not self._is_owner(state, who, worker):
            return state
        lane = self.owner.lane(offset)
        floor = max((floor for key, floor, _ in state.handed if key == lane), default=-1)
        if lane and offset <= floor:
            text = f"the floor: {self.name(offset)} starts in memory though {self.name(floor)} was handed over"
            return state._replace(broken=text)
        return self._one_body(state, offset)

    def _one_body(self, state: State, offset: int) -> State:
        live = []
        if state.owner >= 0:
            worker = state.workers[state.owner]
            if worker.generation == state.generation:
                live += [
                    f"W{state.owner + 1} runs {self.name(one)}" for one in worker.running if self._same(one, offset)
                ]
        for who, held in enumerate(state.executors):
            if held is not None and self._same(offset_of(held[0]), offset) and self._has_lease(state, who):
                live.append(f"X{who + 1} runs {self.name(offset_of(held[0]))}")
        if len(live) > 1:
            return state._replace(broken=f"one live body per key: {' while '.join(live)}")
        return state

    def _same(self, one: int, offset: int) -> bool:
        lane = self.owner.lane(offset)
        return one == offset or (lane != "" and self.owner.lane(one) == lane)

    def _completed(self, state: State, offset: int, *, soft: bool) -> State:
        """A record completes, by its owner or by who has its run. `soft`: the store may still forget it."""
        soft = soft and self._restarts
        before = {one for one, _ in state.completed} | state.dropped
        lane = self.owner.lane(offset)
        for earlier in range(offset if lane else 0):
            if self.owner.lane(earlier) == lane and earlier not in before:
                return state._replace(broken=f"order: {self.name(offset)} completes before {self.name(earlier)}")
        if offset in before and self.setup.once:
            return state._replace(broken=f"once: {self.name(offset)} completes a second time, though nobody crashed")
        kept = tuple(one for one in state.completed if one[0] != offset or (soft and not one[1]))
        return state._replace(completed=(*kept, (offset, soft)))

    def broken(self, state: State) -> str:
        """The promise that doesn't hold in a state, or ""."""
        if state.broken:
            return state.broken
        view = self.snapshots.views[state.store]
        if view.queued > self.setup.bound:
            return f"bound: {view.queued} records are queued behind a head, more than {self.setup.bound}"
        runs = view.offsets
        completed = {offset for offset, _ in state.completed} | state.dropped
        for offset in (*range(state.committed), *state.map):
            if offset not in completed and offset not in runs:
                return f"nothing lost: Kafka counts {self.name(offset)} as complete, and nobody has it"
        return self._last_words(state) if self.is_end(state) else ""

    def is_end(self, state: State) -> bool:
        """All is committed and all lanes are home."""
        view = self.snapshots.views[state.store]
        if state.committed < self._end or view.runs or view.away:
            return False
        return not any(worker.bodies for worker in state.workers[state.owner : state.owner + 1])

    def _last_words(self, state: State) -> str:
        last: dict[str, int] = {}
        for offset, _ in state.completed:
            lane = self.owner.lane(offset)
            if lane and offset < last.get(lane, -1):
                return f"order: the last word of key {lane} is {self.name(offset)}'s, not {self.name(last[lane])}'s"
            last[lane] = offset
        return ""

    # states

    def _with(self, state: State, who: int, worker: Worker, sent: tuple[Call, ...] = ()) -> State:
        workers = (*state.workers[:who], worker, *state.workers[who + 1 :])
        net = _sorted((*state.net, *(Message(call, True) for call in sent))) if sent else state.net
        return state._replace(workers=workers, net=net)

    def _dropped(self, state: State, who: int) -> State:
        """A worker knows nothing of the partition any more; what it has sent may still arrive."""
        if state.workers[who].phase == "out" and not any(m.awaited and m.call[1] == who for m in state.net):
            return state
        net = _sorted(
            tuple(Message(m.call, False) if m.call[1] == who and m.call[0] != "finish" else m for m in state.net)
        )
        workers = (*state.workers[:who], Worker(), *state.workers[who + 1 :])
        return state._replace(net=net, workers=workers)

    def _with_executor(self, state: State, who: int, held: Any) -> State:
        return state._replace(executors=(*state.executors[:who], held, *state.executors[who + 1 :]))

    def _spent(self, state: State, fault: str) -> State:
        left = state.left._replace(**{fault: getattr(state.left, fault) - 1})
        return state._replace(left=left)

    def _text(self, call: Call) -> str:
        name = call[0]
        if name == "hand over":
            return f"hand-over of {self.name(call[3])}"
        if name == "come home":
            return f"question about {', '.join(self.name(offset) for _, offset in call[3])}"
        if name == "line up":
            return f"queueing of {', '.join(self.name(offset) for _, offsets in call[3] for offset in offsets)}"
        if name == "commit":
            return f"commit of {call[3]}"
        if name in ("prune", "pass"):
            return f"{name} under {call[3]}"
        return str(name)


def _sender(message: Message) -> str:
    prefix = "X" if message.call[0] == "finish" else "W"
    return (
        f"{prefix}{message.call[1] + 1}'s" if message.awaited else f"a late call of {prefix}{message.call[1] + 1}, its"
    )


def _sorted(net: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(sorted(net, key=repr))


def _with_floor(state: State, lane: str, offset: int) -> State:
    handed = {key: (floor, kept) for key, floor, kept in state.handed}
    floor, kept = handed.get(lane, (-1, -1))
    handed[lane] = max(floor, offset), kept
    return state._replace(handed=tuple(sorted((key, *floors) for key, floors in handed.items())))


def _lanes(worker: Worker) -> str:
    found = [f"{key} floor {floor} {'away' if away else 'home'}" for key, floor, away in worker.lanes]
    return ", ".join(found) or "none"
