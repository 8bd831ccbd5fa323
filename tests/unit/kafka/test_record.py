"""Records, fingerprints, witnesses and run ids. The exact texts are pinned in test_formats.py."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from aiokafka import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from pyrula.kafka.record import (
    PrintParts,
    Record,
    Witness,
    fingerprint,
    parse_run_id,
    record_identity,
    run_id,
    stream_digest,
    witness_bytes,
)

PLACE = ("orders", 3)


class Raw(NamedTuple):
    """A record as a client gives it."""

    value: Any = b"v"
    key: Any = b"k"
    timestamp: Any = 1_700_000_000_000
    headers: Any = ()
    offset: int = 42


int64 = st.integers(-(1 << 63), (1 << 63) - 1)
contents = st.none() | st.binary(max_size=30)
names = st.text(st.characters(codec="utf-8"), max_size=20)


def test_a_record_is_what_the_client_gave_with_its_value_decoded() -> None:
    raw: Any = ConsumerRecord(
        topic="orders",
        partition=3,
        offset=42,
        timestamp=1_700_000_000_123,
        timestamp_type=0,
        key=b"k",
        value=b"{}",
        checksum=None,
        serialized_key_size=1,
        serialized_value_size=2,
        headers=(("a", b"1"), ("b", b""), ("a", b"2")),
    )
    record = Record.of(raw, {"id": 1}, ("orders", 3))
    assert record == Record(
        topic="orders",
        partition=3,
        offset=42,
        key=b"k",
        value={"id": 1},
        headers=(("a", b"1"), ("b", b""), ("a", b"2")),
        timestamp_ms=1_700_000_000_123,
    )
    assert record.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def test_null_is_not_empty() -> None:
    assert Record.of(Raw(key=None), None, PLACE).key is None
    assert Record.of(Raw(key=b""), None, PLACE).key == b""
    assert Record.of(Raw(headers=[("a", None), ("a", b"")]), None, PLACE).headers == (("a", None), ("a", b""))
    prints = {fingerprint(Raw(key=key, value=value)) for key in (None, b"") for value in (None, b"")}
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (None, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ((1 << 63) - 1, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (-(1 << 63), datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_any_timestamp_can_be_read(timestamp: int | None, shown: datetime) -> None:
    assert Record.of(Raw(timestamp=timestamp), b"", PLACE).timestamp == shown


def test_a_record_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        Record.of(Raw(), b"", PLACE).value = b"other"  # type: ignore[misc]


@given(contents, contents, int64)
def test_a_fingerprint_comes_apart_and_back(key: bytes | None, value: bytes | None, timestamp: int) -> None:
    text = fingerprint(Raw(value=value, key=key, timestamp=timestamp))
    parts = PrintParts.parse(text)
    assert parts.timestamp_ms == timestamp
    assert str(parts) == text
    assert (parts.key is None, parts.value is None) == (key is None, value is None)


@given(st.integers(0, (1 << 63) - 1), contents, contents, int64)
def test_a_witness_survives_its_bytes(offset: int, key: bytes | None, value: bytes | None, timestamp: int) -> None:
    witness = Witness(offset, fingerprint(Raw(value=value, key=key, timestamp=timestamp)))
    assert len(bytes(witness)) == 25
    assert Witness.from_bytes(bytes(witness)) == witness


@given(st.integers(0, (1 << 63) - 1), contents, contents, int64 | st.none())
def test_the_bytes_of_a_witness_can_be_had_at_once(
    offset: int, key: bytes | None, value: bytes | None, timestamp: int | None
) -> None:
    raw = Raw(value=value, key=key, timestamp=timestamp, offset=offset)
    assert witness_bytes(raw) == bytes(Witness(offset, fingerprint(raw)))


@given(st.binary(max_size=40) | st.binary(min_size=25, max_size=25))
def test_foreign_bytes_are_no_witness_or_one_exactly(data: bytes) -> None:
    try:
        witness = Witness.from_bytes(data)
    except ValueError:
        return
    assert bytes(witness) == data


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2.3",
        "1.00000000.0000000g",
        "01.~.~",
        "-0.~.~",
        "1.~.~\n",
        "1.~~.~",
        "+1.~.~",
        "8000000000000000.~.~",
    ],
)
def test_other_texts_are_no_fingerprint(text: str) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        PrintParts.parse(text)


def test_what_differs_in_time_key_or_value_has_another_fingerprint() -> None:
    raw = Raw()
    others = [raw._replace(timestamp=1_700_000_000_001), raw._replace(key=b"l"), raw._replace(value=b"w")]
    assert len({fingerprint(one) for one in [raw, *others]}) == 4
    assert fingerprint(raw) == fingerprint(raw._replace(headers=(("a", b""),), offset=7)), "the rest doesn't count"


def test_identities_tell_apart_what_joined_texts_would_not() -> None:
    identities = {
        record_identity("ab", "c", "d", 1),
        record_identity("a", "bc", "d", 1),
        record_identity("a", "b", "cd", 1),
        record_identity("a", "b", "cd1", 1),
        record_identity("a", "b", "cd", 11),
        record_identity("", "ab", "cd", 1),
    }
    assert len(identities) == 6
    assert {len(identity) for identity in identities} == {16}


@given(
    st.integers(0, 255),
    names,
    names,
    names,
    st.integers(0, (1 << 31) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(1, 1000),
)
def test_a_run_id_comes_apart(
    shard: int, cluster: str, group: str, topic: str, partition: int, offset: int, incarnation: int
) -> None:
    text = run_id(shard, cluster, group, topic, partition, offset, incarnation)
    address = parse_run_id(text)
    assert address == (shard, stream_digest(cluster, group, topic), partition, offset, incarnation)
    assert text.isascii()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "03",
        "03-01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "3-kzlos5o63er-1-7",
        "0G-kzlos5o63er-1-7",
        "03-zlos5o63er-1-7",
        "03-kzlos5o63e-1-7",
        "03-kzlos5o63e1-1-7",
        "03-kZLOS5O63ER-1-7",
        "03-kzlos5o63er-01-7",
        "03-kzlos5o63er-1-07",
        "03-kzlos5o63er--1-7",
        "03-kzlos5o63er-1-7.",
        "03-kzlos5o63er-1-7.0",
        "03-kzlos5o63er-1-7.1",
        "03-kzlos5o63er-1-7\n",
        " 03-kzlos5o63er-1-7",
        "03-kzlos5o63er-1-\N{ARABIC-INDIC DIGIT SEVEN}",
        "03-kzlos5o63er-1-" + "9" * 100_000,
    ],
)
def test_other_texts_are_no_run_id(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a record's run"):
        parse_run_id(text)
