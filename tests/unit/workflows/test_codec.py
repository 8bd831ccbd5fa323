import math
import uuid
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, Literal, NoReturn, TypeVar
from zoneinfo import ZoneInfo

import pydantic
import pytest
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, computed_field

from pyrula.workflows.codec import Codec, Fragment, dumps, encode_message, loads
from pyrula.workflows.errors import ConfigurationError, SerializationError
from pyrula.workflows.model import MAX_VALUE
from tests.unit.workflows.values import Colour, Level, Line, Point, Word, image

T = TypeVar("T")
WHAT = "step `charge`"


class Text(str):
    __slots__ = ()


class Box(BaseModel, Generic[T]):
    item: T


class Base(BaseModel):
    id: str


class Derived(Base):
    extra: int


class Customer(BaseModel):
    """Read from one service's JSON, written for another's: the two aliases differ."""

    id: str = Field(validation_alias="customerId", serialization_alias="customer_id")
    note: str = Field(default="", validation_alias="remark")


class Area(BaseModel):
    width: int
    _seen: int = PrivateAttr(default=0)

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.width

    @cached_property
    def triple(self) -> int:
        return 3 * self.width


class Login(BaseModel):
    password: SecretStr


class Open(BaseModel):
    model_config = {"extra": "allow"}
    at: Any = None


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


@dataclass
class Counter:
    """Not made again as it was: each making adds one."""

    count: int

    def __post_init__(self) -> None:
        self.count += 1


@dataclass(eq=False)
class Odd:
    items: list[int] = field(default_factory=list)


class Unknown:
    pass


def comes_back(annotation: Any, value: Any) -> Any:
    codec = Codec.of(annotation)
    data, decoded = codec.encode(value, WHAT)
    assert image(codec.decode(data)) == image(decoded)
    assert image(codec.decode(dumps(loads(data)))) == image(decoded)
    return decoded


def refusal(annotation: Any, value: Any, limit: int = MAX_VALUE) -> str:
    with pytest.raises(SerializationError) as caught:
        Codec.of(annotation).encode(value, WHAT, limit)
    assert str(caught.value).startswith(f"{WHAT}: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (str, "é", '"é"'.encode()),
        (int, -(2**63), b"-9223372036854775808"),
        (int, 2**64 - 1, b"18446744073709551615"),
        (int, 2**70, b'"1180591620717411303424"'),
        (float, 1.0, b"1.0"),
        (float, -0.0, b"-0.0"),
        (float, math.inf, b'"Infinity"'),
        (float | int, -(2**64), b'"-18446744073709551616"'),
        (bool, True, b"true"),
        (None, None, b"null"),
        (str | None, None, b"null"),
        (int | float, 1, b"1"),
    ],
)
def test_scalars_are_their_own_decoded_form(annotation: Any, value: Any, data: bytes) -> None:
    codec = Codec.of(annotation)
    encoded, decoded = codec.encode(value, WHAT)
    assert encoded == data
    assert decoded is value
    assert image(codec.decode(data)) == image(value)


def test_nan_comes_back_where_a_float_is_declared() -> None:
    assert math.isnan(comes_back(float, math.nan))
    assert math.isnan(comes_back(float | None, math.nan))
    assert math.isnan(comes_back(list[float], [math.nan])[0])


def test_an_int_for_a_declared_float_is_the_equal_float_or_refused() -> None:
    assert image(comes_back(float, 3)) == image(3.0)
    assert image(comes_back(list[float], [3])) == image([3.0])
    assert "isn't exact" in refusal(float, 2**53 + 1)
    assert "isn't exact" in refusal(float, 10**400)
    assert "comes back" in refusal(list[float], [2**53 + 1])


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True),
        (bool, 1),
        (str, 1),
        (int, "1"),
        (float, "1.0"),
        (str, None),
        (None, 0),
        (str, Text("a")),
        (str, Word.YES),
        (int, Level.LOW),
        (str, "\ud800"),
        (str | None, "\ud83d\ude00"),
        (str | float, math.nan),
        (str | int, 2**64),
        pytest.param(int, 10**5000, id="huge"),
    ],
)
def test_scalars_other_than_declared_are_refused(annotation: Any, value: Any) -> None:
    refusal(annotation, value)


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ((1, (2,)), [1, [2]]),
        ({1: "a"}, {"1": "a"}),
        ({"a": None, "b": [1.5, None]}, {"a": None, "b": [1.5, None]}),
        ([], []),
        ("x", "x"),
        (-0.0, -0.0),
        ({"a": {"b": (None,)}}, {"a": {"b": [None]}}),
    ],
)
def test_without_an_annotation_the_body_sees_the_decoded_form_at_once(value: Any, decoded: Any) -> None:
    assert image(comes_back(Any, value)) == image(decoded)


