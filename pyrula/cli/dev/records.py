"""The records a dev session feeds: lines of a file, or what the example's own `sample_records(n)` yields.

A line is a record's value as it stands, so a line that isn't JSON is a record that isn't JSON. An *envelope* is an
object that says more: ``{"key": "k1", "value": {...}, "headers": {"source": "web"}, "topic": "orders"}``. Only "value"
(anything; null is a record without a value) or "text" (sent as it is) is needed. Plain rules, no Kafka.
"""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from pyrula.cli.load import broken
from pyrula.cli.problem import Problem

__all__ = ["Given", "count_lines", "from_file", "from_samples", "redirected"]

_OVERHEAD = 70
_FIELDS = frozenset({"key", "value", "text", "headers", "topic"})


class Given(NamedTuple):
    """A record to produce; `topic` None is the only input topic."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    topic: str | None = None

    @property
    def size(self) -> int:
        """Bytes it takes in a broker's log, about."""
        content = len(self.value or b"") + len(self.key or b"")
        return _OVERHEAD + content + sum(len(name) + len(value) for name, value in self.headers)


def from_file(path: str, *, envelope: bool, key_field: str | None, count: int | None) -> Iterator[Given]:
    """Records of a file of JSON lines ("-" is standard input), at most `count`; empty lines are left out."""
    given = keyed = 0
    for number, line in enumerate(_standard_input() if path == "-" else _lines(path), start=1):
        text = line.strip()
        if not text:
            continue
        record = _of_line(text, f"{path}:{number}", envelope, key_field)
        yield record
        given += 1
        keyed += record.key is not None
        if given == count:
            break
    if key_field is not None and given and not keyed:
        print(f"--key {key_field}: no record has a value in a field of that name, so none has a key", file=sys.stderr)


def _lines(path: str) -> Iterator[bytes]:
    with Path(path).open("rb") as lines:
        yield from lines


def _standard_input() -> Iterator[bytes]:
    """Each line as soon as it is there. Not through sys.stdin: a thread that waits in its buffer can't be left."""
    rest = b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        yield rest


def redirected() -> str:
    """What standard input is, as far as it may hold records: "file", "pipe" or ""."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return ""
    return "file" if stat.S_ISREG(mode) else "pipe" if stat.S_ISFIFO(mode) else ""


def count_lines(path: str) -> int:
    """How many records a file holds."""
    try:
        with Path(path).open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    except OSError as error:
        raise Problem(f"--records {path}: {error.strerror}") from None


def _of_line(text: bytes, where: str, envelope: bool, key_field: str | None) -> Given:
    if not envelope:
        return Given(text, _key_of(text, key_field) if key_field else None)
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise Problem(f"{where} is no JSON ({error}). With --envelope every line is an object with a value") from None
    if not isinstance(fields, dict):
        raise Problem(f"{where}: with --envelope every line is an object like {{'key': …, 'value': …}}")
    return _of_envelope(fields, where)


def _key_of(text: bytes, field: str) -> bytes | None:
    # A record that has no such field is the workflow's to refuse, not ours: it goes without a key.
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return _key(value.get(field), field) if isinstance(value, dict) else None


def from_samples(samples: Callable[[int], Iterable[Any]], count: int) -> Iterator[Given]:
    """Records that ``sample_records(count)`` of the user's file yields: envelopes, or pairs of key and value."""
    for number, sample in enumerate(_yielded(samples, count)):
        where = f"sample_records({count}), item {number}"
        if isinstance(sample, Mapping):
            yield _of_envelope(sample, where)
        elif isinstance(sample, tuple) and len(sample) == 2:
            yield Given(_value(sample[1], where), _key(sample[0], where))
        else:
            raise Problem(
                f"{where} is {sample!r:.200}; yield (key, value), or a dict like {{'key': …, 'value': …, 'headers': …}}"
            )


def _yielded(samples: Callable[[int], Iterable[Any]], count: int) -> Iterator[Any]:
    try:
        yield from samples(count)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise broken(error, f"sample_records({count}) failed") from None


def _of_envelope(fields: Mapping[str, Any], where: str) -> Given:
    unknown = sorted(map(str, fields.keys() - _FIELDS))
    if unknown:
        raise Problem(f"{where} has {', '.join(unknown)}; a record may have {', '.join(sorted(_FIELDS))}")
    if ("value" in fields) == ("text" in fields):
        raise Problem(f"{where} needs a value (or a text, which is sent as it stands), and not both")
    value = fields["text"].encode() if "text" in fields else _value(fields["value"], where)
    headers = fields.get("headers") or {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return Given(
        value,
        _key(fields.get("key"), where),
        tuple((str(name), content if isinstance(content, bytes) else str(content).encode()) for name, content in pairs),
        fields.get("topic"),
    )


def _value(value: Any, where: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    try:
        return to_json(value)
    except PydanticSerializationError as error:
        raise Problem(f"{where}: its value can't be written as JSON: {error}") from None


def _key(key: Any, where: str) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    raise Problem(f"{where}: the key {key!r:.200} is no text, number, bytes or None")
