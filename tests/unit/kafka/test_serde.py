"""From records to arguments: every kind of annotation, and every way in which a record can be unfit."""

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from typing_extensions import TypeAliasType

from pyrula.kafka.record import Record
from pyrula.kafka.serde import Arguments, BytesSerde, JsonSerde, RecordError, Serde, StrSerde, compile_arguments
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError, PyrulaError

PLACE = ("orders", 3)


class Raw(NamedTuple):
    """A record as a client gives it."""

    value: Any
    key: Any = b"k"
    headers: Any = (("a", b"1"), ("a", b"2"), ("b", None))
    timestamp: Any = -5
    offset: int = 42


class Order(BaseModel):
    id: str
    amount_cents: int = 0


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    value: Any = None
    price: float = 0.0


class Tree(BaseModel):
    children: "list[Tree]" = []


class Colour(StrEnum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


OrderId = NewType("OrderId", str)
Text = TypeAliasType("Text", Annotated[OrderId, "note"])
Code = Annotated[str, StringConstraints(pattern=r"^[A-Z]+$")]


def taking(annotation: Any, serde: Serde | None = None) -> Arguments:
    """The arguments of a body with one parameter of that annotation."""

    async def body(ctx, order): ...  # type: ignore[no-untyped-def]

    body.__annotations__["order"] = annotation
    return compile_arguments(WorkflowDefinition(body, name="charge_order"), serde)


def value(annotation: Any, data: bytes | None, serde: Serde | None = None) -> Any:
    (found,), kwargs = taking(annotation, serde)(Raw(data), PLACE)
    assert kwargs is None
    return found


def refused(annotation: Any, data: bytes | None, serde: Serde | None = None) -> RecordError:
    with pytest.raises(RecordError) as caught:
        taking(annotation, serde)(Raw(data), PLACE)
    error = caught.value
    assert isinstance(error, PyrulaError)
    assert str(error) == error.detail
    assert error.detail.startswith("workflow charge_order, parameter order: ")
    assert len(error.detail) < 2_000
    return error


@pytest.mark.parametrize(
    ("annotation", "data", "expected"),
    [
        (Any, b'{"a":[1,2.5,null,true,"x"]}', {"a": [1, 2.5, None, True, "x"]}),
        (Any, b"null", None),
        (object, b"1", 1),
        (dict, b'{"a":1}', {"a": 1}),
        (dict[str, Any], b'{"a":1}', {"a": 1}),
        (dict[str, int], b'{"a":"1"}', {"a": 1}),
        (dict | None, b'{"a":1}', {"a": 1}),
        (list, b"[1]", [1]),
        (list[Order], b'[{"id":"1"}]', [Order(id="1")]),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (bytes, b"", b""),
        (bytes | None, b"", b""),
        (str, "žluťoučký".encode(), "žluťoučký"),
        (str, b"", ""),
        (str, b'"quoted"', '"quoted"'),
        (str, b"null", "null"),
        (Optional[str], b"x", "x"),  # noqa: UP045
        (OrderId, b"o-1", "o-1"),
        (Text, b"o-1", "o-1"),
        (Code, b"ABC", "ABC"),
        (Annotated[bytes, Field(max_length=3)], b"\xff", b"\xff"),
        (int, b"12", 12),
        (float, b"1e3", 1000.0),
        (bool, b"true", True),
        (int, str(10**30).encode(), 10**30),
        (UUID, b'"12345678-1234-5678-1234-567812345678"', UUID("12345678-1234-5678-1234-567812345678")),
        (Literal["a", "b"], b'"a"', "a"),
        (Colour, b'"red"', Colour.RED),
        (tuple[int, str], b'[1,"a"]', (1, "a")),
        (Order, b'{"id":"1","amount_cents":5,"more":null}', Order(id="1", amount_cents=5)),
        (Order | None, b'{"id":"1"}', Order(id="1")),
        (Order | None, b"null", None),
        (Order | list[Order], b'[{"id":"1"}]', [Order(id="1")]),
        (Point, b'{"x":1,"y":2}', Point(1, 2)),
        (Loose, b'{"value":"1e999","price":1e308}', Loose(value="1e999", price=1e308)),
        (Loose, b'{"value":1e-999,"price":0e0}', Loose(value=0.0, price=0.0)),
        (Loose, b'{"NaN":"Infinity","value":"-Infinity NaN"}', Loose(NaN="Infinity", value="-Infinity NaN")),
    ],
)
def test_the_annotation_decides_how_a_value_is_read(annotation: Any, data: bytes, expected: Any) -> None:
    found = value(annotation, data)
    assert found == expected
    assert type(found) is type(expected)
    assert value(Record[annotation], data) == Record.of(Raw(data), expected, PLACE)


def test_a_record_is_given_whole() -> None:
    record = value(Record[Order], b'{"id":"1"}')
    assert record.value == Order(id="1")
    assert (record.topic, record.partition, record.offset, record.timestamp_ms) == ("orders", 3, 42, -5)
    assert record.key == b"k"
    assert record.headers == (("a", b"1"), ("a", b"2"), ("b", None)), "duplicates and nulls are kept, in order"
    assert value(Record, b"[1]").value == [1], "Record alone is Record[Any]"
    assert value(Annotated[Record[bytes], "note"], b"x").value == b"x"
    assert value(TypeAliasType("Whole", Record[bytes]), b"x").value == b"x"


TOMBSTONES = [Any, object, None, Order | None, Optional[Order], dict | None, bytes | None, str | None, list[int] | None]  # noqa: UP045


@pytest.mark.parametrize("annotation", TOMBSTONES)
def test_null_is_none_where_the_annotation_admits_it(annotation: Any) -> None:
    assert value(annotation, None) is None
    record = value(Record[annotation], None)
    assert record.value is None
    assert record.key == b"k"


@pytest.mark.parametrize(
    "annotation", [dict, list, dict[str, int], bytes, str, int, Order, Point, Code, OrderId, Colour]
)
def test_null_is_refused_where_the_annotation_admits_none(annotation: Any) -> None:
    for one in (annotation, Record[annotation]):
        error = refused(one, None)
        assert error.reason == "null"
        assert "| None` to take records without a value" in error.detail


@pytest.mark.parametrize("annotation", [Any, dict, list, Order, Order | None, int, Loose, Point])
def test_empty_is_not_null(annotation: Any) -> None:
    assert refused(annotation, b"").reason == "json"


NOT_JSON = {
    "no JSON at all": b"hello",
    "cut": b'{"id":"1"',
    "two values": b'{"id":"1"} {"id":"2"}',
    "NaN": b'{"id":"1","value":NaN}',
    "NaN where nothing reads it": b'{"id":"1","other":[NaN]}',
    "Infinity": b'{"id":"1","price":Infinity}',
    "-Infinity": b'{"id":"1","price":-Infinity}',
    "invalid UTF-8": b'{"id":"\xff"}',
    "a surrogate in UTF-8": b'{"id":"\xed\xa0\x80"}',
    "a lone surrogate": b'{"id":"\\ud800"}',
    "a lone low surrogate": b'{"id":"\\udc00"}',
    "surrogates the wrong way round": b'{"id":"\\udc00\\ud800"}',
    "10,000 deep lists": b'{"id":"1","value":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 deep objects": b'{"value":' * 10_000 + b"1" + b"}" * 10_000,
    "a million deep and cut": b"[" * 1_000_000,
    "a byte order mark": b'\xef\xbb\xbf{"id":"1"}',
    "a comment": b'{"id":"1"} // x',
    "single quotes": b"{'id':'1'}",
    "a control character": b'{"id":"a\nb"}',
}


@pytest.mark.parametrize("annotation", [Any, dict, Order, Order | None, Loose, dict[str, Any] | None, list[Any], Tree])
@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_refused(annotation: Any, data: bytes) -> None:
    for one in (annotation, Record[annotation]):
        error = refused(one, data)
        assert error.reason == "json"
        assert "take it as bytes, or bind with a value_serde" in error.detail


@pytest.mark.parametrize("annotation", [Any, dict, Order, Record[Order]])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'\xef\xbb\xbf{"id":"1"}', "it begins with a byte order mark"),
        ('{"id":"1"}'.encode("utf-16"), "it is UTF-16"),
        (b'{"id":"M\xfcller"}', "it is not UTF-8: invalid start byte at byte 8"),
        (b'{"id":"1"', "not JSON ("),
    ],
)
def test_another_encoding_than_that_of_json_is_named(annotation: Any, data: bytes, said: str) -> None:
    error = refused(annotation, data)
    assert error.reason == "json"
    assert said in error.detail