@pytest.mark.parametrize("annotation", [Any, object, T, NoReturn, dict, dict[str, Any]])
def test_the_decoded_form_is_another_object(annotation: Any) -> None:
    """What a step still holds of its result and changes later isn't seen by the body, as it isn't on replay."""
    for value in ({"a": 1}, {"a": [1]}):
        decoded = comes_back(annotation, value)
        assert decoded == value
        assert decoded is not value
        assert decoded["a"] is not value["a"] or type(decoded["a"]) is int


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (math.nan, "nan"),
        ([1.0, math.inf], "inf at [1]"),
        ({"a": {"b": math.nan, "c": None}}, "nan at ['a']['b']"),
        (b"x", "a bytes"),
        ({1, 2}, "a set"),
        (Decimal("1"), "a decimal.Decimal"),
        (datetime(2025, 1, 1, tzinfo=UTC), "a datetime.datetime"),
        ([date(2025, 1, 1)], "a datetime.date at [0]"),
        (uuid.UUID(int=1), "a uuid.UUID"),
        ({"a": uuid.UUID(int=1)}, "a uuid.UUID at ['a']"),
        (Colour.RED, "Colour"),
        ([Word.YES], "Word at [0]"),
        ({"a": Level.LOW}, "Level at ['a']"),
        ({Word.YES: 1}, "a key of type tests.unit.workflows.values.Word"),
        ({True: 1}, "a key of type bool"),
        ({None: 1}, "a key of type NoneType"),
        ({1.5: 1}, "a key of type float"),
        ({1: "a", "1": "b"}, "the keys '1' and 1"),
        (2**64, "an int of more than 64 bits"),
        ([-(2**63) - 1], "an int of more than 64 bits at [0]"),
        ("\ud800", "surrogates"),
        ({"\ud800": 1}, "surrogates"),
        (Text("a"), "Text"),
        (OrderedDict(a=1), "OrderedDict"),
        (namedtuple("Both", "x")(1), "Both"),
        (Point(1), "Point"),
        (Line(sku="a"), "Line"),
        (Fragment(b"1"), "Fragment"),
        ([Fragment(b"1")], "Fragment at [0]"),
        (Unknown(), "Unknown"),
    ],
)
def test_what_json_cannot_hold_is_refused_without_an_annotation(value: Any, told: str) -> None:
    assert told in refusal(Any, value)


def test_values_too_deep_or_without_an_end_are_refused() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    tree = Tree(name="leaf")
    for _ in range(10_000):
        tree = Tree.model_construct(name="node", children=[tree])
    for value in (deep, endless):
        for annotation in (Any, list, list[Any], dict[str, Any] | list[Any]):
            refusal(annotation, value)
    refusal(Tree, tree)


@pytest.mark.parametrize(("annotation", "value"), [(dict, [1]), (dict, OrderedDict()), (list, {1}), (list[Any], {})])
def test_another_container_than_declared_is_refused(annotation: Any, value: Any) -> None:
    assert "not the declared" in refusal(annotation, value)
    with pytest.raises(SerializationError):
        Codec.of(annotation).decode(b'"text"')


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[int, ...], (1, 2)),
        (dict[int, str], {1: "a", -1: "b"}),
        (dict[tuple[int, str], int], {}),
        (bytes, b"\xff\x00"),
        (dict[str, bytes], {"a": b"\xff"}),
        (set[str], {"a", "b"}),
        (frozenset[tuple[int, int]], frozenset([(1, 2)])),
        (Decimal, Decimal("1.10")),
        (Decimal, Decimal("1E+3")),
        (datetime, datetime(2025, 3, 30, 2, 30, 0, 1, tzinfo=UTC)),
        (datetime, datetime(1, 1, 1)),  # noqa: DTZ001
        (
            datetime | None,
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
        ),
        (timedelta, timedelta(days=-1, microseconds=1)),
        (Colour, Colour.BLUE),
        (Word, Word.NO),
        (list[Word | int], [Word.NO, 3]),
        (Literal["a", 1], 1),
        (Colour | None, None),
        (Base, Base(id="a")),
        (Base | Point, Point(1, 2.0)),
        (Box[int], Box[int](item=1)),
        (list[Tree], [Tree(name="a", children=[Tree(name="b")])]),
        (Open, Open(at={"x": [1]}, more={"y": 2.0})),
        (Area, Area(width=2)),
        (dict[str, Any], {"a": [{"b": None}]}),
        (list[int], [2**64 - 1, -(2**63)]),
    ],
)
def test_an_annotation_keeps_the_type(annotation: Any, value: Any) -> None:
    assert image(comes_back(annotation, value)) == image(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Base, Derived(id="a", extra=1)),
        (Base, {"id": "a"}),
        (Login, Login(password=SecretStr("hush"))),
        (Counter, Counter(1)),
        (list[int], [2**64]),
        (list[int], [True]),
        (set[int], [1]),
        (set[int], (1,)),
        (dict[str, int], {1: 1, "1": 2}),
        (dict[str, int], {True: 1}),
        (dict[str, Any], {"a": Decimal("1")}),
        (dict[str, Any], {"a": datetime(2025, 1, 1, tzinfo=UTC)}),
        (dict[str, float] | None, {"a": "1.5"}),
        (dict[str, object] | None, {"a": Word.YES}),
        (list[str], ["\ud800"]),
        (list[str], [Text("a")]),
        (Word | str, Word.YES),
        (dict[Colour, int], {Colour.RED: 1}),
        (Decimal, Decimal("NaN")),
        (Decimal, 1),
        (Open, Open(at=(1, Word.YES))),
        (Open, Open(more=b"x")),
        (Line, Line.model_construct(sku="a", count="5", price=Decimal(1))),
        (Line, Line.model_construct(count=5)),
        (Literal["a"], "b"),
        (Iterable[int], iter([1])),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(annotation: Any, value: Any) -> None:
    refusal(annotation, value)


