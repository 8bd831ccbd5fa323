"""An event on its way to a trigger: what is taken, what is refused and by which words, and which key it has."""

import math
from collections import OrderedDict
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel

from pyrula.workflows import Collect, ConfigurationError, Context, Debounce, workflow
from pyrula.workflows.batching import MAX_EVENT, Window, batch_params, room_for, trigger_event, triggered
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.model import MAX_VALUE


class Comment(BaseModel):
    user_id: str
    at: datetime
    likes: int = 0


@workflow(name="batching_digest", trigger=Collect(key="user_id", max_events=50, window_seconds=60))
async def digest(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None: ...


@workflow(
    name="batching_typed", trigger=Debounce(lambda event: event["at"][:10], window_seconds=5, max_wait_seconds=60)
)
async def typed(ctx: Context, key: str, events: list[Comment], count: int) -> None: ...


@workflow(name="batching_plain")
async def plain(ctx: Context, user_id: str) -> None: ...


def key_of(definition: WorkflowDefinition[..., Any], event: object) -> str:
    return trigger_event(definition, event, None).key


def test_an_event_is_what_its_json_says() -> None:
    event = trigger_event(digest, {"user_id": "u1", "kind": "comment"}, "e-1")
    assert (event.name, event.key, event.data) == ("batching_digest", "u1", b'{"user_id":"u1","kind":"comment"}')
    assert (event.id, event.lasting, event.window) == ("e-1", True, Window(60, 50))
    assert trigger_event(typed, Comment(user_id="u", at=datetime(2025, 5, 6, tzinfo=UTC)), None).window == Window(
        5, None, 60
    )


@pytest.mark.parametrize("event", [{"user_id": "u"}, OrderedDict(user_id="u"), MappingProxyType({"user_id": "u"})])
def test_any_mapping_is_an_event(event: object) -> None:
    assert key_of(digest, event) == "u"


@pytest.mark.parametrize(
    ("event", "key"),
    [
        ({"user_id": 1}, "1"),
        ({"user_id": "1"}, "1"),
        ({}, ""),
        ({"user_id": None}, ""),
        ({"user_id": ["a", 1]}, '["a",1]'),
        ({"user_id": {"b": 1, "a": 2}}, '{"a":2,"b":1}'),
        ({"user_id": "{x}:y \n\0 é"}, "{x}:y \n\0 é"),
    ],
)
def test_the_key_is_that_of_a_policy(event: object, key: str) -> None:
    assert key_of(digest, event) == key


def test_a_models_key_is_that_of_its_json() -> None:
    at = datetime(2025, 5, 6, tzinfo=UTC)
    assert key_of(typed, Comment(user_id="u", at=at)) == key_of(typed, {"user_id": "u", "at": at}) == "2025-05-06"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ([1], "workflow 'batching_digest': an event must be a dict or a model, not list"),
        ('{"user_id": 1}', "an event must be a dict or a model, not str"),
        (None, "an event must be a dict or a model, not NoneType"),
        ({1: 2}, "workflow 'batching_digest': the names of an event's fields must be texts, not 1"),
        (
            {"a": 1, "b": object()},
            "workflow 'batching_digest': its event's field 'b': the value can't be written as JSON",
        ),
        ({"b": math.nan}, "its event's field 'b': the value can't be written as JSON: nan has no form in JSON"),
        ({"b": "\ud800"}, "its event's field 'b'"),
        (
            {"a": "x" * MAX_EVENT},
            "workflow 'batching_digest': its event has 262,152 bytes as JSON, the limit is 262,144",
        ),
    ],
)
def test_what_is_no_event_is_refused_by_name(event: object, text: str) -> None:
    with pytest.raises(ValueError, match="workflow 'batching_digest'") as refused:
        trigger_event(digest, event, None)
    assert text in str(refused.value)


def test_what_the_body_would_not_take_is_refused_naming_the_field() -> None:
    with pytest.raises(
        ValueError, match=r"workflow 'batching_typed', events\.0\.likes: Input should be a valid integer"
    ):
        trigger_event(typed, {"user_id": "u", "at": "2025-05-06T00:00:00Z", "likes": "many"}, None)
    with pytest.raises(ValueError, match=r"workflow 'batching_typed': the key of Debounce failed.*KeyError: 'at'"):
        trigger_event(typed, {"user_id": "u"}, None)


def test_a_body_that_takes_something_else_than_batches_is_told_at_the_first_event() -> None:
    @workflow(name="batching_other", trigger=Collect("user_id", 2, 60))
    async def other(ctx: Context, key: str, user_id: str) -> None: ...

    with pytest.raises(ValueError, match="workflow 'batching_other', user_id: Field required"):
        trigger_event(other, {"user_id": "u"}, None)


def test_a_key_has_a_size() -> None:
    @workflow(name="batching_long", trigger=Collect(lambda event: "é" * MAX_EVENT, 2, 60))
    async def long(ctx: Context, key: str, events: list[Any], count: int) -> None: ...

    with pytest.raises(ValueError, match="the key of its event has 524,290 bytes as JSON, the limit is 262,144"):
        trigger_event(long, {}, None)


def test_a_key_that_no_text_can_hold_is_written_out() -> None:
    @workflow(name="batching_odd", trigger=Collect(lambda event: "\ud800", 2, 60))
    async def odd(ctx: Context, key: str, events: list[Any], count: int) -> None: ...

    assert key_of(odd, {}) == "\\ud800"


@pytest.mark.parametrize("event_id", ["", 5, "\ud800"])
def test_an_events_id_is_a_text(event_id: Any) -> None:
    with pytest.raises(ValueError, match="workflow 'batching_digest': event_id"):
        trigger_event(digest, {"user_id": "u"}, event_id)


def test_a_workflow_that_cannot_be_triggered_is_told_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"'batching_nobody' isn't imported in this process.*import"):
        triggered("batching_nobody")
    with pytest.raises(ConfigurationError, match=r"'batching_plain' has no trigger: declare it with trigger=Collect"):
        triggered(plain)
    assert triggered("batching_digest") is digest


def test_params_of_a_batch_and_the_room_for_its_events() -> None:
    assert batch_params('a"b', b'{"x":1},{"x":2}', 2) == b'{"key":"a\\"b","events":[{"x":1},{"x":2}],"count":2}'
    for key in ("", "u1", "é" * 1000):
        events = b",".join([b"1" * 99_999] * 10)[: room_for(key)]
        assert len(batch_params(key, events, 10**11)) <= MAX_VALUE
        assert loads(batch_params(key, b"", 0)) == {"key": key, "events": [], "count": 0}
        assert dumps(key) in batch_params(key, b"", 0)
