"""The completion map in commit metadata: round trip, bound, and everything that must not be believed."""

import random
import time
import tracemalloc
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrula.kafka import commit_map
from pyrula.kafka.commit_map import DEFAULT_LIMIT, LONGEST, CommitMap, Foreign, decode, encode
from pyrula.kafka.offsets import OffsetTracker, Range
from pyrula.kafka.record import Witness

INSTANCE = "4f5b0c9d1c5e4d0f9b1a6f3b2a7c8d9e"
TOP = (1 << 63) - 1
PRINT = "18bcfe56800.0862575d.6b643b84"
SMALLEST = 40


def cost(call: Callable[[], object]) -> tuple[float, int]:
    """Seconds of this process and bytes at most, measured in two calls since tracing slows the first."""
    began = time.process_time()
    call()
    seconds = time.process_time() - began
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak


def covered(ranges: Sequence[Range]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def own(text: str, committed: int, end: int = TOP) -> CommitMap:
    found = decode(text, committed, end)
    assert isinstance(found, CommitMap), found
    return found


def reason(text: str | None, committed: int = 100, end: int = TOP) -> str:
    found = decode(text, committed, end)
    assert isinstance(found, Foreign), found
    return found.reason


@st.composite
def maps(draw: st.DrawFn) -> tuple[int, list[Range], Witness]:
    """A committed offset, ranges above it as the tracker gives them, and a witness at their end or later."""
    at = committed = draw(st.integers(0, 1 << draw(st.sampled_from([3, 20, 40, 62]))))
    ranges: list[Range] = []
    big = st.one_of(st.integers(1, 3), st.integers(1, 200), st.integers(1, 1 << 40))
    for gap, length in draw(st.lists(st.tuples(big, big), max_size=60)):
        if at + gap + length >= TOP:
            break
        ranges.append((at + gap, at + gap + length))
        at = ranges[-1][1]
    if ranges and draw(st.sampled_from([0, 1])):
        ranges[0] = (committed, ranges[0][1])
    offset = min(max(at - 1, 0) + draw(st.sampled_from([0, 0, 1, 1000])), TOP - 1)
    null = st.just("~")
    crc = st.integers(0, (1 << 32) - 1).map("{:08x}".format)
    timestamp = draw(st.sampled_from([0, -1, 1_700_000_000_000, TOP, -TOP - 1]))
    return committed, ranges, Witness(offset, f"{timestamp:x}.{draw(null | crc)}.{draw(null | crc)}")


limits = st.sampled_from([64, 65, 66, 67, 68, 100, 256, 1000, DEFAULT_LIMIT, LONGEST, 10**9])


@settings(max_examples=300, deadline=None)
@given(maps(), limits)
def test_a_map_comes_back_as_written_or_as_its_lowest_part(written: Any, limit: int) -> None:
    committed, ranges, witness = written
    text = encode(committed, ranges, witness, INSTANCE, limit)
    assert text.isascii()
    assert len(text.encode()) <= limit
    found = own(text, committed)
    assert found.committed == committed
    assert found.written_with(INSTANCE)
    assert not found.written_with("another")
    assert found.witness in ((witness,) if limit > 90 else (witness, None))
    if limit >= DEFAULT_LIMIT:
        assert list(found.ranges) == ranges
    for at, kept in enumerate(found.ranges):
        last = at == len(found.ranges) - 1
        assert kept == ranges[at] or (last and kept[0] == ranges[at][0] and kept[1] <= ranges[at][1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.floats(0.01, 0.99), st.integers(1, 3000), limits)
def test_any_pattern_of_single_offsets_fits(seed: int, density: float, size: int, limit: int) -> None:
    rng = random.Random(seed)
    tracker = OffsetTracker(1000)
    tracker.extend(range(1000, 1000 + size))
    for offset in range(1001, 1000 + size):
        if rng.random() < density:
            tracker.complete([offset])
    ranges = tracker.done_above()
    top = ranges[-1][1] - 1 if ranges else 1000
    text = encode(1000, ranges, Witness(top, PRINT), INSTANCE, limit)
    assert len(text.encode()) <= limit
    kept, all_done = covered(own(text, 1000).ranges), covered(ranges)
    highest = max(kept, default=0)
    assert kept == {offset for offset in all_done if offset <= highest}, "lowest first, none left out"
    if limit >= DEFAULT_LIMIT:
        assert kept == all_done


@pytest.mark.parametrize("limit", [64, 128, 256, 1024, DEFAULT_LIMIT])
@pytest.mark.parametrize("stride", [2, 3, 10, 100])
def test_alternating_offsets_stay_within_the_limit(limit: int, stride: int) -> None:
    tracker = OffsetTracker(7)
    tracker.extend(range(7, 100_007))
    for offset in range(8, 100_007, stride):
        tracker.complete([offset])
    ranges = tracker.done_above()
    text = encode(7, ranges, Witness(100_006, PRINT), INSTANCE, limit)
    assert len(text.encode()) <= limit
    kept = covered(own(text, 7).ranges)
    highest = max(kept)
    assert kept == {offset for offset in covered(ranges) if offset <= highest}
    if limit == DEFAULT_LIMIT:
        # 3 KB hold 24,000 offsets as bits, or 1,500 ranges as runs.
        assert len(kept) >= (11_900 if stride == 2 else 1_000 if stride == 100 else 2_300)


def test_the_shorter_form_is_taken() -> None:
    runs = encode(0, [(1, 60_000)], Witness(60_000, PRINT), INSTANCE)
    assert len(runs) < 70
    bits = encode(0, [(offset, offset + 1) for offset in range(1, 401, 2)], Witness(400, PRINT), INSTANCE)
    assert len(bits) < 70 + 400 / 8 * 4 / 3


def test_no_text_is_longer_than_the_protocol_can_carry() -> None:
    ranges = [(offset, offset + 1) for offset in range(1, 1_000_000, 7)]
    text = encode(0, ranges, Witness(1_000_000, PRINT), INSTANCE, 10**9)
    assert LONGEST - 4 < len(text) <= LONGEST
    assert own(text, 0).ranges


def test_a_map_without_ranges_is_ours() -> None:
    found = own(encode(5, (), None, INSTANCE), 5, end=5)
    assert found == CommitMap(5, (), None, found.store)
    assert found.written_with(INSTANCE)


def test_nothing_is_claimed_above_the_witness() -> None:
    ranges = [(12, 14), (20, 30), (40, 50)]
    assert own(encode(10, ranges, None, INSTANCE), 10).ranges == ()
    assert own(encode(10, ranges, Witness(11, PRINT), INSTANCE), 10).ranges == ()
    assert own(encode(10, ranges, Witness(24, PRINT), INSTANCE), 10).ranges == ((12, 14), (20, 25))
    assert own(encode(10, ranges, Witness(49, PRINT), INSTANCE), 10).ranges == tuple(ranges)


@pytest.mark.parametrize("limit", range(SMALLEST + 30))
def test_a_limit_too_low_for_anything_gives_no_text_and_no_error(limit: int) -> None:
    text = encode(1 << 40, [((1 << 40) + 1, (1 << 40) + 2)], Witness((1 << 40) + 1, PRINT), INSTANCE, limit)
    assert len(text) <= limit
    assert text == "" or own(text, 1 << 40).written_with(INSTANCE)
    assert text or limit < SMALLEST


@settings(max_examples=300, deadline=None)
@given(maps(), limits, st.integers(0, TOP - 1), st.sampled_from(["0.~.~", "-1.~.00000001", PRINT]))
def test_an_anchor_comes_back_where_it_is_below_the_witness(
    written: Any, limit: int, offset: int, fingerprint: str
) -> None:
    committed, ranges, witness = written
    anchor = Witness(offset % committed if committed else 0, fingerprint)
    text = encode(committed, ranges, witness, INSTANCE, limit, anchor=anchor)
    assert len(text) <= limit
    if not text:
        return
    found = own(text, committed)
    assert found.anchor in (None, anchor)
    if limit >= 256:
        assert (found.anchor is not None) == (anchor.offset < min(committed, witness.offset))
    assert covered_by(found.ranges, ranges)


def covered_by(some: Sequence[Range], ranges: Sequence[Range]) -> bool:
    return all(any(start <= low and high <= end for start, end in ranges) for low, high in some)


def test_the_anchor_of_a_map_past_the_end_is_told() -> None:
    anchor = Witness(90, PRINT)
    text = encode(100, [(102, 110)], Witness(130, PRINT), INSTANCE, anchor=anchor)
    found = decode(text, 100, 120)
    assert isinstance(found, Foreign)
    assert found.anchor == anchor
    assert own(text, 100).anchor == anchor


VALID = encode(100, [(102, 110), (120, 121)], Witness(130, PRINT), INSTANCE)


def test_no_text_is_no_map() -> None:
    assert reason("") == reason(None) == "none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "it was not written by Pyrula"),
        ("NONE", "it was not written by Pyrula"),
        ("0", "it was not written by Pyrula"),
        ("pyrula", "it was not written by Pyrula"),
        ("pyrula1", "it was not written by Pyrula"),
        ("pyrula1:", "it is damaged"),
        ("pyrula1:\N{SNOWMAN}", "it is damaged"),
        ("pyrula1:\ud800", "it is damaged"),
        ("pyrula1:AAAA====", "it is damaged"),
        ("pyrula\N{ARABIC-INDIC DIGIT ONE}:" + VALID[8:], "it was not written by Pyrula"),
        ("pyrula2:" + VALID[8:], "its format is version 2, and this Pyrula reads version 1"),
        ("pyrula0:" + VALID[8:], "its format is version 0, and this Pyrula reads version 1"),
        ("pyrula01:" + VALID[8:], "its format is version 01, and this Pyrula reads version 1"),
        ("pyrula17:anything at all", "its format is version 17, and this Pyrula reads version 1"),
        (VALID + "=", "it is damaged"),
        (VALID + "\n", "it is damaged"),
        (" " + VALID, "it was not written by Pyrula"),
        (VALID[:20] + " " + VALID[20:], "it is damaged"),
        ("pyrula1:" + "A" * LONGEST, "it is longer than any commit's metadata"),
    ],
)
def test_text_of_others_is_ignored(text: str, said: str) -> None:
    assert reason(text) == said


