"""Every import of the package, also one for typing only or inside a function, points down the list of layers."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pyrula"

# Lowest first. A module belongs to the longest prefix that fits it, and imports from its own layer or a lower one.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("pyrula",),
    tuple(
        f"pyrula.workflows.{name}"
        for name in (
            "errors",
            "clock",
            "model",
            "codec",
            "likeness",
            "annotations",
            "naming",
            "policies",
            "definition",
            "params",
            "batching",
            "stamps",
            "egress",
            "schedules",
            "backfills",
        )
    ),
    ("pyrula.workflows.replay",),
    tuple(
        f"pyrula.workflows.{name}"
        for name in ("engine", "context", "execution", "group_commit", "loops", "signals", "store")
    ),
    ("pyrula.workflows.replaying",),
    ("pyrula.workflows.client",),
    ("pyrula.workflows.worker",),
    ("pyrula.workflows.inline",),
    ("pyrula.workflows.testing",),
    ("pyrula.workflows",),
    tuple(
        f"pyrula.kafka.{name}"
        for name in (
            "record",
            "serde",
            "value_reader",
            "binding",
            "options",
            "offsets",
            "commit_map",
            "lanes",
            "events",
            "standing",
        )
    ),
    ("pyrula.kafka.",),
    ("pyrula.kafka",),
    tuple(f"pyrula.http.{name}" for name in ("problems", "tokens")),
    tuple(f"pyrula.http.{name}" for name in ("access", "bodies", "pieces", "waiting")),
    tuple(f"pyrula.http.{name}" for name in ("api", "following", "models", "named", "routing", "views")),
    ("pyrula.http.runs",),
    tuple(
        f"pyrula.http.{name}"
        for name in (
            "backfills",
            "explaining",
            "fleet",
            "health",
            "metrics",
            "schedules",
            "streams",
            "talking",
            "triggers",
        )
    ),
    tuple(f"pyrula.http.{name}" for name in ("openapi", "router")),
    ("pyrula.http.app",),
    ("pyrula.http.server",),
    ("pyrula.http",),
    ("pyrula.cli",),
    ("pyrula.__main__",),
)

# These are the faces of a package: what they re-export lies below them.
EXACT = {"pyrula", "pyrula.workflows", "pyrula.kafka", "pyrula.http"}

# Where a package from outside may be imported. None from outside is imported that isn't named here.
OUTSIDE = {
    "aiokafka": ("pyrula.kafka",),
    "cronsim": ("pyrula.workflows.schedules",),
    "confluent_kafka": ("pyrula.kafka.embedded",),
    "fastapi": ("pyrula.http",),
    "prometheus_client": ("pyrula.http",),
    "orjson": ("pyrula.workflows.codec",),
    "pydantic": ("pyrula",),
    "pydantic_core": ("pyrula",),
    "redis": ("pyrula.workflows.store.valkey",),
    "starlette": ("pyrula.http",),
    "typing_extensions": ("pyrula",),
    "uvicorn": ("pyrula.http",),
}

# These get time, randomness and bytes as arguments, so that they can be tested by the thousand.
PURE = (
    "pyrula.workflows.model",
    "pyrula.workflows.codec",
    "pyrula.workflows.likeness",
    "pyrula.workflows.policies",
    "pyrula.workflows.replay",
    "pyrula.workflows.store.port",
    "pyrula.workflows.store.valkey.keys",
    "pyrula.kafka.record",
    "pyrula.kafka.serde",
    "pyrula.kafka.value_reader",
    "pyrula.kafka.binding",
    "pyrula.kafka.options",
    "pyrula.kafka.offsets",
    "pyrula.kafka.commit_map",
    "pyrula.kafka.lanes",
)
IMPURE = {"asyncio", "os", "random", "secrets", "select", "socket", "subprocess", "threading", "time"}


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {_module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str, source: str, *, is_package: bool) -> Iterator[tuple[str, int]]:
    """Each module that the source imports, with the line: wherever the statement stands, absolute or relative."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                # `from package import name` imports a module where there is one of that name
                whole = f"{base}.{alias.name}"
                yield (whole if whole in SOURCES else base), node.lineno


IMPORTS = {
    module: list(imports_of(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"))
    for module, path in SOURCES.items()
}


def layer_of(module: str) -> int:
    """The layer whose prefix fits best. "pyrula.kafka." fits what is in that package, but not the package itself."""
    best, layer = -1, -1
    for number, prefixes in enumerate(LAYERS):
        for prefix in prefixes:
            inside = module.startswith(prefix if prefix.endswith(".") else f"{prefix}.")
            if (module == prefix or (inside and prefix not in EXACT)) and len(prefix) > best:
                best, layer = len(prefix), number
    return layer


def test_every_module_has_a_layer() -> None:
    homeless = [module for module in SOURCES if layer_of(module) < 0]
    assert not homeless, f"say in LAYERS where these belong: {homeless}"


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down(module: str) -> None:
    own = layer_of(module)
    wrong = [f"line {line}: {name}" for name, line in IMPORTS[module] if name in SOURCES and layer_of(name) > own]
    assert not wrong, f"{module} imports from a higher layer: {wrong}"


def test_no_cycles() -> None:
    graph = {module: {name for name, _ in imports if name in SOURCES} for module, imports in IMPORTS.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(f"modules import each other: {' <- '.join(cycle.args[1])}", pytrace=False)


@pytest.mark.parametrize("module", SOURCES)
def test_packages_from_outside_stay_where_they_belong(module: str) -> None:
    for name, line in IMPORTS[module]:
        top = name.partition(".")[0]
        if top == "pyrula" or top in sys.stdlib_module_names:
            continue
        allowed = OUTSIDE.get(top, ())
        fits = any(module == place or module.startswith(f"{place}.") for place in allowed)
        assert fits, f"{module} line {line} imports {top}; it may be imported in {allowed or 'no module'}"


@pytest.mark.parametrize("module", [m for m in SOURCES if any(m == p or m.startswith(f"{p}.") for p in PURE)])
def test_pure_modules_do_no_io_and_read_no_clock(module: str) -> None:
    impure = [f"line {line}: {name}" for name, line in IMPORTS[module] if name.partition(".")[0] in IMPURE]
    assert not impure, f"{module} is pure, but imports {impure}"


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("import pyrula.kafka.record", "pyrula.kafka.record"),
        ("from pyrula.kafka import record", "pyrula.kafka.record"),
        ("from pyrula.kafka import Record", "pyrula.kafka"),
        ("from ..kafka.record import Record", "pyrula.kafka.record"),
        ("from . import errors", "pyrula.workflows.errors"),
        ("def f():\n    from ..kafka import record", "pyrula.kafka.record"),
        ("if TYPE_CHECKING:\n    import pyrula.kafka.record", "pyrula.kafka.record"),
    ],
)
def test_every_form_of_import_is_seen(statement: str, found: str) -> None:
    assert [name for name, _ in imports_of("pyrula.workflows.codec", statement, is_package=False)] == [found]
