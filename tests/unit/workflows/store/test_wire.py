"""Commands as bytes, read back by a parser of the protocol."""

from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.scripts import script

APPEND = script("append")


def parse(data: bytes) -> list[bytes]:
    """One command; nothing may follow it."""
    assert data[:1] == b"*"
    head, rest = data[1:].split(b"\r\n", 1)
    arguments = []
    for _ in range(int(head)):
        assert rest[:1] == b"$"
        length, rest = rest[1:].split(b"\r\n", 1)
        size = int(length)
        assert rest[size : size + 2] == b"\r\n"
        arguments.append(rest[:size])
        rest = rest[size + 2 :]
    assert rest == b""
    return arguments


def run(arguments: list[bytes]) -> dict[tuple[int, int], bytes]:
    """What append.lua would do with the command."""
    assert arguments[:2] == [b"EVALSHA", APPEND.digest]
    count = int(arguments[2])
    keys, argv = arguments[3 : 3 + count], arguments[3 + count :]
    assert keys[0] == b"source"
    groups = int(argv[5])
    at = 6 + 4 * groups
    rows: dict[tuple[int, int], bytes] = {}
    for group in range(groups):
        place, bucket, number, size = (int(value) for value in argv[6 + 4 * group : 10 + 4 * group])
        assert keys[place - 1] == b"j:%d" % bucket
        written = 0
        for _ in range(abs(number)):
            position, index = (int(part) for part in argv[at].split(b"."))
            assert position >> 10 == bucket
            if number > 0:
                rows[position, index] = argv[at + 1]
                written += len(argv[at + 1])
            else:
                rows.pop((position, index), None)
            at += 2 if number > 0 else 1
        assert written == size
    assert at == len(argv)
    return rows


positions = st.integers(0, 5000) | st.integers(2**52, 2**53 - 1)
data = st.binary(max_size=5) | st.sampled_from([b"", b"\r\n$1\r\n", b"x" * 300])
rows_of_batches = st.lists(st.tuples(positions, st.integers(0, 3), data), max_size=60)
# No row is deleted, and the names of the fields have one length or several.
rows_of_a_bucket = st.sampled_from([2, 9, 99, 999, 9_999]).flatmap(
    lambda first: st.lists(
        st.tuples(st.integers(first, first + 3), st.integers(0, 3) | st.integers(-2, 12), st.binary(min_size=1)),
        min_size=1,
        max_size=8,
    )
)


@given(rows_of_batches | rows_of_a_bucket)
def test_rows_arrive_whole_and_take_effect_in_order(rows: list[tuple[int, int, bytes]]) -> None:
    batch = Batch(b"s" * 16, Token(1, 2), rows, 5, b"wit\r\nness")
    arguments = parse(wire.append(APPEND, b"source", b"j:", batch, b"sender.7", 60))
    expected: dict[tuple[int, int], bytes] = {}
    for position, index, value in rows:
        if value:
            expected[position, index] = value
        else:
            expected.pop((position, index), None)
    assert run(arguments) == expected
    first = 3 + int(arguments[2])
    assert arguments[first : first + 5] == [b"1.2", b"sender.7", b"5", b"wit\r\nness", b"60"]


def test_rows_of_two_buckets_in_turns_make_two_groups() -> None:
    rows = [(1023 + number % 2, number, b"x") for number in range(100)]
    arguments = parse(wire.append(APPEND, b"source", b"j:", Batch(b"s" * 16, Token(1, 1), rows, 1024), b"s.1", 60))
    assert arguments[2] == b"3"
    assert arguments[11] == b"2"
    assert run(arguments) == {(position, index): value for position, index, value in rows}


@given(st.lists(st.binary(), min_size=1))
def test_any_arguments_can_be_sent(arguments: list[bytes]) -> None:
    assert parse(wire.command(*arguments)) == arguments
