import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyrula.cli.load import find_bindings, find_kafka_worker, find_store, find_worker, import_file
from pyrula.cli.problem import Problem
from pyrula.kafka import KafkaWorker
from pyrula.workflows import MemoryStore, ValkeyStore, WorkflowWorker

_WORKFLOW = """
from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import MemoryStore, workflow

@workflow(name="{name}")
async def greet(ctx, order: dict) -> None: ...

"""


@pytest.fixture(autouse=True)
def imports_put_back() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


class Folder:
    """Writes modules of unique names, each with a workflow named after it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, code: str, *, workflow: bool = True) -> str:
        file = self.path / f"{name}.py"
        file.write_text((_WORKFLOW.format(name=name) if workflow else "") + code)
        return str(file)

    def load(self, name: str, code: str) -> ModuleType:
        return import_file(self.write(name, code))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def topics(bindings: list[Any]) -> list[str]:
    return [topic for binding in bindings for topic in binding.topics]


@pytest.mark.parametrize(
    "code",
    [
        'bindings = [Binding(greet, topic="a", group="g"), Binding(greet, topic="b", group="g")]',
        'bindings = tuple(Binding(greet, topic=topic, group="g") for topic in "ab")',
        'one = Binding(greet, topic="a", group="g")\ntwo = Binding(greet, topic="b", group="g")',
        'both = [[Binding(greet, topics=["a", "b"], group="g")]]\n'
        "worker = KafkaWorker(both.pop(), store=MemoryStore(), kafka=KafkaOptions())",
    ],
)
def test_bindings_are_found_where_they_are(folder: Folder, code: str) -> None:
    assert topics(find_bindings(folder.load("shop_found", code), "shop_found.py")) == ["a", "b"]


def test_bindings_win_over_what_else_is_there(folder: Folder) -> None:
    code = 'other = Binding(greet, topic="b", group="g")\nbindings = Binding(greet, topic="a", group="g")'
    assert topics(find_bindings(folder.load("shop_wins", code), "shop_wins.py")) == ["a"]


def test_no_bindings_says_what_to_write_with_the_workflow_that_is_there(folder: Folder) -> None:
    with pytest.raises(Problem) as problem:
        find_bindings(folder.load("shop_none", ""), "shop_none.py")
    assert 'bindings = [Binding(greet, topic="orders", group="billing")]' in str(problem.value)


def test_a_worker_of_submitted_runs_has_no_bindings_and_says_how_it_is_tried(folder: Folder) -> None:
    code = "from pyrula.workflows import WorkflowWorker\nworker = WorkflowWorker([greet], store=MemoryStore())"
    with pytest.raises(Problem, match="Run it by `pyrula worker shop_submitted:worker`"):
        find_bindings(folder.load("shop_submitted", code), "shop_submitted.py")


@pytest.mark.parametrize(("code", "said"), [("bindings = []", "is empty"), ("bindings = [greet]", "holds Workflow")])
def test_bindings_of_another_kind_are_told(folder: Folder, code: str, said: str) -> None:
    with pytest.raises(Problem, match=said):
        find_bindings(folder.load("shop_kind", code), "shop_kind.py")


def test_a_file_may_import_its_neighbours_and_be_named_like_a_module_of_python(folder: Folder) -> None:
    folder.write("neighbour_of_json", "value = 3", workflow=False)
    module = import_file(folder.write("json", "from neighbour_of_json import value", workflow=False))
    assert module.value == 3
    import json

    assert hasattr(json, "dumps")


@pytest.mark.parametrize(
    ("path", "said"),
    [("missing.py", "no such file"), (".", "is a folder"), ("records.jsonl", "doesn't end in .py")],
)
def test_a_path_that_is_no_python_file_is_told(folder: Folder, path: str, said: str) -> None:
    (folder.path / "records.jsonl").touch()
    with pytest.raises(Problem, match=said):
        import_file(path)


def test_an_error_in_the_file_is_shown_from_its_own_first_line_on(folder: Folder) -> None:
    path = folder.write("shop_broken", "def total(): return 1 / 0\ntotal()", workflow=False)
    with pytest.raises(Problem) as problem:
        import_file(path)
    said = str(problem.value)
    assert "ZeroDivisionError: division by zero" in said
    assert said.count('File "') == 2
    assert "pyrula/cli" not in said


def test_of_the_traceback_only_the_users_own_frames_are_shown(folder: Folder) -> None:
    path = folder.write("shop_wrong_option", 'Binding(greet, topic="a", group="g", max_concurrency=0)')
    with pytest.raises(Problem) as problem:
        import_file(path)
    said = str(problem.value)
    assert said.count('File "') == 1
    assert "shop_wrong_option.py" in said
    assert "ConfigurationError: " in said


def test_a_syntax_error_shows_its_place(folder: Folder) -> None:
    with pytest.raises(Problem, match=r"(?s)shop_syntax.py.*def \(.*SyntaxError"):
        import_file(folder.write("shop_syntax", "def (", workflow=False))


def test_a_package_that_the_file_misses_is_named(folder: Folder) -> None:
    with pytest.raises(Problem, match="'nosuchpackage' is not installed"):
        import_file(folder.write("shop_misses", "import nosuchpackage", workflow=False))


_WORKER = 'KafkaWorker([Binding(greet, topic="a", group="g")], store=MemoryStore(), kafka=KafkaOptions())'


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (f"worker = {_WORKER}", "worker"),
        (f"def make(): return {_WORKER}", "make"),
        (f"class shop: worker = {_WORKER}", "shop.worker"),
    ],
)
def test_a_worker_is_an_object_or_what_a_function_returns(folder: Folder, code: str, name: str) -> None:
    folder.write("shop_worker", code)
    worker = find_worker(f"shop_worker:{name}")
    assert isinstance(worker, KafkaWorker)
    assert topics(list(worker.bindings)) == ["a"]


def test_a_worker_of_submitted_runs_is_one_too(folder: Folder) -> None:
    code = "from pyrula.workflows import WorkflowWorker\nworker = WorkflowWorker([greet], store=MemoryStore())"
    folder.write("shop_runs", code)
    assert isinstance(find_worker("shop_runs:worker"), WorkflowWorker)
    with pytest.raises(Problem, match="shop_runs:worker is a WorkflowWorker: it needs no topics"):
        find_kafka_worker("shop_runs:worker")


def test_a_store_is_a_url_or_a_name_in_a_module(folder: Folder) -> None:
    folder.write("shop_store", f"store = MemoryStore()\nworker = {_WORKER}\nother = 5")
    assert isinstance(find_store("shop_store:store", None, None), MemoryStore)
    assert isinstance(find_store("shop_store:worker", None, None), MemoryStore)
    store = find_store("valkey://localhost:1", "orders", 4)
    assert isinstance(store, ValkeyStore)
    assert (store.namespace, store.shards) == ("orders", 4)


@pytest.mark.parametrize(
    ("target", "namespace", "said"),
    [
        ("shop_stores:other", None, "is a int, not a store or a worker; give a URL"),
        ("shop_stores:other", "orders", "go with a store's URL"),
        ("http://localhost", None, "--store http://localhost: "),
        ("127.0.0.1:6379", None, "--store 127.0.0.1:6379: give a URL like valkey://localhost:6379"),
        ("localhost", None, "--store localhost: give a URL like valkey://localhost:6379, or MODULE:NAME"),
    ],
)
def test_what_is_no_store_is_told(folder: Folder, target: str, namespace: str | None, said: str) -> None:
    folder.write("shop_stores", "other = 5")
    with pytest.raises(Problem, match=said):
        find_store(target, namespace, None)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop_target", "is not MODULE:NAME. Give a module and a name in it, like shop_target:worker"),
        ("shop_target.py", "like shop_target:worker"),
        ("some/shop_target.py:worker", "name the module as Python imports it: some.shop_target:worker"),
        ("nosuchmodule:worker", "there is no module 'nosuchmodule'"),
        ("nosuchpackage.orders:worker", "there is no module 'nosuchpackage'"),
        ("shop_target:workr", "has no 'workr'. It has shop_target:billing"),
        ("shop_target:greet", "is a WorkflowDefinition, not a worker"),
        ("shop_target:fails", "RuntimeError: no settings"),
        ("shop_target:bindings", "is a list, not a worker"),
        ("shop_target:forgets", "shop_target:forgets has returned None, not a worker"),
        ("shop_target:later", "shop_target:later is an `async def`, not a worker"),
    ],
)
def test_a_wrong_target_says_what_is_right(folder: Folder, target: str, said: str) -> None:
    folder.write(
        "shop_target",
        f'billing = {_WORKER}\nbindings = []\ndef fails(): raise RuntimeError("no settings")\n'
        "def forgets(): pass\nasync def later(): pass",
    )
    with pytest.raises(Problem) as problem:
        find_worker(target)
    assert said in str(problem.value)


def test_an_error_inside_the_module_is_shown_with_its_traceback(folder: Folder) -> None:
    folder.write("shop_inner", "import nosuchdependency", workflow=False)
    with pytest.raises(Problem) as problem:
        find_worker("shop_inner:worker")
    assert "shop_inner.py" in str(problem.value)
    assert "No module named 'nosuchdependency'" in str(problem.value)
