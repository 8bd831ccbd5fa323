"""Annotations with values that fit them, for hypothesis; and when two values are the same, told without likeness."""

import enum
import math
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, Optional, Union
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Word(str, enum.Enum):  # noqa: UP042 - as people write it
    YES = "yes"
    NO = "no"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Line(BaseModel):
    sku: str
    count: int = 1
    price: Decimal = Decimal("1.10")


class Order(BaseModel):
    id: UUID
    lines: list[Line] = Field(default_factory=list, alias="orderLines")
    at: datetime | None = None
    colours: dict[int, Colour] = {}

    model_config = {"populate_by_name": True}


@dataclass
class Point:
    x: int
    y: float = 0.0
    tags: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Pair:
    left: Point
    right: Point | None


class Pixel(NamedTuple):
    x: int
    y: int


class Address(TypedDict, total=False):
    street: str
    number: int


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
ZONES = st.none() | st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)

LINES = st.builds(Line, sku=TEXT, count=INT64, price=DECIMALS)
ORDERS = st.builds(
    Order,
    id=st.uuids(),
    lines=st.lists(LINES, max_size=2),
    at=st.none() | st.datetimes(timezones=ZONES),
    colours=st.dictionaries(INT64, st.sampled_from(Colour), max_size=2),
)
POINTS = st.builds(Point, x=INT64, y=FINITE, tags=st.lists(TEXT, max_size=2).map(tuple))
ADDRESSES: Any = st.fixed_dictionaries({}, optional={"street": TEXT, "number": INT64})

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: INT64,
    bool: st.booleans(),
    float: FINITE,
    None: st.none(),
    bytes: st.binary(max_size=8),
    Decimal: DECIMALS,
    datetime: st.datetimes(timezones=ZONES),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    UUID: st.uuids(),
    PurePosixPath: st.sampled_from([PurePosixPath("/a/b"), PurePosixPath("c")]),
    Colour: st.sampled_from(Colour),
    Word: st.sampled_from(Word),
    Level: st.sampled_from(Level),
    Literal["a", 1, True]: st.sampled_from(["a", 1, True]),
    Line: LINES,
    Order: ORDERS,
    Point: POINTS,
    Pair: st.builds(Pair, left=POINTS, right=st.none() | POINTS),
    Pixel: st.builds(Pixel, INT64, INT64),
    Address: ADDRESSES,
}
# An Enum whose value is an int, such as Colour.RED, is a text as a key in JSON, and refused.
KEYS: tuple[Any, ...] = (str, int, bool, Decimal, date, UUID, Word, Level, bytes)

Case = tuple[Any, st.SearchStrategy[Any]]


def _of(leaf: Any) -> Case:
    return leaf, LEAVES[leaf]


def _container(cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    keys = st.sampled_from(KEYS).map(_of)
    return st.one_of(
        cases.map(lambda case: (list[case[0]], st.lists(case[1], max_size=3))),
        cases.map(lambda case: (tuple[case[0], ...], st.lists(case[1], max_size=3).map(tuple))),
        st.tuples(cases, cases).map(lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))),
        st.tuples(keys, cases).map(
            lambda two: (dict[two[0][0], two[1][0]], st.dictionaries(two[0][1], two[1][1], max_size=3))
        ),
        keys.map(lambda case: (set[case[0]], st.sets(case[1], max_size=3))),
        keys.map(lambda case: (frozenset[case[0]], st.frozensets(case[1], max_size=3))),
        cases.map(
            lambda case: (
                Optional[case[0]],  # noqa: UP045 - None | None is no type
                st.none() | case[1],
            )
        ),
    )


FITTING: st.SearchStrategy[Case] = st.recursive(st.sampled_from(list(LEAVES)).map(_of), _container, max_leaves=4)
"""An annotation and a strategy of values that it describes and JSON can hold."""

UNIONS: st.SearchStrategy[Case] = st.lists(FITTING, min_size=2, max_size=3).map(
    lambda cases: (
        Union[tuple(case[0] for case in cases)],  # noqa: UP007 - a tuple made here
        st.one_of(*(case[1] for case in cases)),
    )
)
"""Two members of a union may look alike in JSON: such a value is refused."""

NASTY = st.one_of(
    st.integers(2**64, 2**80),
    st.integers(-(2**80), -(2**63) - 1),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, Word.YES, Level.LOW, Colour.RED, "\ud800", b"\xff", "NaN"]),
    st.integers(2**53, 2**64 - 1),
    st.text(max_size=4),
    st.sets(st.integers(), max_size=2),
    POINTS,
    LINES,
    *(LEAVES[kind] for kind in (Decimal, datetime, date, timedelta, UUID, Pixel)),
)
PLAIN = st.one_of(st.none(), st.booleans(), INT64, FINITE, TEXT)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    PLAIN | NASTY,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(TEXT, st.integers(-5, 5), st.booleans(), st.sampled_from(Word)), inner, max_size=3),
    ),
    max_leaves=6,
)


def image(value: Any) -> Any:
    """Equal images: the same value, types included. The order of a dict's keys is no part of it."""
    kind = type(value)
    if kind is float:
        return kind, repr(value)
    if kind in (list, tuple, Pixel):
        return kind, [image(item) for item in value]
    if kind is dict:
        return kind, sorted(((repr(image(key)), image(item)) for key, item in value.items()), key=repr)
    if kind in (set, frozenset):
        return kind, sorted(repr(image(item)) for item in value)
    if isinstance(value, BaseModel):
        return kind, [image(getattr(value, name)) for name in kind.model_fields]
    if kind in (Point, Pair):
        return kind, [image(getattr(value, name)) for name in kind.__dataclass_fields__]
    if kind in (datetime, time):
        return kind, value.replace(tzinfo=None), value.utcoffset()
    if kind is Decimal:
        return kind, value.as_tuple()
    return kind, value


def as_json_would(value: Any) -> Any:
    """What a value of builtin JSON types is without an annotation: lists for tuples, texts for int keys."""
    if type(value) in (list, tuple):
        return [as_json_would(item) for item in value]
    if type(value) is dict:
        return {str(key): as_json_would(item) for key, item in value.items()}
    return value
