"""A record in the store comes back as it was."""

from hypothesis import given
from hypothesis import strategies as st

from pyrula.kafka.record import Record, fingerprint
from pyrula.kafka.stored_record import StoredRecord, encode_record

BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.builds(
    StoredRecord,
    st.just("orders"),
    st.integers(0, 100),
    st.integers(0, 2**53),
    st.integers(-1, 2**45),
    BYTES,
    BYTES,
    st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=4).map(tuple),
)


@given(RECORDS)
def test_it_comes_back_as_it_was(record: StoredRecord) -> None:
    again = StoredRecord.decode(encode_record(record, record.place))
    assert again == record
    assert fingerprint(again) == fingerprint(record)
    assert Record.of(again, again.value, again.place) == Record.of(record, record.value, record.place)


def test_its_form_is_public() -> None:
    record = StoredRecord("orders", 3, 7, 1_700_000_000_000, b"k\xff", None, (("h", b"1"), ("h", None)))  # type: ignore[arg-type]
    assert encode_record(record, record.place) == (
        b'{"topic":"orders","partition":3,"offset":7,"timestamp":1700000000000,"key":"a/8=","value":null,'
        b'"headers":[["h","MQ=="],["h",null]]}'
    )
