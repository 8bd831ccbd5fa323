"""An event for a workflow with a trigger: checked, with its key resolved and the window it opens if it is the first.

Rules: an event is a JSON object. Its key is looked up in its JSON form, so that a model and its dict have one key. What
the body would not take as one of its `events` is refused here, where its sender hears of it. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyrula.workflows.codec import dumps, encode_message, loads
from pyrula.workflows.definition import WorkflowDefinition, definition_of
from pyrula.workflows.errors import ConfigurationError, SerializationError
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.params import Params
from pyrula.workflows.policies import Collect, Debounce, resolve_key

__all__ = ["MAX_EVENT", "TriggerEvent", "Window", "batch_params", "room_for", "trigger_event", "triggered"]

MAX_EVENT: Final = 256 << 10
"""Bytes of one event as JSON."""

_COUNT_DIGITS: Final = 12


class Window(NamedTuple):
    """When a batch is full or due: what its first event says holds for all of it.

    With `max_events` (Collect) it is due `seconds` after the first event, without (Debounce) `seconds` after the last
    one, but no later than `max_wait` after the first.
    """

    seconds: float
    max_events: int | None = None
    max_wait: float | None = None


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """`data` is the event's JSON. It is fed once for each `id`; a `lasting` one may be fed again much later. `owner` is
    that of its batch, "" for none."""

    name: str
    key: str
    data: bytes
    window: Window
    id: str = ""
    lasting: bool = False
    owner: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """What the events of one buffer share."""
        return (self.name, self.key, self.owner) if self.owner else (self.name, self.key)


def triggered(named: str | WorkflowDefinition[..., Any]) -> WorkflowDefinition[..., Any]:
    """Raises ConfigurationError for a workflow that isn't imported or has no trigger."""
    definition = definition_of(named)
    if definition is None:
        raise ConfigurationError(
            f"workflow {named!r} isn't imported in this process, so that nothing is known of its trigger: import the "
            "module that defines it"
        )
    if definition.trigger is None:
        raise ConfigurationError(
            f"workflow {definition.name!r} has no trigger: declare it with trigger=Collect(...) or "
            "trigger=Debounce(...), or start a run of it by submit"
        )
    return definition


def trigger_event(definition: WorkflowDefinition[..., Any], event: object, event_id: str | None) -> TriggerEvent:
    """With `event_id`, if given, as its lasting id; else its caller gives it one.

    Raises ValueError naming workflow and field for an event that can't be taken."""
    what, policy = f"workflow {definition.name!r}", definition.trigger
    assert policy is not None
    if event_id is not None:
        _check_id(event_id, what)
    data, fields = _encoded(event, what)
    key = resolve_key(policy, fields, definition.name).encode("utf-8", "backslashreplace").decode()
    if (size := len(dumps(key))) > MAX_EVENT:
        raise ValueError(f"{what}: the key of its event has {size:,} bytes as JSON, the limit is {MAX_EVENT:,}")
    # what the worker would refuse, the sender hears of
    Params.of(definition).decode(batch_params(key, data, 1))
    return TriggerEvent(definition.name, key, data, _window(policy), event_id or "", event_id is not None)


def batch_params(key: str, events: bytes, count: int) -> bytes:
    """The params of a batch's run; `events` are joined by commas. seal.lua makes the same."""
    return b'{"key":%b,"events":[%b],"count":%d}' % (dumps(key), events, count)


def room_for(key: str) -> int:
    """Bytes that the events of a batch of this key may have, commas included."""
    return MAX_VALUE - len(batch_params(key, b"", 0)) - _COUNT_DIGITS


def _window(policy: Collect | Debounce) -> Window:
    if isinstance(policy, Collect):
        return Window(policy.window_seconds, policy.max_events)
    return Window(policy.window_seconds, None, policy.max_wait_seconds)


def _check_id(event_id: object, what: str) -> None:
    if not isinstance(event_id, str) or not event_id:
        raise ValueError(f"{what}: event_id must be a text that isn't empty, not {event_id!r:.100}")
    try:
        event_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}: event_id is no text that UTF-8 can hold: {error}") from error


def _encoded(event: object, what: str) -> tuple[bytes, dict[str, Any]]:
    if isinstance(event, Mapping) and not isinstance(event, dict):
        event = dict(event)
    try:
        data = encode_message(event, f"{what}: its event")
    except SerializationError as error:
        raise ValueError(_culprit(event, what) or str(error)) from error
    if len(data) > MAX_EVENT:
        raise ValueError(f"{what}: its event has {len(data):,} bytes as JSON, the limit is {MAX_EVENT:,}")
    fields = loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"{what}: an event must be a dict or a model, not {type(event).__name__}")
    return data, fields


def _culprit(event: object, what: str) -> str | None:
    """Which field of an event has no form in JSON."""
    if not isinstance(event, dict):
        return None
    for name, value in event.items():
        if not isinstance(name, str):
            return f"{what}: the names of an event's fields must be texts, not {name!r:.100}"
        try:
            encode_message({name: value}, f"{what}: its event's field {name!r:.100}")
        except SerializationError as error:
            return str(error)
    return None
