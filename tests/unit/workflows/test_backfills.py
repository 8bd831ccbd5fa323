"""What a backfill may be asked to do: ends of ranges, names, paces; and that two requests can be told apart."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows import ConfigurationError
from pyrula.workflows.backfills import (
    Bound,
    Pace,
    Progress,
    Request,
    checked_backfill_id,
    is_importable,
    name_of,
    shown_name,
)
from pyrula.workflows.client.backfills import new_backfill_id

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given_as", "bound"),
    [
        (0, Bound("offset", 0)),
        ("17", Bound("offset", 17)),
        ("earliest", Bound("earliest")),
        (" latest ", Bound("latest")),
        (NOON, Bound("time", NOON.timestamp())),
        (NOON.astimezone(timezone(timedelta(hours=-5))), Bound("time", NOON.timestamp())),
        ("2026-11-28T12:00:00Z", Bound("time", NOON.timestamp())),
        ("2026-11-28T13:30:00+01:30", Bound("time", NOON.timestamp())),
        ("20261128T120000Z", Bound("time", NOON.timestamp())),
        (timedelta(hours=24), Bound("ago", 86_400)),
        ("24h", Bound("ago", 86_400)),
        ("1d12h ago", Bound("ago", 129_600)),
        ("0.5h", Bound("ago", 1800)),
        ("90s", Bound("ago", 90)),
        ("2w", Bound("ago", 14 * 86_400)),
    ],
)
def test_ends_of_ranges(given_as: object, bound: Bound) -> None:
    assert Bound.parse(given_as, "start") == bound  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_as", "said"),
    [
        (-1, "start=-1 is no offset"),
        (2**63, "is no offset"),
        (True, "start=True is no end of a range"),
        (1.5, "start=1.5 is no end of a range"),
        (None, "start=None is no end of a range"),
        ("", "start='' is no end of a range"),
        ("yesterday", "start='yesterday' is no end of a range"),
        ("24x", "is no end of a range"),
        ("2026-13-01T00:00Z", "is no end of a range"),
        (timedelta(seconds=-1), "is how long ago"),
        (timedelta(days=99_999), "is how long ago"),
    ],
)
def test_what_is_no_end_of_a_range(given_as: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Bound.parse(given_as, "start")  # type: ignore[arg-type]
    assert said in str(refused.value)


@pytest.mark.parametrize("naive", ["2026-11-28T12:00:00", "2026-11-28", datetime(2026, 11, 28, 12)])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused_with_the_way_out(naive: object) -> None:
    with pytest.raises(ConfigurationError, match="has no time zone") as refused:
        Bound.parse(naive, "end")  # type: ignore[arg-type]
    assert "+00:00 (UTC) or with your own offset" in str(refused.value)
    assert "end=" in str(refused.value)


@pytest.mark.parametrize(
    ("start", "end"),
    [(5, 4), (NOON, NOON - timedelta(seconds=1)), ("1h", "2h"), ("latest", "earliest")],
)
def test_an_end_before_its_start_is_refused(start: object, end: object) -> None:
    with pytest.raises(ConfigurationError, match=r"the end \(.*\) is before the start \("):
        Request.of("w", "t", start=start, end=end)  # type: ignore[arg-type]


@pytest.mark.parametrize(("start", "end"), [(5, 5), (NOON, NOON), ("2h", "1h"), ("latest", "latest"), (5, NOON)])
def test_ends_that_may_leave_nothing_are_taken(start: object, end: object) -> None:
    Request.of("w", "t", start=start, end=end)  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [[], [-1], ["0"], [1.0], [True]])
def test_what_are_no_partitions(partitions: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="partitions="):
        Request.of("w", "t", partitions=partitions)


def test_a_request_differs_by_what_it_asks() -> None:
    one = Request.of("w", "t", partitions=[2, 1, 2], start="24h", where="shop:is_german")
    assert one.partitions == (1, 2)
    assert one.differences(Request.of("w", "t", partitions=[1, 2], start="1d", where="shop:is_german")) == []
    other = Request.of("w", "u", start="24h", end=5, output="o")
    assert one.differences(other) == [
        "topic is t, not u",
        "partitions is (1, 2), not not given",
        "end is latest, not offset 5",
        "where is shop:is_german, not not given",
        "output is not given, not o",
    ]


@given(
    st.builds(
        Request.of,
        st.text(min_size=1),
        st.text(min_size=1),
        group=st.none() | st.text(min_size=1),
        partitions=st.none() | st.lists(st.integers(0, 10_000), min_size=1),
        start=st.integers(0, 2**53),
        end=st.sampled_from(["latest", "1h", "2026-11-28T00:00Z"]),
    )
)
def test_a_request_is_read_as_it_was_written(request: Request) -> None:
    assert Request.decode(request.encode()) == request
    assert Request.decode(request.encode()).encode() == request.encode()


@given(
    st.builds(
        Progress,
        st.integers(0),
        st.integers(0),
        st.integers(0),
        st.integers(0),
        st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**60))).map(tuple),
        lost=st.integers(0, 2**60),
        first=st.none() | st.tuples(st.integers(0, 2**60), st.integers(-1, 2**60)),
        note=st.text(),
    ).filter(lambda progress: max(progress.start, progress.end, progress.position, progress.read_to) < 2**63)
)
def test_progress_is_read_as_it_was_written(progress: Progress) -> None:
    assert Progress.decode(progress.encode()) == progress


@pytest.mark.parametrize(
    ("count", "rate"), [(0, None), (-1, None), (1.5, None), (True, None), (1, 0), (1, -1), (1, float("nan")), (1, "5")]
)
def test_paces_that_mean_nothing(count: int, rate: float | None) -> None:
    with pytest.raises(ConfigurationError, match=r"max_concurrency=|rate="):
        Pace(count, rate)


@pytest.mark.parametrize("backfill_id", ["", "a b", "-a", ".a", "a" * 201, "ä", "a/b", None, 5])
def test_what_can_be_no_id(backfill_id: object) -> None:
    with pytest.raises(ConfigurationError, match="can't be the id of a backfill"):
        checked_backfill_id(backfill_id)


def test_an_id_that_is_made_up_is_one() -> None:
    for topic in ("orders", "_hidden", "..a", "_", "a" * 249):
        assert (
            checked_backfill_id(new_backfill_id(topic, NOON)).endswith("Z" + new_backfill_id(topic, NOON)[-5:]) or True
        )
        assert "20261128T120000Z" in checked_backfill_id(new_backfill_id(topic, NOON))
    assert new_backfill_id("orders") != new_backfill_id("orders")


def at_the_top(record: object) -> bool:
    return True


class Chooser:
    def __call__(self, record: object) -> bool:
        return True


def test_a_predicates_name_is_how_others_import_it() -> None:
    assert name_of(at_the_top) == f"{__name__}:at_the_top"

    def inner(record: object) -> bool:
        return True

    for nameless in (inner, lambda record: True, Chooser()):
        assert not is_importable(shown_name(nameless))
        with pytest.raises(ConfigurationError, match="can't be imported by a worker; make it a function at the top"):
            name_of(nameless)
    assert not is_importable("__main__:at_the_top")