def test_every_truncation_is_ignored() -> None:
    for length in range(1, len(VALID)):
        reason(VALID[:length])


def test_every_flipped_bit_is_ignored() -> None:
    data = VALID.encode()
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            reason(flipped.decode("latin-1"))


def test_every_flipped_bit_of_what_is_encoded_is_ignored() -> None:
    body = urlsafe_b64decode(VALID[8:] + "=" * (-len(VALID[8:]) % 4))
    for at in range(len(body)):
        for bit in range(8):
            flipped = body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]
            assert reason("pyrula1:" + urlsafe_b64encode(flipped).rstrip(b"=").decode()) == "it is damaged"


@given(st.binary(max_size=200).map(lambda data: urlsafe_b64encode(data).rstrip(b"=").decode()))
def test_random_base64_is_ignored(text: str) -> None:
    reason(text)
    reason("pyrula1:" + text)


@given(st.text(max_size=60))
def test_random_text_is_ignored(text: str) -> None:
    reason(text)
    reason("pyrula1:" + text)


@settings(max_examples=500)
@given(st.integers(0, 255), st.binary(max_size=60))
@example(7, b"")
def test_what_a_foreign_program_seals_is_refused_or_a_map_of_this_form(flags: int, rest: bytes) -> None:
    """Damage that the checksum can't see, as a bug in another version would make it."""
    text = sealed(bytes([flags, 100]) + b"storestr" + rest)
    found = decode(text, 100, TOP)
    if isinstance(found, CommitMap):
        assert all(start < end for start, end in found.ranges)
        assert all(end < start for (_, end), (start, _) in zip(found.ranges, found.ranges[1:], strict=False))
        assert not found.ranges or found.ranges[0][0] >= 100
        assert not found.ranges or (found.witness is not None and found.ranges[-1][1] <= found.witness.offset + 1)


