"""Reading what belongs to one link of a chain, and what belongs to all of it."""

import pytest

from pyrula.workflows.store.events import decode_event, encode_event
from pyrula.workflows.store.messages import Change, End
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import Origin
from tests.conformance.runs.rig import Rig


async def test_an_origin_is_that_of_the_whole_chain(rig: Rig) -> None:
    claimed = await rig.started(owner="acme")
    run_id = claimed.lease.run_id
    finished = await rig.store.finish(claimed.lease, Change(1), End("continued_as_new", params=b"{}", version="1"))
    assert finished.next is not None
    for each in (run_id, finished.next.lease.run_id):
        assert await rig.other.origin(each) == Origin("cart", "acme")
    for unknown in ("order-7", "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC"):
        with pytest.raises(RunNotFoundError):
            await rig.store.origin(unknown)


async def test_events_are_read_from_a_number_on_link_by_link(rig: Rig) -> None:
    claimed = await rig.started()
    run_id = claimed.lease.run_id
    events = [encode_event("started", 1.0, worker="w"), encode_event("woken", 2.0, by="timer")]
    await rig.store.append(claimed.lease, Change(1, events=events))
    assert (await rig.other.events_of(run_id, 1)) == events
    assert (await rig.other.events_of(run_id, 2)) == events[1:]
    assert (await rig.other.events_of(run_id, 3)) == []
    end = End("continued_as_new", params=b"{}", version="1", events=[encode_event("continued_as_new", 3.0)])
    finished = await rig.store.finish(claimed.lease, Change(2), end)
    assert finished.next is not None
    following = finished.next.lease.run_id
    assert [decode_event(row).type for row in await rig.other.events_of(run_id, 3)] == ["continued_as_new"]
    assert [decode_event(row).type for row in await rig.other.events_of(following, 0)] == ["continued"]
    assert await rig.other.events_of(f"{run_id}~3", 0) == []
