from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel

from pyrula.workflows.likeness import NotPlain, difference, plain
from tests.unit.workflows.values import ANYTHING, Colour, Level, Line, Pixel, Point, Word, as_json_would, image


class Late(BaseModel):
    at: Any


@dataclass
class Half:
    left: int
    right: int


@given(ANYTHING, ANYTHING)
def test_no_difference_means_the_same_value(one: Any, two: Any) -> None:
    if difference(one, two) is None and difference(two, one) is None:
        assert image(one) == image(two)


@given(ANYTHING)
def test_a_value_is_like_itself(value: Any) -> None:
    assert difference(value, value) is None


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (1, True, ": a int comes back as a bool"),
        (1.0, 1, ": a float comes back as a int"),
        (1, 2, ": 1 comes back as 2"),
        (0.5, float("nan"), ": 0.5 comes back as nan"),
        ("a" * 100, "b", ": '" + "a" * 76 + "... comes back as 'b'"),
        ([1], (1,), ": a list comes back as a tuple"),
        ([1, [2, 3]], [1, [2, "3"]], "[1][1]: a int comes back as a str"),
        ([1], [1, 2], ": 1 items come back as 2"),
        ({"a": 1}, {}, ": 1 keys come back as 0"),
        ({"a": {"b": 1}}, {"a": {"b": 1.0, "c": 2}}, "['a']: 1 keys come back as 2"),
        ({"a": [1]}, {"a": [2]}, "['a'][0]: 1 comes back as 2"),
        ({1: "a"}, {True: "a"}, ": the key 1, a int, comes back as another"),
        ({"b": 1, "a": 2}, {"a": 2, "b": 3}, "['b']: 1 comes back as 3"),
        (Word.YES, "yes", ": a tests.unit.workflows.values.Word comes back as a str"),
        (Word.YES, Word.NO, ": <Word.YES: 'yes'> comes back as <Word.NO: 'no'>"),
        (Level.LOW, Level.HIGH, ": <Level.LOW: 1> comes back as <Level.HIGH: 2>"),
        ({1}, {True}, ": {1} comes back as {True}"),
        (Decimal("1.0"), Decimal("1.00"), ": Decimal('1.0') comes back as Decimal('1.00')"),
        (Line(sku="a"), Line(sku="b"), ".sku: 'a' comes back as 'b'"),
        (Point(1), Point(2), ".x: 1 comes back as 2"),
        (Pixel(1, 2), Pixel(1, 3), "[1]: 2 comes back as 3"),
        (Pixel(1, 2), [1, 2], ": a tests.unit.workflows.values.Pixel comes back as a list"),
        (Late(at=Word.YES), Late(at="yes"), ".at: a tests.unit.workflows.values.Word comes back as a str"),
    ],
)
def test_a_change_is_told_with_its_place(before: Any, after: Any, told: str) -> None:
    found = difference(before, after)
    assert found is not None
    assert found.startswith(told)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, (2,)), [1, [2]]),
        ((1, 2), [1, 2.0]),
        ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
        ({1: "a"}, {1.0: "a"}),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        (float("nan"), float("nan")),
        (Late(at=(1,)), Late(at=[1])),
        (Colour.RED, Colour.RED),
    ],
)
def test_what_is_let_through(before: Any, after: Any) -> None:
    assert difference(before, after) is None


def test_times_have_their_offset() -> None:
    noon = datetime(2025, 1, 1, 12, tzinfo=UTC)
    assert difference(noon, noon.replace(tzinfo=timezone(timedelta()))) is None
    assert difference(noon, noon.replace(tzinfo=None)) is not None
    assert difference(noon, noon.astimezone(timezone(timedelta(hours=1)))) is not None
    assert difference(time(1, tzinfo=UTC), time(1)) is not None
    assert difference(time(1), time(1)) is None


def test_an_attribute_that_is_gone_is_a_difference() -> None:
    after = Half(1, 2)
    del after.right
    found = difference(Half(1, 2), after)
    assert found is not None
    assert found.startswith(".right")


@given(ANYTHING)
def test_plain_is_what_json_would_give(value: Any) -> None:
    try:
        form = plain(value)
    except NotPlain:
        return
    assert image(form) == image(as_json_would(value))
