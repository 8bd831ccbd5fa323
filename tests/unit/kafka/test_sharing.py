"""Which partition of a backfill is given to a worker that has fewer."""

import random

import pytest

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
    assert given("a", "aac", "c") is None


def test_one_that_has_two_more_gives_one() -> None:
    assert given("a", "aaac", "c") == 2
    assert given("b", "aaabbbbcc", "c") == 6
    assert (given("a", "aaabbbbcc", "c"), given("b", "aaabbbbccc", "c")) == (None, None)
    assert given("a", "aaac", "b") == 2
    assert sharing("c").to_ask_for(stored("aaac"), 100.0) == 2
    assert sharing("c").to_ask_for(stored("aac"), 100.0) is None


def test_what_is_free_is_for_who_asked_and_has_fewer() -> None:
    one = sharing("c")
    assert one.may_take(stored("aab-cc"), 100.0)
    assert not one.may_take(stored("aab-cc", "b"), 101.0)
    assert one.may_take(stored("aabb-cc", "b"), 101.0)
    assert sharing("b").may_take(stored("aab-cc", "b"), 101.0)
    # who asked may have died
    assert not one.may_take(stored("aab-cc", "b"), 110.0)
    assert one.may_take(stored("aab-cc", "b"), 112.0)


@pytest.mark.parametrize("seed", range(200))
def test_in_the_end_none_has_two_more_than_another(seed: int) -> None:
    """Workers look in any order. Each partition that is let go is a pause in its work, so each brings them nearer."""
    dice = random.Random(seed)
    names = "abcdef"[: dice.randint(2, 6)]
    holders = [dice.choice(names) for _ in range(dice.randint(1, 12))]
    workers = {name: sharing(name) for name in names}
    before = sum(holders.count(name) ** 2 for name in names)
    wish, given_away, now = "", 0, 100.0
    for _ in range(600):
        name, now = dice.choice(names), now + 0.01
        one, seen = workers[name], stored("".join(holders), wish)
        mine = [number for number, holder in enumerate(holders) if holder == name]
        number = one.to_give(seen, mine, now)
        if number is not None:
            one.on_given(number, now)
            holders[number] = "-"
            given_away += 1
        elif one.may_take(seen, now):
            if "-" in holders:
                holders[holders.index("-")], wish = name, ""
            elif one.to_ask_for(seen, now) is not None:
                wish = name
    counts = [holders.count(name) for name in names]
    assert "-" not in holders
    assert max(counts) - min(counts) <= 1
    assert 2 * given_away <= before - sum(count**2 for count in counts)


def test_one_is_given_until_somebody_took_something_or_for_a_lease() -> None:
    one = sharing("a")
    assert one.may_take(stored("aaa"), 100.0)
    assert one.to_give(stored("aaa", "c"), [0, 1, 2], 100.0) == 2
    one.on_given(2, 101.0)
    assert one.to_give(stored("aa-", "c"), [0, 1], 102.0) is None
    assert not one.may_take(stored("aa-", "c"), 102.0)
    assert one.may_take(stored("aa-", "c"), 112.0)
    one.on_given(2, 120.0)
    assert one.to_give(stored("aac"), [0, 1], 121.0) is None
    assert one.may_take(stored("aac"), 121.0)


def test_what_another_can_spare_is_asked_for() -> None:
    one = sharing("c")
    assert one.to_ask_for(stored("ab"), 100.0) is None
    assert one.to_ask_for(stored("abb-"), 100.0) == 2
    assert one.to_ask_for(stored("abb", states={2: "done"}), 100.0) is None
    one.on_failed(100.0)
    assert one.to_ask_for(stored("abb"), 109.0) is None
    assert one.to_ask_for(stored("abb"), 111.0) == 2
