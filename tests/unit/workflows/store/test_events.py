"""The order of a run's events."""

import pytest

from pyrula.workflows.store.events import encode_event, in_order


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # the worker's came together, after the request that came in between
        (["submitted 1", "cancel_requested 3", "started 2", "waiting 4"], "submitted started cancel_requested waiting"),
        (["started 2", "cancel_requested 3", "cancelled 4"], "started cancel_requested cancelled"),
        # clocks that are a little apart
        (["submitted 1", "cancel_requested 3", "cancelled 2.99"], "submitted cancel_requested cancelled"),
        (["submitted 1", "started 0.9", "cancel_requested 3"], "submitted started cancel_requested"),
        (["cancel_requested 3", "cancel_requested 4", "started 3.5"], "cancel_requested started cancel_requested"),
    ],
)
def test_a_request_stands_behind_what_had_happened(written: list[str], expected: str) -> None:
    rows = [encode_event(kind, float(at)) for kind, at in (text.split() for text in written)]
    assert " ".join(event.type for event in in_order(rows)) == expected
