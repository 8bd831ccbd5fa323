"""The plain data of submitted runs: ids, statuses, examples."""

import doctest
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows.store import ids, leases, lifecycle
from pyrula.workflows.store.ids import RunId, new_run_id
from pyrula.workflows.store.lifecycle import PARKED, TERMINAL, TRANSITIONS, RunStatus
from pyrula.workflows.store.refusals import RunNotFoundError


@pytest.mark.parametrize("module", [ids, leases, lifecycle], ids=lambda module: module.__name__)
def test_the_examples_of_a_module_run(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@given(st.integers(0, 16383), st.floats(0, 4e9), st.integers(0, 1 << 90), st.integers(1, 999_999_999))
def test_an_id_that_was_made_is_read(shard: int, seconds: float, random: int, link: int) -> None:
    text = new_run_id(shard, seconds, random)
    assert RunId.parse(text) == RunId(shard, text, 1)
    later = RunId(shard, text, link)
    assert RunId.parse(str(later)) == later


@given(st.text() | st.from_regex(r"[0-9a-f]{1,5}-[0-9A-Zk.-]{20,30}(~\d*)?\n?"))
def test_any_other_text_is_no_run(text: str) -> None:
    try:
        run = RunId.parse(text)
    except RunNotFoundError:
        return
    assert str(run) == text


def test_ids_sort_by_time() -> None:
    made = [new_run_id(3, seconds, 5) for seconds in (0.0, 1.0, 1.001, 2e9, 4e9)]
    assert made == sorted(made)


def test_every_status_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(RunStatus)
    assert {status for status, after in TRANSITIONS.items() if not after} == {
        RunStatus.COMPLETED,
        RunStatus.CONTINUED_AS_NEW,
    }
    for status in PARKED:
        assert RunStatus.QUEUED in TRANSITIONS[status]
        assert not TRANSITIONS[status] & TERMINAL
