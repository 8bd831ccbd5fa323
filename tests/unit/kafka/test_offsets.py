"""The offset tracker against a set-based model that is too slow and too plain to be wrong.

`PYRULA_OPERATIONS` sets how many random completions the long walk makes (3,000,000 take two or three minutes).
"""

import os
import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrula.kafka.offsets import OffsetTracker, Range

OPERATIONS = int(os.environ.get("PYRULA_OPERATIONS", "15000"))

# Windows around the sizes of machine words and of the tracker's own trimming.
WINDOWS = (1, 2, 63, 64, 65, 1000, 4095, 4096, 4097)


class Model:
    """What the tracker must say, from sets of single offsets."""

    def __init__(self, position: int, done_ranges: Iterable[Range] = ()) -> None:
        self.position = position
        self.map = {offset for start, end in done_ranges for offset in range(start, end) if offset >= position}
        self.undone: set[int] = set()
        self.done: set[int] = set()

    def extend(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            (self.done if offset in self.map else self.undone).add(offset)
            self.position = offset + 1

    def complete(self, offset: int) -> None:
        if offset in self.undone:
            self.undone.remove(offset)
            self.done.add(offset)

    def advance(self, position: int) -> None:
        self.position = max(self.position, position)

    def committable(self) -> int:
        return min(self.undone, default=self.position)

    def claimed(self) -> set[int]:
        """Offsets of records that must be in done_above; gaps may be in it or not."""
        base = self.committable()
        return {offset for offset in self.done if offset > base} | {o for o in self.map if o >= self.position}


def agree(tracker: OffsetTracker, model: Model) -> None:
    base = model.committable()
    assert tracker.committable() == base
    assert tracker.oldest() == min(model.undone, default=None)
    assert tracker.unfinished == len(model.undone)
    assert tracker.position == model.position
    assert tracker.span == model.position - base
    assert tracker.has_map == any(offset >= model.position for offset in model.map)


def agree_on_ranges(tracker: OffsetTracker, model: Model) -> None:
    ranges = tracker.done_above()
    wanted = model.claimed()
    for start, end in ranges:
        assert start < end
        assert start in wanted, "a range begins with a record that is done"
        assert end - 1 in wanted, "a range ends with a record that is done"
    for (_, end), (start, _) in pairwise(ranges):
        assert end < start, "ranges ascend and don't touch"
    claimed = {offset for start, end in ranges for offset in range(start, end)}
    assert wanted <= claimed
    assert not claimed & model.undone
    beyond = {offset for offset in claimed if offset >= model.position}
    assert beyond == {offset for offset in model.map if offset >= model.position}


ranges_of_map = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 30)), max_size=6).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)
batches = st.lists(st.integers(1, 4), min_size=1, max_size=70)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("read"), batches),
        st.tuples(st.just("complete"), st.integers(0, 10_000)),
        st.tuples(st.just("again"), st.integers(0, 10_000)),
        st.tuples(st.just("unknown"), st.integers(-50, 400)),
        st.tuples(st.just("advance"), st.integers(-5, 40)),
        st.tuples(st.just("ranges"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100), ranges_of_map, operations)
def test_any_history_agrees_with_the_model(position: int, done: list[Range], history: list[tuple[str, object]]) -> None:
    tracker, model = OffsetTracker(position, done), Model(position, done)
    for name, argument in history:
        if name == "read":
            assert isinstance(argument, list)
            offset, offsets = model.position - 1, []
            for distance in argument:
                offset += distance
                offsets.append(offset)
            tracker.extend(offsets)
            model.extend(offsets)
        elif name == "ranges":
            agree_on_ranges(tracker, model)
        else:
            assert isinstance(argument, int)
            if name == "advance":
                tracker.advance(model.position + argument)
                model.advance(model.position + argument)
                continue
            known = sorted(model.undone if name == "complete" else model.done)
            offset = argument if name == "unknown" else (known[argument % len(known)] if known else 0)
            tracker.complete([offset])
            model.complete(offset)
        agree(tracker, model)
    agree_on_ranges(tracker, model)


@given(st.integers(0, 100), ranges_of_map, st.integers(0, 200))
def test_is_done_is_what_the_map_said(position: int, done: list[Range], offset: int) -> None:
    model = Model(position, done)
    assert OffsetTracker(position, done).is_done(offset) == (offset in model.map)


