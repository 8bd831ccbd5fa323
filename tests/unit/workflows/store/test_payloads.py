from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.workflows.errors import SerializationError
from pyrula.workflows.store.payloads import (
    Failure,
    InterruptAnswer,
    arguments_of_update,
    encode_answer,
    encode_failure,
    encode_payload,
    encode_query,
    encode_refusal,
    encode_resume,
    failure_of,
    read_answer,
    read_failure,
    read_query,
    read_resume,
)


class Item(BaseModel):
    sku: str


@pytest.mark.parametrize(
    ("payload", "arguments"),
    [
        ({"sku": "a"}, ((), {"sku": "a"})),
        (Item(sku="a"), ((), {"sku": "a"})),
        (None, ((), {})),
        ("a", (("a",), {})),
        ([1, 2], (([1, 2],), {})),
        (0, ((0,), {})),
        ({}, ((), {})),
    ],
)
def test_an_updates_payload_is_its_handlers_arguments(payload: Any, arguments: Any) -> None:
    assert arguments_of_update(encode_payload(payload, "update 'add'")) == arguments


def test_the_forms_are_these() -> None:
    """Written down in docs/formats.md: clients and workers of other releases read them."""
    assert encode_resume("approve", Item(sku="a"), "x") == b'{"action":"approve","value":{"sku":"a"}}'
    assert encode_query((1,), {"a": 2}, "x") == b'{"args":[1],"kwargs":{"a":2}}'
    assert encode_answer([1], "x") == b'{"ok":[1]}'
    failure = Failure("ValueError", "no")
    assert encode_failure(failure) == b'{"type":"ValueError","message":"no","trace":""}'
    assert encode_refusal(failure) == b'{"error":{"type":"ValueError","message":"no","trace":""}}'


def test_what_was_written_is_read() -> None:
    assert read_resume(encode_resume("deny", None, "x")) == InterruptAnswer("deny")
    assert read_query(encode_query(("a",), {"b": [1]}, "x")) == (("a",), {"b": [1]})
    assert read_answer(encode_answer(None, "x")) == (None, None)
    failure = Failure("app.E", "m", "t")
    assert read_answer(encode_refusal(failure)) == (None, failure)
    assert read_failure(encode_failure(failure)) == failure
    assert read_failure(None) == Failure("", "")


@pytest.mark.parametrize("hostile", [b"", b"[]", b"nul", b'"x"', b"\xff", b'{"args":1,"kwargs":[]}', b'{"error":[]}'])
def test_hostile_bytes_are_a_serialization_error(hostile: bytes) -> None:
    for read in (read_query, read_answer):
        with pytest.raises(SerializationError):
            read(hostile)
    if not hostile.startswith(b"{"):
        for other in (read_resume, read_failure):
            with pytest.raises(SerializationError):
                other(hostile)


def test_a_failure_is_text() -> None:
    try:
        raise KeyError("sku")
    except KeyError as error:
        failure = failure_of(error)
    assert (failure.type, failure.message) == ("KeyError", "'sku'")
    assert failure.trace.startswith("Traceback")
    assert "test_a_failure_is_text" in failure.trace
    assert failure_of(SerializationError("x")).type == "pyrula.workflows.errors.SerializationError"


def test_a_failure_can_always_be_told() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "can't be told" in failure_of(Rude()).message
    long = failure_of(ValueError("\ud800" + "x" * 100_000))
    assert len(encode_failure(long)) < 20_000


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, "\ud800", 2**70])
def test_what_has_no_form_in_json_is_refused_by_name(value: Any) -> None:
    with pytest.raises(SerializationError, match="signal 'go'"):
        encode_payload(value, "signal 'go'")