@pytest.mark.parametrize("annotation", [Any, dict, Loose, dict[str, float], Loose | None])
@pytest.mark.parametrize("number", [b"1e999", b"-1.5E+0400", b"1" + b"0" * 309, b"1234567890" * 31])
def test_a_number_past_the_largest_float_is_refused(annotation: Any, number: bytes) -> None:
    assert refused(annotation, b'{"price":' + number + b"}").reason == "json"


@pytest.mark.parametrize("data", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_text_that_is_not_utf_8_is_refused(data: bytes) -> None:
    for annotation in (str, str | None, Code, Record[str]):
        assert refused(annotation, data).reason == "encoding"


@pytest.mark.parametrize(
    ("annotation", "data", "said"),
    [
        (dict, b"[]", "the value is JSON, but a list and not a dict"),
        (dict, b"null", "the value is JSON, but a null and not a dict"),
        (list, b'"x"', "the value is JSON, but a str and not a list"),
        (Order, b"[]", "order: Input should be an object"),
        (Order, b"null", "order: Input should be an object"),
        (Order, b"{}", "order.id: Field required (give what may be missing a default)"),
        (Order, b'{"id":7}', "order.id: Input should be a valid string"),
        (Order, b'{"id":"1","amount_cents":"x"}', "order.amount_cents: Input should be a valid integer"),
        (list[Order], b'[{"id":"1"},{}]', "order.1.id: Field required"),
        (Code, b"abc", "order: String should match pattern"),
        (int, b"1.5", "order: Input should be a valid integer"),
        (list[int], b"[" + b'"x",' * 20_000 + b"1]", "and 19997 more"),
        (dict[str, int], b'{"' + b"k" * 100_000 + b'":"x"}', "order.kkkk"),
    ],
)
def test_another_shape_is_refused_by_the_name_of_the_part(annotation: Any, data: bytes, said: str) -> None:
    error = refused(annotation, data)
    assert error.reason == "shape"
    assert said in error.detail


def test_a_large_value_that_the_model_refuses_is_named_and_not_repeated() -> None:
    secret = "sesame" * 150_000
    error = refused(Order, json.dumps({"id": [secret], "amount_cents": secret}).encode())
    assert error.reason == "shape"
    assert "order.id" in error.detail
    assert "order.amount_cents" in error.detail
    assert "sesame" not in error.detail


def test_nesting_that_the_parsers_take_is_no_failure() -> None:
    assert value(dict, b'{"a":' + b"[" * 1_000 + b"]" * 1_000 + b"}").keys() == {"a"}
    assert value(Loose, b'{"value":' + b"[" * 150 + b"]" * 150 + b"}").value
    assert value(Tree, b'{"children":[' * 60 + b"]}" * 60).children


def test_of_duplicate_keys_the_last_counts() -> None:
    data = b'{"id":"1","amount_cents":1,"id":"2","amount_cents":2}'
    assert value(dict, data) == {"id": "2", "amount_cents": 2}
    assert value(Order, data) == Order(id="2", amount_cents=2)


def test_whatever_a_validator_raises_is_the_records_fault() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Picky(BaseModel):
        id: str

        @field_validator("id")
        @classmethod
        def check(cls, found: str) -> str:
            if found == "deep":
                raise RecursionError("too deep")
            if found == "mute":
                raise Mute
            raise KeyError(found)

    for found, said in (("a", "KeyError: 'a'"), ("deep", "RecursionError: too deep"), ("mute", "Mute")):
        error = refused(Picky, json.dumps({"id": found}).encode())
        assert error.reason == "shape"
        assert "validating the value raised" in error.detail
        assert said in error.detail


def test_a_body_without_parameters_ignores_the_value() -> None:
    async def body(ctx: Any) -> None: ...

    arguments = compile_arguments(WorkflowDefinition(body, name="tick"))
    for data in (None, b"", b"\xff", b"NaN"):
        assert arguments(Raw(data), PLACE) == ((), None)


def test_a_keyword_only_parameter_is_passed_by_name() -> None:
    async def body(ctx: Any, *, order: Order) -> None: ...
    async def record_body(ctx: Any, *, order: Record[Order]) -> None: ...

    raw = Raw(b'{"id":"1"}')
    assert compile_arguments(WorkflowDefinition(body))(raw, PLACE) == ((), {"order": Order(id="1")})
    assert compile_arguments(WorkflowDefinition(record_body))(raw, PLACE) == (
        (),
        {"order": Record.of(raw, Order(id="1"), PLACE)},
    )


def test_a_body_without_annotation_gets_plain_json() -> None:
    async def body(ctx, order): ...  # type: ignore[no-untyped-def]

    arguments = compile_arguments(WorkflowDefinition(body))
    assert arguments(Raw(b'{"a":1}'), PLACE) == (({"a": 1},), None)
    assert arguments(Raw(None), PLACE) == ((None,), None)


async def several(ctx: Any, id: str, amount: int, note: str | None = None, *, items: list[Order] = []) -> None: ...  # noqa: A002, B006


def test_several_parameters_are_the_fields_of_an_object() -> None:
    arguments = compile_arguments(WorkflowDefinition(several))
    full = b'{"id":"1","amount":"5","note":"n","items":[{"id":"x"}],"extra":1,"ctx":2}'
    assert arguments(Raw(full), PLACE) == ((), {"id": "1", "amount": 5, "note": "n", "items": [Order(id="x")]})
    assert arguments(Raw(b'{"id":"1","amount":5}'), PLACE) == ((), {"id": "1", "amount": 5}), (
        "defaults are the body's own"
    )
    assert arguments(Raw(b'{"id":"1","amount":5,"note":null}'), PLACE) == ((), {"id": "1", "amount": 5, "note": None})


@pytest.mark.parametrize(
    ("data", "reason", "said"),
    [
        (None, "null", "the value is null, and the parameters need an object's fields"),
        (b"", "json", "not JSON"),
        (b"[]", "shape", "the value: Input should be an object"),
        (b"null", "shape", "the value: Input should be an object"),
        (b'{"id":"1"}', "shape", "amount: Field required (give what may be missing a default)"),
        (b'{"id":"1","amount":null}', "shape", "amount: Input should be a valid integer"),
        (b'{"id":"1","amount":1,"items":null}', "shape", "items: Input should be a valid array"),
        (b'{"id":"1","amount":1,"items":[{}]}', "shape", "items.0.id: Field required"),
        (b'{"id":"1","amount":1,"more":NaN}', "json", "not JSON"),
        (b'{"id":"\\ud800","amount":1}', "json", "not JSON"),
    ],
)
def test_fields_that_do_not_fit_are_named(data: bytes | None, reason: str, said: str) -> None:
    arguments = compile_arguments(WorkflowDefinition(several, name="charge"))
    with pytest.raises(RecordError) as caught:
        arguments(Raw(data), PLACE)
    assert caught.value.reason == reason
    assert caught.value.detail.startswith("workflow charge: ")
    assert said in caught.value.detail


def test_parameters_may_be_called_as_pydantic_calls_its_own() -> None:
    async def body(ctx: Any, model_config: int, _hidden: int, json: str = "", schema: str = "") -> None: ...

    arguments = compile_arguments(WorkflowDefinition(body))
    found = {"model_config": 1, "_hidden": 2, "json": "j"}
    assert arguments(Raw(json.dumps(found).encode()), PLACE) == ((), found)


def test_extra_fields_go_to_kwargs_but_never_to_ctx() -> None:
    async def body(ctx: Any, id: str, **others: Any) -> None: ...  # noqa: A002
    async def all_of_it(context: Any, **fields: Any) -> None: ...

    raw = Raw(b'{"id":"1","ctx":2,"context":3,"z":null}')
    assert compile_arguments(WorkflowDefinition(body))(raw, PLACE) == ((), {"id": "1", "context": 3, "z": None})
    assert compile_arguments(WorkflowDefinition(all_of_it))(raw, PLACE) == ((), {"id": "1", "ctx": 2, "z": None})
    with pytest.raises(RecordError, match="Input should be an object"):
        compile_arguments(WorkflowDefinition(all_of_it))(Raw(b"[]"), PLACE)


class Semicolons:
    """A reader of one's own: fails on "bad", knows null."""

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if data == b"bad":
            raise KeyError("bad")
        name, amount = data.decode().split(";")
        return {"id": name, "amount": amount, "amount_cents": amount}


def test_a_value_serde_reads_and_the_annotation_still_validates() -> None:
    assert value(Order, b"a;5", Semicolons()) == Order(id="a", amount_cents=5)
    assert value(dict, b"a;5", Semicolons()) == {"id": "a", "amount": "5", "amount_cents": "5"}
    assert value(Record[Order], b"a;5", Semicolons()).value == Order(id="a", amount_cents=5)
    assert value(Order | None, None, Semicolons()) is None
    assert compile_arguments(WorkflowDefinition(several), Semicolons())(Raw(b"a;5"), PLACE) == (
        (),
        {"id": "a", "amount": 5},
    )
    for annotation in (Any, Order, Order | None, Record[Order]):
        error = refused(annotation, b"bad", Semicolons())
        assert error.reason == "serde"
        assert "value_serde can't read the value: KeyError: 'bad'" in error.detail
    assert refused(Order, None, Semicolons()).reason == "null"
    assert refused(Order, b"a;x", Semicolons()).reason == "shape"


def test_a_value_serde_may_give_any_object() -> None:
    class Parsed:
        pass

    class Parser:
        def decode(self, data: bytes | None) -> Any:
            return Parsed() if data == b"x" else {}

    assert type(value(Parsed, b"x", Parser())) is Parsed
    assert refused(Parsed, b"y", Parser()).reason == "shape"
    assert refused(Parsed, None, Parser()).reason == "shape", "it made something of null, but not what was asked for"


def test_the_serdes_read_what_their_names_say() -> None:
    assert value(str, b'"a"', JsonSerde()) == "a"
    assert value(int | str, b'"a"', JsonSerde()) == "a"
    assert value(bytes, b'"a"', JsonSerde()) == b"a"
    assert value(Any, b"\xff", BytesSerde()) == b"\xff"
    assert value(str, b"\xe9", StrSerde("latin-1")) == "é"
    assert value(Any, b"{}", StrSerde()) == "{}"
    assert value(str, b"a\x00", StrSerde("utf-16-le")) == "a"
    assert refused(str, b"\xff", StrSerde()).reason == "serde"
    assert refused(bytes, None, BytesSerde()).reason == "null"
    for serde in (JsonSerde(), BytesSerde(), StrSerde()):
        assert serde.decode(None) is None
        assert value(str | None, None, serde) is None
    assert JsonSerde().decode(b"[1]") == [1]
    with pytest.raises(ConfigurationError, match="no text encoding 'nope'"):
        StrSerde("nope")
    with pytest.raises(ConfigurationError, match="no text encoding 'base64'"):
        StrSerde("base64")


class NoSchema:
    pass


class Unfinished(BaseModel):
    other: "NeverDefined"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (NoSchema, "a record can't be read as NoSchema"),
        (Unfinished, "a record can't be read as Unfinished"),
        (str | dict, "doesn't tell whether"),
        (int | str, "value_serde=JsonSerde()"),
        (bytes | Order | None, "doesn't tell whether"),
        (Record[Order] | None, "Record[... | None]"),
        (list[Record[Order]], "Record[...] is the whole record"),
        (Record[Record[Order]], "Record[...] is the whole record"),
        (dict[str, list[Record[Any]]], "Record[...] is the whole record"),
    ],
)
def test_annotations_that_no_record_can_be_read_by_are_refused_at_once(annotation: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        taking(annotation)
    assert str(caught.value).startswith("workflow charge_order, parameter order: ")
    assert said in str(caught.value)


def test_a_record_among_several_parameters_is_refused() -> None:
    async def body(ctx: Any, record: Record[bytes], more: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"parameter record: Record\[\.\.\.\] is the whole record"):
        compile_arguments(WorkflowDefinition(body))


def test_an_annotation_that_does_not_exist_is_named() -> None:
    async def body(ctx: Any, order: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match="Nowhere"):
        compile_arguments(WorkflowDefinition(body))


texts = st.text(st.characters(codec="utf-8"))
numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
json_texts = json_values.map(lambda found: json.dumps(found).encode())
PLAIN, LOOSE, FIELDS = taking(Any), taking(Loose), compile_arguments(WorkflowDefinition(several))


@given(json_values)
def test_any_json_is_read_as_it_was_written(found: Any) -> None:
    data = json.dumps(found).encode()
    assert PLAIN(Raw(data), PLACE) == ((found,), None)
    ((loose,), _) = LOOSE(Raw(b'{"value":' + data + b"}"), PLACE)
    assert loose.value == found


@given(st.binary(max_size=60) | st.sampled_from(list(NOT_JSON.values())) | json_texts)
def test_no_bytes_raise_anything_but_a_record_error(data: bytes) -> None:
    for arguments in (PLAIN, LOOSE, FIELDS):
        with suppress(RecordError):
            arguments(Raw(data), PLACE)
