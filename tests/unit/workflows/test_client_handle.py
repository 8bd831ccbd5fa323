import doctest
import inspect

import pytest

from pyrula.workflows import MemoryStore, RunHandle, WorkflowClient, params
from pyrula.workflows.client import handle

ID = "0a-01JDZ8Z5Y3Q4R5S6T7V8W9XABC"


@pytest.fixture
def run() -> RunHandle[object]:
    return WorkflowClient(MemoryStore()).handle("charge", ID)


def test_its_text_is_the_run_id(run: RunHandle[object]) -> None:
    assert str(run) == f"{run}" == run.run_id == ID
    assert repr(run) == f"<run {ID} of 'charge'>"


def test_it_equals_and_hashes_as_that_text(run: RunHandle[object]) -> None:
    assert run == ID
    assert ID == run  # noqa: SIM300 - the other way round
    assert hash(run) == hash(ID)
    assert {ID: 1}[run] == 1
    assert run in {ID}
    assert run == WorkflowClient(MemoryStore()).handle("other", ID)
    assert run != f"{ID}~2"
    assert run != 5
    assert run is not None


async def test_awaiting_it_gives_itself(run: RunHandle[object]) -> None:
    assert await run is run


def test_a_handle_may_be_made_of_a_handle(run: RunHandle[object]) -> None:
    again = WorkflowClient(MemoryStore()).handle("charge", run)
    assert type(again.run_id) is str
    assert again == run


def test_the_client_has_each_method_with_name_and_run_id_in_front() -> None:
    methods = [name for name, value in vars(RunHandle).items() if inspect.iscoroutinefunction(value)]
    assert len(methods) >= 13
    for name in methods:
        own = list(inspect.signature(getattr(RunHandle, name)).parameters.values())
        there = list(inspect.signature(getattr(WorkflowClient, name)).parameters.values())
        assert [each.name for each in there[:3]] == ["self", "name", "run_id"], name
        assert [(each.name, each.kind, each.default) for each in there[3:]] == [
            (each.name, each.kind, each.default) for each in own[1:]
        ], name


@pytest.mark.parametrize("module", [handle, params], ids=lambda module: module.__name__)
def test_the_examples_of_a_module_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
