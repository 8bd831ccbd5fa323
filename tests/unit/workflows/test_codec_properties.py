"""Live value == replayed value == the value that the step returned, or SerializationError."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrula.workflows.codec import Codec, dumps, loads
from pyrula.workflows.errors import SerializationError
from tests.unit.workflows.values import ANYTHING, FITTING, PLAIN, UNIONS, Case, as_json_would, image

_CASES = settings(max_examples=100, deadline=None)


def _encode(codec: Codec, value: Any) -> tuple[bytes, Any] | None:
    try:
        return codec.encode(value, "step `x`")
    except SerializationError:
        return None


def _check_replays(codec: Codec, data: bytes, decoded: Any) -> None:
    """The decoded form is what comes back, also when a journal row was read and written by orjson in between."""
    assert image(codec.decode(data)) == image(decoded)
    assert image(codec.decode(dumps(loads(data)))) == image(decoded)
    again = codec.encode(decoded, "step `x`")
    assert image(again[1]) == image(decoded)


@_CASES
@given(FITTING, st.data())
def test_a_value_that_fits_its_annotation_comes_back_exactly(case: Case, data: st.DataObject) -> None:
    annotation, values = case
    value = data.draw(values)
    codec = Codec.of(annotation)
    encoded, decoded = codec.encode(value, "step `x`")
    assert image(decoded) == image(value)
    _check_replays(codec, encoded, decoded)


@_CASES
@given(UNIONS, st.data())
def test_a_value_of_a_union_comes_back_exactly_or_is_refused(case: Case, data: st.DataObject) -> None:
    value = data.draw(case[1])
    codec = Codec.of(case[0])
    result = _encode(codec, value)
    if result is not None:
        assert image(result[1]) == image(value) or _only_let_through(value, result[1])
        _check_replays(codec, *result)


@_CASES
@given(FITTING | UNIONS, ANYTHING)
def test_any_value_under_any_annotation_comes_back_exactly_or_is_refused(case: Case, value: Any) -> None:
    codec = Codec.of(case[0])
    result = _encode(codec, value)
    if result is not None:
        assert image(result[1]) == image(value) or _only_let_through(value, result[1])
        _check_replays(codec, *result)


@_CASES
@given(ANYTHING, st.sampled_from([Any, object, dict, list, dict[str, Any], list[Any]]))
def test_without_an_annotation_the_body_sees_what_the_json_says(value: Any, annotation: Any) -> None:
    codec = Codec.of(annotation)
    result = _encode(codec, value)
    if result is not None:
        assert image(result[1]) == image(as_json_would(value))
        assert image(loads(result[0])) == image(result[1])
        _check_replays(codec, *result)


@given(
    st.recursive(
        PLAIN,
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text("ab12"), inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_values_need_no_annotation(value: Any) -> None:
    assert image(Codec.of(Any).encode(value, "step `x`")[1]) == image(as_json_would(value))


def _only_let_through(before: Any, after: Any) -> bool:
    """What likeness allows: an int where a float is declared, a tuple or an int key that nothing declares."""
    if type(before) is int and type(after) is float:
        return before == after
    if type(before) in (list, tuple) and type(after) in (list, tuple):
        pairs = zip(before, after, strict=True)
        return type(after) in (list, type(before)) and all(_alike(one, two) for one, two in pairs)
    if type(before) is dict and type(after) is dict:
        texts = {str(key) if type(key) is int else key: item for key, item in before.items()}
        return len(texts) == len(after) and all(
            _alike(texts[key] if key in texts else before[key], item) for key, item in after.items()
        )
    return False


def _alike(before: Any, after: Any) -> bool:
    return image(before) == image(after) or _only_let_through(before, after)
