"""Whether a value came back from its JSON as it went in.

`difference` compares a value with its decoded form, types included, and says where they part. Three changes are let
through: a tuple becomes a list unless a tuple is declared, an int as a key its text unless an int is declared, an int
the equal float where a float is declared. What isn't data isn't compared: a model's private attributes and which of its
fields were given explicitly, a dataclass's attributes beside its fields, the name of a time zone (its offset is).

`plain` gives the JSON form of a value that has no annotation, under the same rules. `not_finite` finds what JSON has no
form for.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import BaseModel

__all__ = ["NotPlain", "difference", "not_finite", "plain"]

_EXACT = frozenset((str, int, bool, type(None), bytes))
_EQUAL = _EXACT | {float}
_INT_RANGE = range(-(2**63), 2**64)
_UNSET = object()


class NotPlain(ValueError):
    """A value without annotation that JSON can't hold unchanged; the text says where and what."""


def plain(value: Any, path: str = "") -> Any:
    """The form in which a value without annotation comes back: JSON types only. Raises NotPlain."""
    kind = type(value)
    if kind in _EXACT and kind is not bytes:
        if kind is int and value not in _INT_RANGE:
            raise NotPlain(f"an int of more than 64 bits{_at(path)}")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise NotPlain(f"{value!r}{_at(path)}")
        return value
    if kind is list or kind is tuple:
        return [plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        return _plain_dict(value, path)
    raise NotPlain(f"a {_name(kind)}{_at(path)}")


def _plain_dict(value: dict[Any, Any], path: str) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str and type(key) is not int:
            raise NotPlain(f"a key of type {_name(type(key))}{_at(path)}")
        text = str(key)
        if text in form:
            raise NotPlain(f"the keys {text!r} and {text}, one key there,{_at(path)}")
        form[text] = plain(item, f"{path}[{key!r}]")
    return form


def not_finite(value: Any, path: str = "") -> tuple[str, float] | None:
    """The first NaN or infinity in a value, and where it is, as in `order.lines.0.cents`."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, value)
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, BaseModel):
        items = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif isinstance(value, Mapping):
        items = value.items()
    elif is_dataclass(value):
        items = [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    places = (not_finite(inner, f"{path}.{name}" if path else str(name)) for name, inner in items)
    return next((place for place in places if place is not None), None)


def difference(before: Any, after: Any) -> str | None:
    """None if `after` is `before` unchanged; else the place and the change, as text that follows on a name."""
    kind = type(before)
    if kind is not type(after):
        return _difference_of_types(before, after)
    if kind in _EXACT:
        return None if before == after else _changed(before, after)
    if kind is float:
        same = before == after or (before != before and after != after)
        return None if same else _changed(before, after)
    if kind is list or kind is tuple:
        return _difference_of_items(before, after)
    if kind is dict:
        return _difference_of_dicts(before, after)
    if isinstance(before, BaseModel):
        return _difference_of_models(before, after)
    if isinstance(before, Enum):
        return None if before is after else _changed(before, after)
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return _difference_of_fields({name: getattr(before, name, _UNSET) for name in names}, after)
    return _difference_of_others(before, after)


def _difference_of_types(before: Any, after: Any) -> str | None:
    kind, other = type(before), type(after)
    if kind is tuple and other is list:
        return _difference_of_items(before, after)
    if kind is int and other is float and before == after:
        return None
    if isinstance(before, BaseModel) and isinstance(after, kind) and _origin(other) is kind:
        return _difference_of_models(before, after)  # Box(...) declared as Box[int]
    return f": a {_name(kind)} comes back as a {_name(other)}"


# The loops compare plain items themselves: a call for each would take most of the time.


def _difference_of_items(before: Sequence[Any], after: Sequence[Any]) -> str | None:
    if len(before) != len(after):
        return f": {len(before)} items come back as {len(after)}"
    for index, (one, two) in enumerate(zip(before, after, strict=True)):
        kind = type(one)
        if kind in _EQUAL and kind is type(two) and one == two:
            continue
        found = difference(one, two)
        if found is not None:
            return f"[{index}]{found}"
    return None


def _difference_of_dicts(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str | None:
    if len(before) != len(after):
        return f": {len(before)} keys come back as {len(after)}"
    for (key, one), (other, two) in zip(before.items(), after.items(), strict=True):
        if key != other or type(key) is not type(other):
            return _difference_of_keys(before, after)
        kind = type(one)
        if kind in _EQUAL and kind is type(two) and one == two:
            continue
        found = difference(one, two)
        if found is not None:
            return f"[{key!r}]{found}"
    return None


def _difference_of_keys(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str | None:
    """For dicts whose order or types of keys changed."""
    keys = {(type(key), key): key for key in after}
    for key, item in before.items():
        # an int where a float is declared, or where nothing is
        others = ((float, key), (str, str(key))) if type(key) is int else ()
        match = next((each for each in ((type(key), key), *others) if each in keys), None)
        if match is None:
            return f": the key {_short(key)}, a {_name(type(key))}, comes back as another"
        found = difference(item, after[keys[match]])
        if found is not None:
            return f"[{key!r}]{found}"
    return None


def _difference_of_models(before: BaseModel, after: BaseModel) -> str | None:
    found = _difference_of_fields(before.__dict__, after)
    if found is None and (before.__pydantic_extra__ or after.__pydantic_extra__):
        return _difference_of_dicts(before.__pydantic_extra__ or {}, after.__pydantic_extra__ or {})
    return found


def _difference_of_fields(before: dict[str, Any], after: Any) -> str | None:
    for name, one in before.items():
        two = getattr(after, name, _UNSET)
        kind = type(one)
        if kind in _EQUAL and kind is type(two) and one == two:
            continue
        found = difference(one, two)
        if found is not None and not (isinstance(after, BaseModel) and name not in type(after).model_fields):
            return f".{name}{found}"  # what isn't a field is left by a cached_property, say
    return None


def _difference_of_others(before: Any, after: Any) -> str | None:
    if isinstance(before, (set, frozenset)):
        same = {(type(item), item) for item in before} == {(type(item), item) for item in after}
    elif isinstance(before, tuple):
        return _difference_of_items(before, after)
    elif isinstance(before, Decimal):
        same = before.as_tuple() == after.as_tuple()
    elif isinstance(before, (datetime, time)):
        same = before == after and before.utcoffset() == after.utcoffset()
    elif isinstance(before, date):
        same = before == after
    elif isinstance(before, Mapping):
        return _difference_of_dicts(before, after)
    else:
        same = bool(before == after)
    return None if same else _changed(before, after)


def _origin(kind: type[BaseModel]) -> type | None:
    origin: type | None = kind.__pydantic_generic_metadata__["origin"]
    return origin


def _changed(before: Any, after: Any) -> str:
    return f": {_short(before)} comes back as {_short(after)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _at(path: str) -> str:
    return f" at {path}" if path else ""
