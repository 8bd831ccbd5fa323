"""The owner's rules, as `pyrula.kafka` keeps them: what a worker that has a partition does, and with which answers.

A worker is a value. Each function below is one step of it: it gives the worker after the step and the calls that it has
sent, which the world makes later, or never. A
rule that a mutant leaves out is asked for by its name in `without`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from tests.model.calls import Answer, Call

TAKEN, ENDED = -2, -1
"""On a board."""

Body: TypeAlias = str
"""Of a record in memory: "runs"; "handing" over, its call on the way; "woken", it runs and parks no more."""


class Worker(NamedTuple):
    """What a process knows of the partition. `phase` "out": nothing; then its way to "at work"."""

    phase: str = "out"
    generation: int = 0
    token: str = ""
    start: int = 0
    done: frozenset[int] = frozenset()
    lanes: tuple[tuple[str, int, bool], ...] = ()
    """Key, floor, away; as they were found, and as this worker has moved them."""
    bodies: tuple[tuple[int, Body], ...] = ()
    attended: tuple[tuple[int, int], ...] = ()
    """Positions that somebody may have addressed, with the number of the last change."""
    asked: tuple[Call, ...] = ()
    """Calls about its lanes that are on their way: one at most."""
    committing: tuple[int, frozenset[int]] | None = None
    told: tuple[int, frozenset[int]] | None = None
    """The last commit that was acknowledged."""
    pruned: int = 0
    pruning: str = ""
    journaled: bool = False

    @property
    def running(self) -> list[int]:
        return [offset for offset, stage in self.bodies if stage != "handing"]


Sent: TypeAlias = tuple[Call, ...]


class Owner:
    """The rules of a worker numbered `who` over a log of `keys`, one key for each offset ("-": null)."""

    def __init__(self, keys: str, bound: int, without: frozenset[str]) -> None:
        self.keys = keys
        self.bound = bound
        self.without = without
        self._end = len(keys)

    def lane(self, offset: int) -> str:
        """The name of an offset's lane; "" for a record that has no order."""
        key = self.keys[offset]
        return "" if key == "-" else key

    # assignment

    def assigned(self, who: int, generation: int) -> tuple[Worker, Sent]:
        """Claim first: from then on nobody else moves a floor."""
        if "claim before reading" in self.without:
            return Worker("reading", generation), ()
        return Worker("claiming", generation), (("claim", who, generation, ""),)

    def claimed(self, worker: Worker, answer: Answer) -> tuple[Worker, Sent]:
        phase = "claimed" if answer[0] == "claimed" else "stale"
        rows = answer[0] == "claimed" and bool(answer[2])
        return worker._replace(phase=phase, token=answer[1], journaled=rows), ()

    def confirmed(self, who: int, worker: Worker, committed: int, done: frozenset[int]) -> tuple[Worker, Sent]:
        """The group has taken back what it had told: this assignment is not stale."""
        if worker.phase == "stale":
            return worker._replace(phase="claiming"), (("claim", who, worker.generation, worker.token),)
        told = (committed, done)
        found = worker._replace(phase="registering", start=committed, done=done, told=told, pruned=committed)
        return found, (("register", who, worker.token, committed, "nothing"),)

    def registered(self, worker: Worker, answer: Answer) -> tuple[Worker, Sent]:
        board = dict(answer[1])
        over = frozenset(offset for offset, count in board.items() if count in (TAKEN, ENDED))
        if "marks" in self.without or "claim before reading" in self.without:
            over = frozenset()
        found = worker._replace(
            phase="reading", done=worker.done | over, attended=tuple((offset, 0) for offset in sorted(board))
        )
        return (self.knows(found, found.lanes) if "claim before reading" in self.without else found), ()

    def read(self, who: int, worker: Worker, answer: Answer) -> tuple[Worker, Sent]:
        """The lanes are read after the claim."""
        if "claim before reading" in self.without:
            return worker._replace(phase="claiming", lanes=answer[1]), (("claim", who, worker.generation, ""),)
        return self.knows(worker, answer[1]), ()

    def knows(self, worker: Worker, lanes: tuple[tuple[str, int, bool], ...]) -> Worker:
        """What of the log is at or under a floor is complete; then it begins."""
        done = set(worker.done)
        if "floors" not in self.without:
            floors = {key: floor for key, floor, _ in lanes}
            done |= {offset for offset in range(self._end) if offset <= floors.get(self.lane(offset) or "?", -1)}
        return worker._replace(phase="at work", lanes=lanes, done=frozenset(done))

    # records

    def heads(self, worker: Worker) -> Iterator[int]:
        """The next record of each lane; those without a lane, each."""
        seen = set()
        for offset in range(worker.start, self._end):
            lane = self.lane(offset)
            if offset in worker.done or (lane and lane in seen):
                continue
            seen.add(lane)
            yield offset

    def away(self, worker: Worker, lane: str) -> bool:
        return any(key == lane and away for key, _, away in worker.lanes)

    def may_start(self, worker: Worker) -> list[int]:
        """Heads that may run here: nothing of their lane runs, and it is home."""
        bodies = dict(worker.bodies)
        asked = {lane for call in worker.asked for lane, _ in call[3]}
        found = []
        for offset in self.heads(worker):
            lane = self.lane(offset)
            if offset in bodies or (
                lane and ((self.away(worker, lane) and "away" not in self.without) or lane in asked)
            ):
                continue
            found.append(offset)
        return found

    def starts(self, worker: Worker, offset: int) -> Worker:
        return _with_body(worker, offset, "runs")

    def completes(self, worker: Worker, offset: int) -> Worker:
        return _with_body(worker, offset, None)._replace(done=worker.done | {offset})

    def number(self, worker: Worker, offset: int) -> int | None:
        """The number of its next change, if others may know of the run."""
        return dict(worker.attended).get(offset)

    def changed(self, worker: Worker, offset: int) -> Worker:
        """One change more was written of a run."""
        attended = dict(worker.attended)
        attended[offset] = attended.get(offset, 0) + 1
        return worker._replace(attended=tuple(sorted(attended.items())), journaled=True)

    def hands_over(self, who: int, worker: Worker, offset: int, *, failed: bool = False) -> tuple[Worker, Sent]:
        """The run stands still, or has failed and blocks its lane: it goes to the store, and is complete once that is
        answered."""
        found = _with_body(worker, offset, "handing")
        if "complete when durable" in self.without:
            found = self._gone(found, offset)
        return found, (("hand over", who, worker.token, offset, self.lane(offset), 0, failed),)

    def handed_over(self, worker: Worker, offset: int, answer: Answer) -> Worker:
        if answer[0] == "taken":
            return self._gone(_with_body(worker, offset, None), offset)
        return _with_body(worker, offset, "woken")

    def _gone(self, worker: Worker, offset: int) -> Worker:
        """The record is complete; its lane goes along."""
        found = worker._replace(done=worker.done | {offset})
        lane = self.lane(offset)
        return _with_lane(found, lane, offset, "lane goes along" not in self.without) if lane else found

    def asks(self, who: int, worker: Worker) -> tuple[Worker, Sent]:
        """Of each lane that is away and has a record waiting: one call on its way at a time."""
        waiting = tuple((self.lane(o), o) for o in self.heads(worker) if self.away(worker, self.lane(o)))
        if not waiting or worker.asked:
            return worker, ()
        call = "come home", who, worker.token, waiting
        return worker._replace(asked=(call,)), (call,)

    def answered(self, worker: Worker, asked: tuple[tuple[str, int], ...], answers: Answer) -> Worker:
        found = worker
        for (lane, offset), answer in zip(asked, answers, strict=True):
            if answer == "taken":
                found = self._in_store(found, lane, (offset,))
            elif answer == "home":
                found = self._home(found, lane)
        return found

    def lines_up(self, who: int, worker: Worker) -> Iterator[tuple[Worker, Sent]]:
        """What waits behind heads goes to the store, the first of each lane or all of it. When is a policy, so it is
        tried at every moment. What has begun before waits here until the lane is home."""
        if not self.bound:
            return
        if "one call at a time" in self.without:
            yield from self._line_up_singly(who, worker)
            return
        if worker.asked:
            return
        lines = []
        for head in self.heads(worker):
            lane = self.lane(head)
            if self.away(worker, lane) and (offsets := self._fresh_line(worker, lane, head)):
                lines.append((lane, offsets))
        for most in dict.fromkeys((1, self._end)):
            sent = tuple((lane, offsets[:most]) for lane, offsets in lines)
            if sent and (most == 1 or sent != tuple((lane, offsets[:1]) for lane, offsets in lines)):
                call = "line up", who, worker.token, sent, self.bound
                yield worker._replace(asked=(call,)), (call,)

    def _fresh_line(self, worker: Worker, lane: str, head: int) -> tuple[int, ...]:
        begun = dict(worker.attended)
        found = []
        for offset in range(head, self._end):
            if self.lane(offset) == lane and offset not in worker.done:
                if offset in begun:
                    break
                found.append(offset)
        return tuple(found)

    def _line_up_singly(self, who: int, worker: Worker) -> Iterator[tuple[Worker, Sent]]:
        if any(call[0] == "come home" for call in worker.asked):
            return
        sent = {offset for call in worker.asked for _, offsets in call[3] for offset in offsets}
        for offset in range(worker.start, self._end):
            if offset not in worker.done and offset not in sent and self.away(worker, self.lane(offset)):
                call = "line up", who, worker.token, ((self.lane(offset), (offset,)),), self.bound
                yield worker._replace(asked=(*worker.asked, call)), (call,)
                return

    def lined_up(self, worker: Worker, lines: tuple[tuple[str, tuple[int, ...]], ...], answers: Answer) -> Worker:
        found = worker
        for (lane, offsets), (taken, rest) in zip(lines, answers, strict=True):
            found = self._in_store(found, lane, offsets[:taken])
            if rest == "home":
                found = self._home(found, lane)
        return found

    def _in_store(self, worker: Worker, lane: str, offsets: tuple[int, ...]) -> Worker:
        """These are in the store, or done: they are complete."""
        if not offsets:
            return worker
        floor = max([offsets[-1], *(floor for key, floor, _ in worker.lanes if key == lane)])
        return _with_lane(worker._replace(done=worker.done | set(offsets)), lane, floor, self.away(worker, lane))

    def _home(self, worker: Worker, lane: str) -> Worker:
        floor = next((floor for key, floor, away in worker.lanes if key == lane and away), None)
        return worker if floor is None else _with_lane(worker, lane, floor, False)

    def told_home(self, worker: Worker, lane: str) -> Worker:
        """Only where the store's word isn't what counts: a message said that a lane's head has ended."""
        return self._home(worker, lane)

    # commits

    def committable(self, worker: Worker) -> tuple[int, frozenset[int]]:
        upto = worker.start
        while upto in worker.done:
            upto += 1
        return upto, frozenset(offset for offset in worker.done if offset > upto)

    def commits(self, who: int, worker: Worker) -> tuple[Worker, Sent]:
        upto = self.committable(worker)
        if worker.committing is not None or upto == worker.told:
            return worker, ()
        found = worker._replace(committing=upto)
        if "prune after the commit" in self.without:
            found = found._replace(told=upto)
        return found, (("commit", who, worker.generation, *upto),)

    def acknowledged(self, worker: Worker, accepted: bool) -> Worker:
        found = worker._replace(committing=None, told=worker.committing if accepted else worker.told)
        if accepted and not found.pruning and not self._to_prune(found):
            assert found.told is not None
            found = found._replace(pruned=found.told[0])
        return found

    def _to_prune(self, worker: Worker) -> bool:
        """Whether the store has anything of this partition that a commit may pass."""
        return worker.journaled or bool(worker.attended) or bool(worker.lanes)

    def prunes(self, who: int, worker: Worker) -> tuple[Worker, Sent]:
        """What an acknowledged commit has passed goes from the store: rows first, then board and lanes."""
        assert worker.told is not None
        below = worker.told[0]
        if worker.pruning or below <= worker.pruned:
            return worker, ()
        if worker.journaled:
            return worker._replace(pruning="rows"), (("prune", who, worker.token, below),)
        return self._passes(who, worker, below)

    def _passes(self, who: int, worker: Worker, below: int) -> tuple[Worker, Sent]:
        positions = tuple(offset for offset in _counts(worker) if offset < below)
        under = any(floor < below and not away for _, floor, away in worker.lanes)
        if not (positions or under):
            return worker._replace(pruning="", pruned=below), ()
        return worker._replace(pruning="board", pruned=below), (("pass", who, worker.token, below, positions),)

    def pruned(self, who: int, worker: Worker, below: int) -> tuple[Worker, Sent]:
        return self._passes(who, worker, below)

    def passed(self, worker: Worker, positions: tuple[int, ...], gone: tuple[str, ...]) -> Worker:
        left = tuple(pair for pair in worker.attended if pair[0] not in positions)
        lanes = tuple(lane for lane in worker.lanes if lane[2] or lane[0] not in gone)
        return worker._replace(pruning="", attended=left, lanes=lanes)

    # answers

    def on_answer(self, worker: Worker, call: Call, answer: Answer) -> tuple[Worker, Sent]:
        """What a call came to. A token that was superseded ends the assignment here."""
        name, who, *arguments = call
        if answer == ("lost",):
            return Worker(), ()
        if name == "claim":
            return self.claimed(worker, answer)
        if name == "register":
            return self.registered(worker, answer)
        if name == "hand over":
            return self.handed_over(worker, arguments[1], answer), ()
        if name == "come home":
            return self.answered(_without_call(worker, call), arguments[1], answer), ()
        if name == "line up":
            return self.lined_up(_without_call(worker, call), arguments[1], answer), ()
        if name == "prune":
            return self.pruned(who, worker, arguments[1])
        if name == "pass":
            return self.passed(worker, arguments[2], answer[1]), ()
        if name == "head ended":
            return self.told_home(worker, arguments[0]), ()
        if name == "commit":
            return self.acknowledged(worker, answer == ("committed",)), ()
        raise ValueError(f"nobody waits for an answer to {name}")

    def holder(self, who: int, worker: Worker) -> str:
        """Who numbers the changes: one assignment of one process."""
        return f"h{who}.{worker.generation}"


def _counts(worker: Worker) -> list[int]:
    return [offset for offset, _ in worker.attended]


def _without_call(worker: Worker, call: Call) -> Worker:
    return worker._replace(asked=tuple(one for one in worker.asked if one != call))


def _with_body(worker: Worker, offset: int, stage: Body | None) -> Worker:
    bodies = dict(worker.bodies)
    if stage is None:
        bodies.pop(offset, None)
    else:
        bodies[offset] = stage
    return worker._replace(bodies=tuple(sorted(bodies.items())))


def _with_lane(worker: Worker, lane: str, floor: int, away: bool) -> Worker:
    lanes: dict[str, Any] = {key: (floor, away) for key, floor, away in worker.lanes}
    lanes[lane] = (floor, away)
    return worker._replace(lanes=tuple(sorted((key, *state) for key, state in lanes.items())))
