"""Rows of a journal: their bytes, which are a public format, and what can be looked up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows import SerializationError
from pyrula.workflows.codec import Codec, dumps, loads
from pyrula.workflows.replay.journal import DELIVERIES, NOTES, Entry, Journal, decode_row, encode_row

ROWS = [
    (
        Entry("value", "1", "step", "charge", 1, None, b'{"id":"ch_1"}'),
        "fp",
        b'[1,"value","1","step","charge",1,null,{"id":"ch_1"},"fp"]',
    ),
    (
        Entry("error", "pay.0:2", "step", "charge", 7, None, b'{"type":"ValueError"}'),
        None,
        b'[1,"error","pay.0:2","step","charge",7,null,{"type":"ValueError"},null]',
    ),
    (Entry("value", "2", "sleep", "", 2, None, b"null"), "fp", b'[1,"value","2","sleep","",2,null,null,"fp"]'),
    (Entry("cancel", "", "", "", 3, "m1", b"null"), "fp", b'[1,"cancel","","","",3,"m1",null,"fp"]'),
    (Entry("abort", "", "", "", 3, None, b"null"), "fp", b'[1,"abort","","","",3,null,null,"fp"]'),
    (
        Entry("deadline", "2", "sleep", "", None, None, b"1735689600.5"),
        "fp",
        b'[1,"deadline","2","sleep","",null,null,1735689600.5,"fp"]',
    ),
    (Entry("attempt", "", "", "", None, None, b"2"), "fp", b'[1,"attempt","","","",null,null,2,"fp"]'),
    (Entry("patch", "", "", "change", None, None, None), "fp", b'[1,"patch","","","change",null,null,null,"fp"]'),
    (Entry("loose", "", "", "", None, None, None), "fp", b'[1,"loose","","","",null,null,null,"fp"]'),
    (Entry("head", "", "", "3.11", None, None, None), "fp", b'[1,"head","","","3.11",null,null,null,"fp"]'),
    (
        Entry("update", "um1", "update", "add", 4, "m1", b'{"sku":"A-1"}'),
        None,
        b'[1,"update","um1","update","add",4,"m1",{"sku":"A-1"},null]',
    ),
    (
        Entry("interrupt", "3", "interrupt", "i7", None, None, b'"sure?"'),
        None,
        b'[1,"interrupt","3","interrupt","i7",null,null,"sure?",null]',
    ),
    (
        Entry("trigger", "4", "trigger", "digest", None, None, b'"5f"'),
        None,
        b'[1,"trigger","4","trigger","digest",null,null,"5f",null]',
    ),
    (
        Entry("child", "4", "start_child", "ship", None, None, b'"00-x"'),
        None,
        b'[1,"child","4","start_child","ship",null,null,"00-x",null]',
    ),
    (
        Entry("applied", "um1", "update", "add", None, None, None),
        None,
        b'[1,"applied","um1","update","add",null,null,null,null]',
    ),
    (
        Entry("answer", "2", "step", "charge", None, None, b'["value",5]'),
        None,
        b'[1,"answer","2","step","charge",null,null,["value",5],null]',
    ),
    (
        Entry("message", "signal:s1", "signal", "go", None, "s1", b"true"),
        None,
        b'[1,"message","signal:s1","signal","go",null,"s1",true,null]',
    ),
    (Entry("failed", "", "", "", None, None, b"7"), None, b'[1,"failed","","","",null,null,7,null]'),
    (
        Entry("mark", "", "", "", None, None, b'[1,0,"beside",4]'),
        "18fabc.12345678.~",
        b'[1,"mark","","","",null,null,[1,0,"beside",4],"18fabc.12345678.~"]',
    ),
    (Entry("done", "", "", "", None, None, b'"5f"'), None, b'[1,"done","","","",null,null,"5f",null]'),
]


@pytest.mark.parametrize(("entry", "fingerprint", "data"), ROWS, ids=[row[0].kind for row in ROWS])
def test_the_format_is_pinned(entry: Entry, fingerprint: str | None, data: bytes) -> None:
    assert encode_row(entry, fingerprint) == data
    assert decode_row(data) == (entry, fingerprint)


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    value=st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.just("x" * 5_000), st.integers(-1, 1 << 63)
    ),
    clock=st.one_of(st.none(), st.integers(0, 100_000)),
    fingerprint=st.sampled_from([None, "18fabc.12345678.~"]),
)
def test_any_text_of_a_row_is_written_as_json(
    name: str, value: Any, clock: int | None, fingerprint: str | None
) -> None:
    entry = Entry("value", "12", "step", name, clock, None, dumps(value))
    data = encode_row(entry, fingerprint)
    assert data == dumps(loads(data))
    assert loads(data) == [1, "value", "12", "step", name, clock, None, value, fingerprint]


def test_every_kind_is_pinned() -> None:
    assert {row[0].kind for row in ROWS} == DELIVERIES | NOTES


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'[2,"value","1","step","x",1,null,1,"fp"]', "format 2"),
        (b'["9.1"]', "format '9.1'"),
        (b'[1,"novelty","1","step","x",1,null,1,"fp"]', "unknown kind 'novelty'"),
        (b'[1,"value"]', "damaged"),
        (b"[]", "damaged"),
        (b"5", "damaged"),
        (b"{", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"", "damaged"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data: bytes, text: str) -> None:
    with pytest.raises(SerializationError, match=text):
        decode_row(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)  # fmt: skip


@given(json_values)
def test_values_come_back_as_they_were_encoded(value: Any) -> None:
    data, decoded = Codec.of().encode(value, "a value")
    entry, _ = decode_row(encode_row(Entry("value", "1", "step", "x", 1, None, data), None))
    assert entry.value is not None
    assert Codec.of().decode(entry.value) == decoded


@given(st.lists(st.sampled_from(ROWS), max_size=12), st.randoms(use_true_random=False))
def test_loading_in_any_order(rows: list[tuple[Entry, str | None, bytes]], rng: Any) -> None:
    stored = [(index * 2, data) for index, (_, _, data) in enumerate(rows)]
    shuffled = list(stored)
    rng.shuffle(shuffled)
    journal = Journal.load(shuffled)
    assert journal.recorded == [entry for entry, _, _ in rows if entry.kind in DELIVERIES]
    assert journal.entries() == [(index * 2, entry) for index, (entry, _, _) in enumerate(rows)]
    assert journal.next_index == (len(rows) * 2 - 1 if rows else 0)
    assert journal.rows("fp") == [(index, encode_row(entry, "fp")) for index, entry in journal.entries()]
    assert len(journal) == len(rows)


def test_the_last_note_counts() -> None:
    journal = Journal()
    for number in (1, 2):
        journal.append(Entry("attempt", "4", "", "", None, None, dumps([number, 0, None])))
    journal.append(Entry("patch", "", "", "change", None, None, None))
    note = journal.note("attempt", "4")
    assert note is not None
    assert note.value == b"[2,0,null]"
    assert journal.note("patch", "change") is not None
    assert journal.note("patch", "other") is None
    assert journal.note("attempt", "") is None


def test_indexes_stay_used() -> None:
    journal = Journal()
    for number in range(4):
        journal.append(Entry("value", str(number), "now", "", number, None, b"1"))
    shorter = journal.without({2, 3})
    assert [index for index, _ in shorter.entries()] == [0, 1]
    assert shorter.append(Entry("value", "2", "now", "", 2, None, b"1")) == 4
    assert len(shorter.recorded) == 2


def test_loose_from_the_next_delivery_on() -> None:
    value = encode_row(Entry("value", "1", "now", "", 1, None, b"1"), None)
    loose = encode_row(Entry("loose", "", "", "", None, None, None), None)
    assert Journal.load([(0, value), (1, loose), (2, value)]).loose_from == 1
    assert Journal.load([(0, value)]).loose_from is None
