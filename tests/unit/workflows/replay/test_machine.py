"""The replay machine alone: what is asked, what the journal answers, and what doesn't fit."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows import NonDeterminismError
from pyrula.workflows.replay.journal import Entry, Journal, encode_row
from pyrula.workflows.replay.machine import Machine
from pyrula.workflows.replay.operation import Operation


def machine_of(entries: Sequence[Entry]) -> Machine:
    machine = Machine(Journal.load((index, encode_row(entry, None)) for index, entry in enumerate(entries)))
    machine.begin_waiting()
    return machine


def value(op: str, clock: int, name: str = "work") -> Entry:
    return Entry("value", op, "step", name, clock, None, b"1")


def ask(machine: Machine, op: str, name: str = "work") -> Operation:
    operation = Operation("step", name)
    operation.id = op
    machine.asked += 1
    machine.on_asked(operation)
    return operation


def test_one_task_takes_entry_after_entry() -> None:
    machine = machine_of([value("1", 1), value("3", 3)])
    machine.asked = 1
    assert machine.take_next("1", "step", "work").op == "1"
    machine.asked = 3
    assert machine.take_next("3", "step", "work").op == "3"
    assert machine.left == 0


@pytest.mark.parametrize(
    ("op", "kind", "name", "asked", "difference"),
    [
        ("1", "step", "other", 1, "name 'work' -> 'other'"),
        ("1", "now", "work", 1, "kind 'step' -> 'now'"),
        ("2", "step", "work", 1, "operation id '1' -> '2'"),
        ("1", "step", "work", 2, "operations asked for 1 -> 2"),
    ],
)
def test_one_task_that_asks_for_something_else(op: str, kind: str, name: str, asked: int, difference: str) -> None:
    machine = machine_of([value("1", 1)])
    machine.asked = asked
    with pytest.raises(NonDeterminismError, match=difference):
        machine.take_next(op, kind, name)
    assert machine.left == 1


def test_several_tasks_are_due_in_the_order_recorded() -> None:
    machine = machine_of([value("b:1", 2), value("a:1", 2)])
    first = ask(machine, "a:1")
    assert machine.due() is None  # the clock is short
    second = ask(machine, "b:1")
    assert machine.due() == (value("b:1", 2), second)
    machine.take_due(second)
    assert machine.due() == (value("a:1", 2), first)
    machine.take_due(first)
    assert machine.left == 0
    assert not machine.waiting


def test_a_clock_that_has_passed() -> None:
    machine = machine_of([value("a:1", 1)])
    ask(machine, "a:1")
    ask(machine, "b:1")
    with pytest.raises(NonDeterminismError, match="operations asked for 1 -> 2"):
        machine.due()


def test_a_loose_entry_may_come_later() -> None:
    machine = machine_of([Entry("loose", "", "", "", None, None, None), value("a:1", 1), value("b:1", 3)])
    ask(machine, "b:1")
    assert machine.due() is None  # its turn hasn't come, and who it is for hasn't asked
    first = ask(machine, "a:1")
    assert machine.due() == (value("a:1", 1), first)
    machine.take_due(first)
    assert machine.due() is None


def test_another_operation_in_its_place() -> None:
    machine = machine_of([value("a:1", 1)])
    ask(machine, "b:1")
    with pytest.raises(NonDeterminismError, match="isn't waiting") as raised:
        machine.due()
    assert "operation 1 of task b" in str(raised.value)


def test_an_operation_that_was_given_up() -> None:
    machine = machine_of([value("a:1", 1)])
    machine.on_gone(ask(machine, "a:1"))
    with pytest.raises(NonDeterminismError, match="given up"):
        machine.due()


def test_a_body_that_is_stuck_or_ends() -> None:
    machine = machine_of([value("a:1", 3)])
    assert "none will follow" in str(machine.stuck())
    assert "1 recorded entries" in str(machine.returned_early())


@given(st.permutations(range(6)), st.integers(0, 5))
def test_any_order_of_completions(order: list[int], asked_late: int) -> None:
    """Operations of six tasks, one of which asks only when it got its first value; due in the order recorded."""
    entries = [value(f"{task}:1", 6, f"work {task}") for task in order]
    at = order.index(asked_late)
    entries.insert(at + 1, value(f"{asked_late}:2", 7, "more"))
    entries[at + 2 :] = [entry._replace(clock=7) for entry in entries[at + 2 :]]
    machine = machine_of(entries)
    for task in range(6):
        ask(machine, f"{task}:1", f"work {task}")
    for entry in entries:
        due = machine.due()
        assert due is not None
        assert due[0] == entry
        machine.take_due(due[1])
        if entry.op == f"{asked_late}:1":
            ask(machine, f"{asked_late}:2", "more")
    assert machine.left == 0
