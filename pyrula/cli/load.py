"""The user's own code: import a file or a module, find the worker or the bindings in it, and say clearly what is wrong.

An error inside the user's code is shown with its traceback, cut to the user's frames: that is what they have to mend.
"""

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

import pyrula
from pyrula.cli.problem import Problem
from pyrula.kafka import Binding, KafkaWorker
from pyrula.workflows import MemoryStore, ValkeyStore, WorkflowDefinition, WorkflowWorker
from pyrula.workflows.errors import ConfigurationError

__all__ = [
    "Worker",
    "broken",
    "find_bindings",
    "find_kafka_worker",
    "find_store",
    "find_worker",
    "import_file",
    "import_named",
    "is_user_code",
]

Store: TypeAlias = MemoryStore | ValkeyStore


def import_file(path: str) -> ModuleType:
    """Import a Python file by its path, its folder being importable as it is for a script."""
    file = Path(path)
    if file.is_dir():
        raise Problem(f"{path} is a folder; give the Python file in it that has the bindings")
    if not file.exists():
        raise Problem(f"{path}: no such file (the current folder is {Path.cwd()})")
    if file.suffix != ".py":
        raise Problem(f"{path} is no Python file: its name doesn't end in .py")
    file = file.resolve()
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    # Annotations and pickles are looked up by module name, so it must be in sys.modules; never in another one's place.
    name = file.stem if file.stem.isidentifier() and not _importable(file.stem, file) else f"pyrula_dev_{os.getpid()}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise broken(error, f"{path} could not be imported") from None
    return module


def _importable(name: str, file: Path) -> bool:
    if name in sys.modules:
        return True
    found = importlib.util.find_spec(name)
    return found is not None and found.origin != str(file)


def import_named(name: str) -> ModuleType:
    """Import a module by its name, the current folder being importable."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Problem(
                f"there is no module {error.name!r}. Modules are looked for in {Path.cwd()} and where Python's packages"
                " are; run the command in the folder that holds it, or install it"
            ) from None
        raise broken(error, f"{name} could not be imported") from None
    except Exception as error:  # noqa: BLE001
        raise broken(error, f"{name} could not be imported") from None


def broken(error: Exception, what: str) -> Problem:
    """What the user's code raised, with the user's own frames."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_code(frame.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    lines += traceback.format_exception_only(error)
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"\n{error.name!r} is not installed here, or not importable from {Path.cwd()}"
    return Problem(f"{what}; it raised:\n\n{''.join(lines).rstrip()}{hint}")


def is_user_code(filename: str) -> bool:
    """Neither Pyrula's, nor Python's own, nor an installed package's."""
    if filename.startswith("<"):
        return False
    return not any(Path(filename).resolve().is_relative_to(folder) for folder in _FOREIGN)


