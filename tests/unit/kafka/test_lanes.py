from collections import defaultdict, deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.kafka.lanes import Lanes


class Item(NamedTuple):
    key: bytes | None
    number: int


def test_key_order_runs_keys_beside_each_other_and_each_key_in_turn() -> None:
    lanes: Lanes[Item] = Lanes("key")
    lanes.extend([Item(b"a", 0), Item(b"a", 1), Item(b"b", 2)])
    assert list(lanes.ready) == [Item(b"a", 0), Item(b"b", 2)]
    lanes.ready.clear()
    lanes.leave([Item(b"a", 0)])
    assert list(lanes.ready) == [Item(b"a", 1)]
    lanes.ready.clear()
    lanes.leave([Item(b"a", 1)])
    assert not lanes.ready
    assert len(lanes) == 1


def test_null_keys_have_no_order_but_empty_ones_do() -> None:
    lanes: Lanes[Item] = Lanes("key")
    lanes.extend([Item(None, 0), Item(None, 1), Item(b"", 2), Item(b"", 3)])
    assert [item.number for item in lanes.ready] == [0, 1, 2]
    lanes.leave([Item(None, 0)])
    assert [item.number for item in lanes.ready] == [0, 1, 2]


def test_partition_order_is_one_lane_null_keys_included() -> None:
    lanes: Lanes[Item] = Lanes("partition")
    lanes.extend([Item(b"a", 0), Item(None, 1), Item(b"b", 2)])
    assert [item.number for item in lanes.ready] == [0]


def test_unordered_holds_nothing_back() -> None:
    lanes: Lanes[Item] = Lanes("unordered")
    lanes.extend([Item(b"a", 0), Item(b"a", 1)])
    assert [item.number for item in lanes.ready] == [0, 1]
    assert len(lanes) == 0


def test_a_line_goes_without_its_records_having_run() -> None:
    lanes: Lanes[Item] = Lanes("key")
    lanes.extend([Item(b"a", number) for number in range(5)] + [Item(b"b", 5)])
    head = lanes.ready.popleft()
    assert [item.number for item in lanes.line(head)] == [0, 1, 2, 3, 4]
    assert [item.number for item in lanes.line(Item(b"b", 5))] == [5]
    following = lanes.advance(head, 3)
    assert following == Item(b"a", 3)
    assert [item.number for item in lanes.line(following)] == [3, 4]
    lanes.extend([Item(b"a", 6)])
    assert [item.number for item in lanes.ready] == [5]
    assert lanes.advance(following, 2) == Item(b"a", 6)
    assert lanes.advance(Item(b"a", 6), 1) is None
    assert len(lanes) == 1
    lanes.extend([Item(b"a", 7)])
    assert [item.number for item in lanes.ready] == [5, 7]


def test_clear_forgets_lanes_whose_head_still_runs() -> None:
    lanes: Lanes[Item] = Lanes("key")
    lanes.extend([Item(b"a", 0), Item(b"a", 1)])
    lanes.clear()
    assert not lanes.ready
    assert len(lanes) == 0


@given(
    st.sampled_from(["key", "partition", "unordered"]),
    st.lists(st.sampled_from([None, b"", b"a", b"b", b"c"]), max_size=60),
    st.randoms(use_true_random=False),
)
def test_any_schedule_runs_everything_once_and_each_lane_in_order(ordering, keys, random) -> None:
    lanes: Lanes[Item] = Lanes(ordering)
    arriving = deque(Item(key, number) for number, key in enumerate(keys))
    running: list[Item] = []
    ended: dict[object, list[int]] = defaultdict(list)
    while arriving or running or lanes.ready:
        choice = random.randrange(3)
        if choice == 0 and arriving:
            count = random.randrange(1, 4)
            lanes.extend([arriving.popleft() for _ in range(min(count, len(arriving)))])
        elif choice == 1 and lanes.ready:
            item = lanes.ready.popleft()
            name = lanes.name(item.key)
            assert name is None or all(lanes.name(other.key) != name for other in running)
            running.append(item)
        elif running:
            item = running.pop(random.randrange(len(running)))
            name = lanes.name(item.key)
            ended[name].append(item.number)
            lanes.leave([item])
    assert sorted(number for numbers in ended.values() for number in numbers) == list(range(len(keys)))
    assert len(lanes) == 0
    for name, numbers in ended.items():
        if name is not None:
            assert numbers == sorted(numbers)


def test_an_unknown_lane_is_a_bug_and_said_so() -> None:
    lanes: Lanes[Item] = Lanes("key")
    with pytest.raises(KeyError):
        lanes.leave([Item(b"never", 0)])
