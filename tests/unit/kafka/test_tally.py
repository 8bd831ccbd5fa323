import logging

import pytest

from pyrula.kafka.tally import LINES, MINUTE, Tally


def test_the_first_cases_are_told_and_the_rest_of_the_minute_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally("letters")
    with caplog.at_level(logging.WARNING, "pyrula.kafka"):
        for number in range(LINES + 7):
            tally.tell(f"case {number}", 100.0 + number * 0.1)
        assert [record.message for record in caplog.records] == [f"case {number}" for number in range(LINES)]
        tally.tell("a new minute", 100.0 + MINUTE)
    assert [record.message for record in caplog.records[LINES:]] == [
        f"7 more letters within a minute; the last: case {LINES + 6}",
        "a new minute",
    ]


def test_what_was_counted_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally("letters")
    with caplog.at_level(logging.WARNING, "pyrula.kafka"):
        for number in range(LINES + 1):
            tally.tell(f"case {number}", 5.0)
        tally.flush()
        tally.flush()
    assert len(caplog.records) == LINES + 1
    assert caplog.records[-1].message == f"1 more letters within a minute; the last: case {LINES}"


def test_of_a_thousand_alike_the_advice_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally("records are held", logging.ERROR)
    with caplog.at_level(logging.WARNING, "pyrula.kafka"):
        for number in range(1_000):
            tally.tell(f"record {number}", 5.0, "deploy the former code")
        assert len(caplog.records) == LINES
        assert caplog.text.count("deploy the former code") == 1
        tally.tell("a new minute", 5.0 + MINUTE, "deploy the former code")
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert [record.message for record in caplog.records[LINES:]] == [
        f"{1_000 - LINES} more records are held within a minute; the last: record 999",
        "a new minute\ndeploy the former code",
    ]