def sealed(body: bytes) -> str:
    body = commit_map._checksum(body).to_bytes(4, "big") + body
    return "pyrula1:" + urlsafe_b64encode(body).rstrip(b"=").decode()


# Flags, committed offset 100, store; witness at offset 300 with timestamp 0 of a record without key and value.
WITNESSED = b"storestr" + b"\xac\x02" + b"\x00"
BARE, RUNS, BITS = 0b11100, 0b11101, 0b11110


@pytest.mark.parametrize(
    ("body", "ranges"),
    [
        (bytes([BARE, 100]) + WITNESSED, ()),
        (bytes([RUNS, 100]) + WITNESSED + b"\x00\x05", ((100, 105),)),
        (bytes([RUNS, 100]) + WITNESSED + b"\x02\x05\x01\x80\x01", ((102, 107), (108, 236))),
        (bytes([BITS, 100]) + WITNESSED + b"\x02\xc1", ((102, 104), (109, 110))),
        (bytes([RUNS, 100]) + WITNESSED + b"\x00\xc9\x01", ((100, 301),)),
    ],
)
def test_the_forms_are_read_byte_by_byte(body: bytes, ranges: tuple[Range, ...]) -> None:
    assert own(sealed(body), 100) == CommitMap(100, ranges, Witness(300, "0.~.~"), b"storestr")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes([BARE]),
        bytes([BARE, 100]) + WITNESSED[:-1],
        bytes([BARE, 100]) + WITNESSED + b"\x00",
        bytes([BARE | 0b11, 100]) + WITNESSED,
        bytes([BARE | 0b100000, 100]) + WITNESSED,
        bytes([BARE | 0b1000000, 100]) + WITNESSED,
        bytes([BARE | 0b11100000, 100]) + WITNESSED + b"\x64\x00",
        bytes([0b11100000, 100]) + b"storestr" + b"\x10\x00",
        bytes([0b1000, 100]) + b"storestr",
        bytes([BARE, 0xE4, 0x00]) + WITNESSED,
        bytes([0, 100]) + b"storest",
        bytes([0, 100]) + b"storestr" + b"x",
        bytes([0]) + b"\xff" * 9 + b"\x7f" + b"storestr",
        bytes([0]) + b"\xff" * 10 + b"\x01" + b"storestr",
        bytes([0b100, 100]) + WITNESSED + b"1234567",
        bytes([0b01, 100]) + b"storestr" + b"\x02\x05",
        bytes([RUNS, 100]) + WITNESSED + b"\x02",
        bytes([RUNS, 100]) + WITNESSED + b"\x02\x00",
        bytes([RUNS, 100]) + WITNESSED + b"\x02\x05\x00\x05",
        bytes([RUNS, 100]) + WITNESSED + b"\x02\x85\x00",
        bytes([RUNS, 100]) + WITNESSED + b"\x00\xca\x01",
        bytes([RUNS, 100]) + WITNESSED + b"\xff" * 8 + b"\x7f" + b"\x05",
        bytes([BITS, 100]) + WITNESSED,
        bytes([BITS, 100]) + WITNESSED + b"\x02",
        bytes([BITS, 100]) + WITNESSED + b"\x02\x41",
        bytes([BITS, 100]) + WITNESSED + b"\x02\xc1\x00",
        bytes([BITS, 100]) + WITNESSED + b"\xc8\x01\xc1",
        bytes([BITS, 100]) + WITNESSED + b"\xff" * 8 + b"\x7f" + b"\xc1",
    ],
)
def test_damage_that_the_checksum_does_not_see_is_ignored(body: bytes) -> None:
    """As a bug of another version might write it: cut, spelled twice, past the witness, past 63 bits, unknown flags."""
    assert reason(sealed(body)) == "it is damaged"