def test_a_long_random_walk_agrees_with_the_model() -> None:
    """Random completions in windows of every interesting size, with gaps, and with rebuilt trackers now and then."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    completed = assignment = 0
    while completed < OPERATIONS:
        assignment += 1
        window = rng.choice(WINDOWS)
        base = rng.choice((0, 1, 63, 64, 65, 4095, 4096, 1 << 40, rng.randrange(10_000)))
        tracker, model = OffsetTracker(base), Model(base)
        undone: list[int] = []
        for turn in range(rng.randrange(50, 400)):
            while len(undone) < window and (not undone or rng.random() < 0.95):
                gap = rng.choice((0, 0, 0, 0, 1, 2, 70))
                batch = range(model.position + gap, model.position + gap + rng.randrange(1, min(window, 70) + 1))
                tracker.extend(batch)
                model.extend(batch)
                undone.extend(batch)
            for _ in range(rng.randrange(1, 1 + len(undone))):
                # Mostly near the front, as it is in life, sometimes anywhere; the front itself may stay for long.
                at = min(int(rng.expovariate(0.1)) + rng.randrange(2), len(undone) - 1)
                if rng.random() < 0.2:
                    at = rng.randrange(len(undone))
                undone[at], undone[-1] = undone[-1], undone[at]
                offset = undone.pop()
                tracker.complete([offset])
                model.complete(offset)
                completed += 1
                if not undone:
                    break
            assert tracker.committable() == model.committable(), f"seed {seed}, assignment {assignment}, turn {turn}"
            if turn % 16 == 0:
                agree(tracker, model)
                agree_on_ranges(tracker, model)
                base = model.committable()
                model.done = {offset for offset in model.done if offset > base}
            if completed >= OPERATIONS:
                break


@pytest.mark.parametrize("window", [63, 64, 65, 4095, 4096, 4097, 10_000])
def test_a_window_completed_backwards_is_committed_at_once(window: int) -> None:
    tracker = OffsetTracker(100)
    tracker.extend(range(100, 100 + window))
    for offset in range(100 + window - 1, 100, -1):
        tracker.complete([offset])
        assert tracker.committable() == 100
    assert tracker.done_above() == [(101, 100 + window)]
    tracker.complete([100])
    assert tracker.committable() == 100 + window
    assert tracker.done_above() == []
    assert tracker.unfinished == 0


def test_gaps_hold_nothing_up() -> None:
    tracker = OffsetTracker(0)
    tracker.extend([3, 7, 8, 20])
    assert tracker.committable() == 3
    tracker.complete([3])
    assert tracker.committable() == 7
    tracker.complete([8])
    assert tracker.done_above() == [(8, 9)]
    tracker.complete([20])
    assert tracker.done_above() == [(8, 21)], "the hole between 8 and 20 costs no range of its own"
    tracker.complete([7])
    assert tracker.committable() == 21
    tracker.advance(30)
    assert tracker.committable() == 30, "markers at the end of a log are passed"


def test_a_gap_between_undone_records_is_no_range() -> None:
    tracker = OffsetTracker(0)
    tracker.extend(range(0, 20_000, 2))
    assert tracker.done_above() == []
    tracker.complete([19_998])
    assert tracker.done_above() == [(19_998, 19_999)]


def test_a_partition_of_markers_only_is_committed_to_its_end() -> None:
    tracker = OffsetTracker(5)
    tracker.advance(9)
    assert tracker.committable() == 9
    assert tracker.span == 0
    tracker.advance(7)
    assert tracker.committable() == 9, "the position never goes back"


def test_a_commit_soon_after_a_restart_forgets_nothing() -> None:
    first = OffsetTracker(0)
    first.extend(range(5001))
    for offset in range(1, 5001):
        first.complete([offset])
    assert first.committable() == 0
    assert first.done_above() == [(1, 5001)]

    second = OffsetTracker(0, first.done_above())
    assert second.done_above() == [(1, 5001)], "before anything is read"
    second.extend(range(100))
    assert [offset for offset in range(100) if not second.is_done(offset)] == [0]
    assert second.done_above() == [(1, 5001)], "and while it is being read"
    assert second.unfinished == 1
    second.complete([0])
    assert second.committable() == 100
    assert second.done_above() == [(100, 5001)]
    second.extend(range(100, 5003))
    assert second.committable() == 5001
    assert not second.has_map


def test_completing_what_was_never_read_changes_nothing() -> None:
    tracker = OffsetTracker(10)
    tracker.extend([10, 12])
    for offset in (9, 11, 13, 10_000_000, -1):
        tracker.complete([offset])
    assert tracker.committable() == 10
    assert tracker.done_above() == []
    assert tracker.unfinished == 2


def test_completing_twice_is_completing_once() -> None:
    tracker = OffsetTracker(0)
    tracker.extend([0, 1])
    tracker.complete([1])
    tracker.complete([1])
    assert tracker.unfinished == 1
    tracker.complete([0])
    tracker.complete([0])
    assert tracker.committable() == 2


def test_records_behind_the_position_are_refused() -> None:
    tracker = OffsetTracker(10)
    tracker.extend([])
    tracker.add(10)
    with pytest.raises(ValueError, match="offset 10 was read after position 11"):
        tracker.add(10)
    tracker.advance(20)
    with pytest.raises(ValueError, match="offset 19"):
        tracker.extend([19, 20])
    assert tracker.committable() == 10


def test_memory_follows_the_window_and_not_the_history() -> None:
    tracker = OffsetTracker(0)
    for start in range(0, 1_000_000, 500):
        tracker.extend(range(start, start + 500))
        for offset in range(start, start + 500):
            tracker.complete([offset])
        assert tracker.committable() == start + 500
        assert len(tracker._added) <= 2 * 4096


def test_memory_follows_the_window_also_when_some_record_is_always_undone() -> None:
    tracker = OffsetTracker(0)
    for offset in range(100_000):
        tracker.add(offset)
        tracker.complete([offset - 10])
        assert tracker.committable() == max(0, offset - 9)
        assert len(tracker._added) <= 2 * 4096
