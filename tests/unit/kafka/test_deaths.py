"""Marks: what is charged to whom, what is forgotten, and when a partition is careful."""

import pytest

from pyrula.kafka.deaths import ALONE_AFTER, CAREFUL_AT_ONCE, CONDEMNED_AFTER, MARK_INDEX, Mark, read_mark, read_marks
from pyrula.workflows.replay.journal import Entry, encode_row
from pyrula.workflows.store.port import Claim, Row, Token

PRINT = "1.2.3"


def claim(*rows: Row, crashes: int = 0, crashed: bool = False) -> Claim:
    return Claim(Token(1, 1), crashes=crashes, crashed=crashed, rows=list(rows))


def marked(position: int, mark: Mark, fingerprint: str = PRINT) -> Row:
    return Row(position, MARK_INDEX, mark.row(fingerprint))


def journaled(position: int, index: int) -> Row:
    return Row(position, index, encode_row(Entry("value", "1", "step", "s", 1, None, b"1"), PRINT))


def test_a_claim_without_marks_or_crashes_needs_none() -> None:
    rows = [journaled(5, 0)]
    assert read_marks(claim(*rows, crashes=1, crashed=True)) == (None, rows)


def test_two_crashes_make_a_partition_careful_until_a_commit_moves_on() -> None:
    marks, _ = read_marks(claim(crashes=2, crashed=True))
    assert marks is not None
    assert marks.careful
    assert marks.concerns(7)
    assert marks.room(CAREFUL_AT_ONCE - 1) == 1
    assert marks.room(CAREFUL_AT_ONCE) == 0
    assert marks.moved_on(1) is None


def test_marks_are_kept_apart_from_the_journal_and_survive_their_row() -> None:
    mark = Mark(deaths=2, alone=1, running="alone", journaled=4)
    assert read_mark(mark.row(PRINT)) == (mark, PRINT)
    assert Mark().row(PRINT) == b""
    marks, rows = read_marks(claim(marked(5, mark), journaled(5, 0)))
    assert rows == [journaled(5, 0)]
    assert marks is not None
    assert marks.of(5, PRINT) == Mark(deaths=2, alone=1, journaled=4)
    # of another log's record nothing is known
    assert marks.of(5, "9.9.9") == Mark()


@pytest.mark.parametrize(
    ("mark", "rows", "charged"),
    [
        (Mark(running="beside"), 0, Mark(deaths=1)),
        (Mark(deaths=2, running="beside", journaled=3), 3, Mark(deaths=3, journaled=3)),
        (Mark(deaths=3, running="alone"), 0, Mark(deaths=3, alone=1)),
        # it got further since it was marked
        (Mark(deaths=3, alone=1, running="alone", journaled=3), 4, Mark()),
        # it wasn't in progress
        (Mark(deaths=2, alone=1), 0, Mark(deaths=2, alone=1)),
    ],
)
def test_a_death_is_charged_to_what_was_in_progress(mark: Mark, rows: int, charged: Mark) -> None:
    assert mark.charged(rows) == charged
    found = claim(marked(9, mark), *(journaled(9, index) for index in range(rows)), crashes=3, crashed=True)
    marks, _ = read_marks(found)
    assert marks is not None
    assert marks.of(9, PRINT) == charged
    # written back, so that it isn't charged again to a record that hasn't been started since
    assert marks.changed == ([] if charged == mark else [Row(9, MARK_INDEX, charged.row(PRINT))])


def test_nothing_is_charged_after_a_release_or_by_a_process_that_lives() -> None:
    for crashes in (0, 2):
        marks, _ = read_marks(claim(marked(9, Mark(deaths=1, running="beside")), crashes=crashes))
        assert marks is not None
        assert marks.of(9, PRINT) == Mark(deaths=1)


def test_only_deaths_while_alone_condemn() -> None:
    mark = Mark()
    for _ in range(ALONE_AFTER):
        assert not mark.needs_solitude
        mark = Mark(mark.deaths, mark.alone, "beside").charged(0)
    assert mark.needs_solitude
    for _ in range(CONDEMNED_AFTER):
        assert not mark.condemned
        mark = Mark(mark.deaths, mark.alone, "alone").charged(0)
    assert mark.condemned


def test_charges_are_forgotten_with_the_commit_that_passes_them() -> None:
    marks, _ = read_marks(claim(marked(3, Mark(1)), marked(9, Mark(2)), crashes=2))
    assert marks is not None
    assert marks.moved_on(9) is marks
    assert marks.charged == 1
    assert not marks.careful
    assert marks.concerns(9)
    assert not marks.concerns(3)
    assert marks.moved_on(10) is None