def test_a_refusal_says_where_the_value_changes() -> None:
    value = {"a": [Line(sku="x"), Line.model_construct(sku="y", count=True, price=Decimal(1))]}
    told = refusal(dict[str, list[Line]], value)
    assert told.endswith("value['a'][1].count: a bool comes back as a int")
    assert "dict[str, list[" in told


def test_a_tuple_and_an_int_key_become_what_is_declared() -> None:
    assert image(comes_back(list, (1,))) == image(comes_back(list[int], (1,))) == image([1])
    assert image(comes_back(dict[str, int], {1: 1})) == image({"1": 1})


def test_an_abstract_sequence_gets_a_list_and_a_mapping_a_dict() -> None:
    assert image(comes_back(Sequence[int], (1, 2))) in (image([1, 2]), image((1, 2)))
    assert image(comes_back(Mapping[str, int], {"a": 1})) == image({"a": 1})
    assert image(comes_back(dict[str, Any] | None, {"a": (1,)})) == image({"a": [1]})


def test_a_model_that_is_read_and_written_under_two_aliases_goes_by_names() -> None:
    value = [Customer(customerId="c", remark="r"), Customer(customerId="d")]
    if tuple(int(part) for part in pydantic.VERSION.split(".")[:2]) < (2, 11):
        with pytest.raises(ConfigurationError, match=r"needs pydantic 2\.11"):
            Codec.of(list[Customer])
    else:
        assert image(comes_back(list[Customer], value)) == image(value)


def test_a_zone_comes_back_as_its_offset() -> None:
    value = datetime(2025, 7, 1, 12, tzinfo=ZoneInfo("Europe/Paris"))
    decoded = comes_back(datetime, value)
    assert decoded == value
    assert decoded.utcoffset() == timedelta(hours=2)


def test_what_is_no_data_of_a_model_is_not_compared() -> None:
    area = Area(width=2)
    area._seen = 5
    assert area.triple == 6
    assert comes_back(Area, area).width == 2


def test_a_generic_model_may_be_declared_more_precisely_than_made() -> None:
    decoded = comes_back(Box[int], Box(item=1))
    assert type(decoded) is Box[int]
    assert decoded.item == 1
    refusal(Box[int], Box(item="1"))


def test_a_dataclass_without_equality_is_compared_by_its_fields() -> None:
    codec = Codec.of(Odd)
    value = Odd([1, 2])
    data, decoded = codec.encode(value, WHAT)
    assert decoded.items == codec.decode(data).items == [1, 2]
    assert decoded != value


def test_the_limit_is_on_the_bytes_of_the_json() -> None:
    assert MAX_VALUE == 1024 * 1024
    for annotation in (str, Any, str | None, Literal["x"] | str):
        fits = "x" * (MAX_VALUE - 2)
        assert comes_back(annotation, fits) == fits
        told = refusal(annotation, fits + "x")
        assert "1,048,577 bytes" in told
        assert "1,048,576" in told
        refusal(annotation, "é" * (MAX_VALUE // 2))
    for annotation, value in ((Any, ["x" * MAX_VALUE]), (list[str], ["x" * MAX_VALUE]), (bytes, b"x" * MAX_VALUE)):
        assert "the limit is 1,048,576" in refusal(annotation, value)
    assert "7 bytes as JSON, the limit is 6" in refusal(list[int], [1, 2, 3], limit=6)


def test_a_text_far_beyond_the_limit_is_not_encoded_first() -> None:
    assert "50,000,002 bytes" in refusal(str, "\ud800" * 50_000_000)


@pytest.mark.parametrize("annotation", [str, int, float, Any, dict, list[int], Base, bytes, Colour, Tree, None])
@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b'"\\ud800"', b"NaN", b"nonsense"])
def test_hostile_bytes_give_a_serialization_error(annotation: Any, data: bytes) -> None:
    with pytest.raises(SerializationError):
        Codec.of(annotation).decode(data)


