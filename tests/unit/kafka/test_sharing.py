"""Which partition of a backfill is given to a worker that has none."""

from pyrula.kafka.backfill.sharing import Sharing
from pyrula.workflows.store.backfills import BackfillStatus, Hold, PartState, StoredBackfill, StoredPart


def stored(holders: str, wish: str = "", states: dict[int, PartState] | None = None) -> StoredBackfill:
    """A part for each letter: the worker of that name has it, or nobody ("-")."""
    parts = [
        StoredPart(number, (states or {}).get(number, "open"), None if name == "-" else Hold(name, 1, 1), "", b"")
        for number, name in enumerate(holders)
    ]
    return StoredBackfill("b", b"", b"", b"", BackfillStatus.RUNNING, "", 0.0, 0.0, None, tuple(parts), wish)


def sharing(worker: str) -> Sharing:
    one = Sharing(worker)
    one.lease = 10.0
    return one


def given(worker: str, holders: str, wish: str) -> int | None:
    mine = [number for number, name in enumerate(holders) if name == worker]
    return sharing(worker).to_give(stored(holders, wish), mine, 100.0)


def test_the_one_with_the_most_gives_its_last() -> None:
    assert given("a", "aabaa", "c") == 4
    assert given("b", "aabaa", "c") is None
    assert (given("a", "abab", "c"), given("b", "abab", "c")) == (None, 3)


def test_nothing_is_given_that_is_not_needed() -> None:
    assert given("a", "aaa", "") is None
    assert given("a", "aaa", "a") is None
    assert given("a", "ab", "c") is None
    assert given("a", "aaac", "c") is None


def test_one_is_given_until_somebody_took_something_or_for_a_lease() -> None:
    one = sharing("a")
    assert one.may_take(100.0)
    assert one.to_give(stored("aaa", "c"), [0, 1, 2], 100.0) == 2
    one.on_given(101.0)
    assert one.to_give(stored("aa-", "c"), [0, 1], 102.0) is None
    assert not one.may_take(102.0)
    assert one.may_take(112.0)
    one.on_given(120.0)
    assert one.to_give(stored("aac"), [0, 1], 121.0) is None
    assert one.may_take(121.0)


def test_what_another_can_spare_is_asked_for() -> None:
    one = sharing("c")
    assert one.to_ask_for(stored("ab"), 100.0) is None
    assert one.to_ask_for(stored("abb-"), 100.0) == 2
    assert one.to_ask_for(stored("abb", states={2: "done"}), 100.0) is None
    one.on_failed(100.0)
    assert one.to_ask_for(stored("abb"), 109.0) is None
    assert one.to_ask_for(stored("abb"), 111.0) == 2
