"""Rows of what is done: a round trip for any ranges, nothing written twice, nothing kept that was passed."""

from hypothesis import given
from hypothesis import strategies as st

from pyrula.kafka.done_rows import DONE_INDEX, DoneRows, split
from pyrula.workflows.store.port import Row

Offsets = st.sets(st.integers(0, 5_000), max_size=300)


def as_ranges(offsets: set[int]) -> list[tuple[int, int]]:
    return [(offset, offset + 1) for offset in sorted(offsets)]


def told(done: DoneRows) -> set[int]:
    return {offset for start, end in done.ranges() for offset in range(start, end)}


@given(first=Offsets, later=Offsets)
def test_what_is_written_is_read_again(first: set[int], later: set[int]) -> None:
    done = DoneRows()
    stored = {row.position: row for row in done.write(as_ranges(first))}
    stored |= {row.position: row for row in done.write(as_ranges(later))}
    assert told(DoneRows(stored.values())) == told(done) == first | later
    assert all(row.index == DONE_INDEX for row in stored.values())
    assert done.write(as_ranges(first | later)) == []


@given(offsets=Offsets)
def test_ranges_are_ascending_and_apart(offsets: set[int]) -> None:
    done = DoneRows()
    done.write(as_ranges(offsets))
    ranges = done.ranges()
    assert ranges == sorted(ranges)
    assert all(start < end for start, end in ranges)


def test_a_row_stands_at_its_last_offset_so_that_it_goes_when_all_of_it_is_passed() -> None:
    done = DoneRows()
    rows = done.write([(1000, 1030)])
    assert [row.position for row in rows] == [1023, 2047]
    done.passed(1024)
    assert done.ranges() == [(1024, 1030)]
    done.passed(2047)
    assert done.ranges() == [(1024, 1030)]


def test_rows_are_told_apart() -> None:
    (row,) = DoneRows().write([(5, 7)])
    other = Row(5, 0, b"[]")
    assert split([other, row]) == ([row], [other])
    assert split([other]) == ([], [other])