def test_decoding_names_what_it_is_about() -> None:
    with pytest.raises(SerializationError, match="the result of step `a` is no Base"):
        Codec.of(Base).decode(b"{}", "the result of step `a`")
    with pytest.raises(SerializationError, match="not the declared int"):
        Codec.of(int).decode(b'["1"]')


def test_one_codec_for_one_annotation_and_order_counts_in_unions() -> None:
    assert Codec.of(list[int]) is Codec.of(list[int])
    assert Codec.of(Line | Base) is not Codec.of(Base | Line)
    assert Codec.of() is Codec.of(Any)


@pytest.mark.parametrize("annotation", [Unknown, list[Unknown], dict[str, "Missing"]])  # noqa: F821
def test_an_annotation_without_a_form_in_json_is_a_configuration_error(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match="have no form in JSON"):
        Codec.of(annotation)


def test_dumps_takes_builtin_types_and_fragments() -> None:
    assert dumps([1, None, Fragment(b'{"a":1}')]) == b'[1,null,{"a":1}]'
    with pytest.raises(SerializationError):
        dumps({"a": datetime(2025, 1, 1, tzinfo=UTC)})


def test_messages_are_written_in_the_usual_form() -> None:
    value = {
        "order": Line(sku="a"),
        "point": Point(1),
        "at": datetime(2025, 1, 1, tzinfo=UTC),
        "id": uuid.UUID(int=1),
        "word": Word.YES,
        "price": Decimal("1.10"),
        "none": None,
    }
    assert loads(encode_message(value, "message")) == {
        "order": {"sku": "a", "count": 1, "price": "1.10"},
        "point": {"x": 1, "y": 0.0, "tags": []},
        "at": "2025-01-01T00:00:00+00:00",
        "id": str(uuid.UUID(int=1)),
        "word": "yes",
        "price": "1.10",
        "none": None,
    }
    assert encode_message(Line(sku="a"), "message") == b'{"sku":"a","count":1,"price":"1.10"}'
    assert encode_message({"b": 1, "a": 2}, "message", sort_keys=True) == b'{"a":2,"b":1}'


class Reading(BaseModel):
    celsius: float | None
    note: str = ""


class Readings(BaseModel, ser_json_inf_nan="constants"):
    each: list[float]


UNSENDABLE = [
    math.nan,
    {"a": [math.inf]},
    {"a": Point(1, math.nan)},
    Reading(celsius=math.nan),
    {"a": [Reading(celsius=-math.inf)]},
    Readings(each=[math.nan]),
    {"a": deque([math.nan])},
    "\ud800",
    Unknown(),
    {1: 2},
]


@pytest.mark.parametrize("value", UNSENDABLE)
def test_a_message_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(SerializationError, match=r"^message to `receipts`: "):
        encode_message(value, "message to `receipts`")


def test_a_message_may_hold_null_and_the_word_nan() -> None:
    assert encode_message(Reading(celsius=None, note="NaN"), "message") == b'{"celsius":null,"note":"NaN"}'


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(float, math.nan), (float | None, -math.inf), (list[float], [1.0, math.inf])],
)
def test_a_number_that_the_journal_keeps_as_text_is_no_message(annotation: Any, value: Any) -> None:
    codec = Codec.of(annotation)
    assert image(codec.decode(codec.encode(value, WHAT)[0])) == image(value)
    with pytest.raises(SerializationError, match=r"^the result of `a`: .*(nan|inf) has no form in JSON"):
        codec.encode_message(value, "the result of `a`")


def test_other_results_are_messages_as_they_are_journaled() -> None:
    assert Codec.of(str).encode_message("NaN", WHAT) == b'"NaN"'
    assert Codec.of(bytes).encode_message(b"\xff raw", WHAT) == b"\xff raw"
    assert Codec.of(bytes | None).encode_message(b"", WHAT) == b""
    with pytest.raises(SerializationError, match="the value has 11 bytes, the limit is 10"):
        Codec.of(bytes).encode_message(b"x" * 11, WHAT, 10)
    for undeclared in (Codec.of(), Codec.of(str), Codec.of(dict)):
        with pytest.raises(SerializationError):
            undeclared.encode_message(b"raw", WHAT)
    assert Codec.of(list[str]).encode_message(["Infinity"], WHAT) == b'["Infinity"]'
    with pytest.raises(SerializationError, match="64 bits"):
        Codec.of(int).encode_message(1 << 64, WHAT)


def test_a_message_may_have_a_limit() -> None:
    assert encode_message("x" * 10, "message", 12) == b'"xxxxxxxxxx"'
    with pytest.raises(SerializationError, match="13 bytes"):
        encode_message("x" * 11, "message", 12)
