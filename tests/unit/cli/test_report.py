import io

import pytest

from pyrula.cli.dev.report import Bar, line_of, short
from pyrula.cli.dev.shown import Place
from pyrula.cli.problem import Problem
from pyrula.kafka.events import RecordEvent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_redrawn_in_place_on_a_terminal() -> None:
    terminal = Terminal()
    bar = Bar(terminal)
    bar.show(0, 1000, 0.0)
    bar.show(500, 1000, 1234.5)
    bar.end()
    first, second = terminal.getvalue().split("\r")[1:]
    assert "0 of 1,000 (0%)" in first
    assert second.startswith("█" * 15 + "░" * 15)
    assert second.rstrip(" ").endswith("500 of 1,000 (50%)  1,234/s\n")


class OldTerminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_terminal_without_blocks_gets_signs() -> None:
    raw = io.BytesIO()
    terminal = OldTerminal(raw, encoding="ascii")
    bar = Bar(terminal)
    bar.show(1, 2, 1.0)
    bar.end()
    assert b"#" * 15 + b"-" * 15 in raw.getvalue()


def test_elsewhere_it_is_a_line_every_tenth() -> None:
    file = io.StringIO()
    bar = Bar(file)
    for done in range(0, 1001, 50):
        bar.show(done, 1000, 10.0)
    bar.end()
    lines = file.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1] == "1,000 of 1,000 records (100%), 10/s"
    assert "\r" not in file.getvalue()


def test_an_empty_session_has_a_bar_too() -> None:
    Bar(Terminal()).show(0, 0, 0.0)


def test_an_event_is_one_line_whatever_the_error_holds() -> None:
    event = RecordEvent("dead_lettered", "g/t", "t", 1, 7, b"k\xff", "id", 1, "ValueError: a\nb " + "x" * 500)
    line = line_of(event, several=False)
    assert "\n" not in line
    assert line.startswith("t/1@7 ")
    assert "dead-lettered" in line
    assert len(line) < 200


def test_short_keeps_what_fits() -> None:
    assert short("a  b\nc") == "a b c"
    assert short("abcdef", 4) == "abc…"


def test_a_place_is_printed_as_it_is_given() -> None:
    place = Place.parse("orders/3@17", ["orders", "other"])
    assert place == ("orders", 3, 17)
    assert str(place) == "orders/3@17"


def test_a_place_may_be_in_a_topic_that_runs_send_to() -> None:
    assert Place.parse("receipts/3@17", ["orders", "other"]) == ("receipts", 3, 17)


def test_the_topic_may_be_left_out_when_there_is_only_one() -> None:
    assert Place.parse("3@17", ["orders"]) == ("orders", 3, 17)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("17", "like orders/0@17"),
        ("3@17", "the topics are orders, other"),
        ("ordrs/3@17", "the topics are orders, other"),
    ],
)
def test_a_wrong_place_says_how_one_looks(text: str, said: str) -> None:
    with pytest.raises(Problem) as problem:
        Place.parse(text, ["orders", "other"])
    assert said in str(problem.value)
