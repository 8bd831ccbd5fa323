from hypothesis import given
from hypothesis import strategies as st

from pyrula.cli.dev.tally import FINISHED, Tally
from pyrula.kafka.events import EventKind, RecordEvent


def event(kind: EventKind, offset: int = 0, *, binding: str = "b", topic: str = "t", attempt: int = 1) -> RecordEvent:
    return RecordEvent(kind, binding, topic, 0, offset, None, f"run-{offset}", attempt)


def test_a_record_counts_once_however_often_it_is_told() -> None:
    tally = Tally({"t": 1})
    assert tally.on_event(event("completed"))
    assert not tally.on_event(event("completed"))
    assert tally.finished == 1
    assert tally.counts == {"completed": 1}


def test_every_binding_of_a_topic_counts_for_itself() -> None:
    tally = Tally({"t": 2})
    tally.on_sent("t", 0, 0, 100)
    tally.on_event(event("completed", binding="a"))
    assert (tally.finished, tally.unfinished_bytes) == (1, 100)
    tally.on_event(event("dead_lettered", binding="b"))
    assert (tally.finished, tally.unfinished_bytes) == (2, 0)


def test_an_event_may_come_before_the_acknowledgement() -> None:
    tally = Tally({"t": 1})
    tally.on_event(event("completed"))
    tally.on_sent("t", 0, 0, 100)
    assert (tally.sent, tally.unfinished_bytes) == (1, 0)


def test_a_held_record_that_is_finished_later_is_no_longer_held() -> None:
    tally = Tally({"t": 1})
    tally.on_event(event("stopped"))
    assert (tally.held, tally.finished) == (1, 0)
    tally.on_event(event("completed"))
    assert (tally.held, tally.finished) == (0, 1)


def test_every_retry_is_news_but_no_end() -> None:
    tally = Tally({"t": 1})
    assert tally.on_event(event("retrying", attempt=1))
    assert tally.on_event(event("retrying", attempt=2))
    assert tally.finished == 0


def test_lost_records_are_counted_apart() -> None:
    tally = Tally({"t": 1})
    tally.on_event(event("lost", offset=5))
    assert (tally.lost, tally.finished, tally.held) == (1, 0, 0)


@given(
    st.lists(st.tuples(st.sampled_from([*FINISHED, "retrying", "stopped", "paused"]), st.integers(0, 5))),
    st.permutations(range(6)),
)
def test_bytes_are_unfinished_exactly_while_the_record_is(told: list[tuple[EventKind, int]], sent: list[int]) -> None:
    tally = Tally({"t": 1})
    done: set[int] = set()
    known: set[int] = set()
    left = list(sent)
    for kind, offset in told:
        if left:
            known.add(left[-1])
            tally.on_sent("t", 0, left.pop(), 10)
        tally.on_event(event(kind, offset))
        if kind in FINISHED:
            done.add(offset)
        assert tally.unfinished_bytes == 10 * len(known - done)
        assert tally.finished == len(done)