def test_a_map_of_another_commit_is_ignored() -> None:
    assert reason(VALID, 101) == "it was written for a commit at offset 100, and this one is at 101"
    assert reason(VALID, 0) == "it was written for a commit at offset 100, and this one is at 0"


def test_claims_past_the_end_of_the_log_are_ignored() -> None:
    committed = 1000
    text = encode(committed, [(committed, committed + (1 << 31))], Witness(committed + (1 << 31) - 1, PRINT), INSTANCE)
    for end in (committed, committed + 5, committed + (1 << 31) - 1):
        told = f"it tells of offset {committed + (1 << 31) - 1}, and the log ends at {end}"
        assert reason(text, committed, end) == told
    assert own(text, committed, committed + (1 << 31)).ranges == ((committed, committed + (1 << 31)),)
    assert reason(VALID, 100, 130) == "it tells of offset 130, and the log ends at 130", "the witness counts too"
    assert own(VALID, 100, 131)


def test_decoding_is_bounded_by_the_length_of_the_text() -> None:
    bits = b"\xaa" * 24_000
    texts = [
        encode(0, [(0, TOP - 1)], Witness(TOP - 1, PRINT), INSTANCE),
        sealed(bytes([2 | 4 | 8 | 16, 0]) + b"storestr" + b"\xff" * 8 + b"\x7f" + b"\0" + b"\x01" + bits),
        sealed(bytes([1 | 4 | 8 | 16, 0]) + b"storestr" + b"\xff" * 8 + b"\x7f" + b"\0" + b"\x01" * 24_000),
        sealed(bytes([1, 0]) + b"storestr" + b"\xff" * 24_000),
        "pyrula1:" + "A" * (LONGEST - 8),
        "pyrula" + "1" * 10_000_000,
    ]
    for text in texts:
        seconds, peak = cost(partial(decode, text, 0, TOP))
        assert peak < 32 * 1024 * 1024, text[:40]
        assert seconds < 1.0, text[:40]


def test_encoding_is_bounded_by_the_limit() -> None:
    ranges = [(offset, offset + 1) for offset in range(1, 400_000, 2)]
    seconds, peak = cost(lambda: encode(0, ranges, Witness(TOP - 1, PRINT), INSTANCE))
    assert peak < 8 * 1024 * 1024
    assert seconds < 0.5


@given(st.text(max_size=300))
def test_any_instance_id_can_be_told_again(instance: str) -> None:
    found = own(encode(3, (), None, instance), 3)
    assert found.written_with(instance)
    assert not found.written_with(instance + "x")