_FOREIGN: Final = tuple(
    {
        Path(pyrula.__file__).resolve().parent,
        *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


def find_bindings(module: ModuleType, shown: str) -> list[Binding]:
    """The bindings of a module: `bindings`, else those of a KafkaWorker named `worker`, else every Binding in it."""
    named = getattr(module, "bindings", None)
    if isinstance(named, Binding):
        return [named]
    if named is not None:
        found = list(named) if isinstance(named, Iterable) else [named]
        strange = [item for item in found if not isinstance(item, Binding)]
        if strange or not found:
            what = f"holds {type(strange[0]).__name__} {strange[0]!r}" if strange else "is empty"
            raise Problem(f"`bindings` in {shown} {what}; it must be a list of pyrula.kafka.Binding")
        return found
    worker = getattr(module, "worker", None)
    if isinstance(worker, KafkaWorker):
        return list(worker.bindings)
    loose = [value for value in vars(module).values() if isinstance(value, Binding)]
    if loose:
        return loose
    if any(isinstance(value, WorkflowWorker) for value in vars(module).values()):
        raise Problem(
            f"{shown} has a WorkflowWorker and no bindings: its runs are submitted by a client, so there are no records"
            f" to feed. Run it by `pyrula worker {module.__name__}:worker`, and try its workflows by"
            " pyrula.workflows.InlineWorkflowRunner or, in tests, pyrula.workflows.testing.WorkflowTestEnv"
        )
    raise Problem(
        f"{shown} has no bindings: nothing says which topic runs which workflow. Add, at the end of the file:\n\n"
        "    from pyrula.kafka import Binding\n\n"
        f'    bindings = [Binding({_a_workflow(module)}, topic="orders", group="billing")]'
    )


def _a_workflow(module: ModuleType) -> str:
    return next((name for name, value in vars(module).items() if isinstance(value, WorkflowDefinition)), "my_workflow")


Worker: TypeAlias = KafkaWorker | WorkflowWorker


def find_worker(target: str) -> Worker:
    """The worker that ``module:name`` names; a function of no arguments is called for it."""
    found, module = _find(target, "worker")
    if isinstance(found, Worker):
        return found
    named = getattr(module, target.partition(":")[2], found)
    what = f"is a {type(found).__name__}" if named is found else f"has returned {found!r:.100}"
    if inspect.iscoroutinefunction(found):
        what = "is an `async def`"
    raise Problem(
        f"{target} {what}, not a worker or a function that returns one. {_candidates(module, target.partition(':')[0])}"
    )


def find_kafka_worker(target: str) -> KafkaWorker:
    """As `find_worker`, for what is about topics."""
    worker = find_worker(target)
    if isinstance(worker, KafkaWorker):
        return worker
    raise Problem(f"{target} is a {type(worker).__name__}: it needs no topics")


def find_store(target: str, namespace: str | None, shards: int | None, option: str = "--store ") -> Store:
    """A store by its URL, or the one that ``module:name`` names: a store, or a worker's. `option` gave it."""
    if "://" in target:
        given: dict[str, Any] = {"namespace": namespace, "shards": shards}
        try:
            return ValkeyStore(target, **{name: value for name, value in given.items() if value is not None})
        except ConfigurationError as error:
            raise Problem(f"{option}{target}: {error}") from None
    if ":" not in target or target.rpartition(":")[2].isdecimal():
        raise Problem(
            f"{option}{target}: give a URL like valkey://localhost:6379, or MODULE:NAME of a store or a worker"
        )
    if namespace is not None or shards is not None:
        raise Problem(f"--namespace and --shards go with a store's URL; {target} knows its own")
    found, _ = _find(target, "store")
    store = found.store if isinstance(found, Worker) else found
    if isinstance(store, (MemoryStore, ValkeyStore)):
        return store
    raise Problem(
        f"{target} is a {type(found).__name__}, not a store or a worker; "
        "give a URL like valkey://localhost:6379, or MODULE:NAME of one"
    )


def _find(target: str, what: str) -> tuple[object, ModuleType]:
    """What ``module:name`` names, called if it is a function, and the module."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        looks_like_file = target.endswith(".py") or "/" in target
        shown = Path(target.split(":")[0]).stem if looks_like_file else module_name or "mymodule"
        raise Problem(f"{target!r} is not MODULE:NAME. Give a module and a name in it, like {shown}:{what}")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        raise Problem(f"{module_name!r} is a file; name the module as Python imports it: {dotted}:{path}")
    module = import_named(module_name)
    found: object = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise Problem(f"module {module_name!r} has no {path!r}. {_candidates(module, module_name)}")
        found = getattr(found, name)
    if inspect.isroutine(found) and not inspect.iscoroutinefunction(found):
        try:
            found = found()
        except Exception as error:  # noqa: BLE001
            raise broken(error, f"{target} was called for its {what}") from None
    return found, module


def _candidates(module: ModuleType, module_name: str) -> str:
    workers = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    if workers:
        return "It has " + ", ".join(f"{module_name}:{name}" for name in workers)
    return (
        "It has no worker at all; make one: worker = KafkaWorker(bindings=[...], store=..., kafka=...), or "
        "WorkflowWorker(workflows=[...], store=...) for submitted runs"
    )
