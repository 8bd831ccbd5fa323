"""Scripts carry what they use of the libraries, and nothing else."""

import re
from importlib.resources import files

import pytest

from pyrula.workflows.store.valkey import run_scripts
from pyrula.workflows.store.valkey.lua_parts import needed
from pyrula.workflows.store.valkey.run_scripts import run_script

LIBRARY = b"""-- about it
local A, B = 1, 2
local later
local TABLE = {
  one = A,
}

-- about f
local function f()
  -- inside
  return A
end

local function g()
  later = f()
end

local function h()
  return TABLE
end
"""
RUNS = [
    path.name.removesuffix(".lua")
    for path in files(run_scripts.__package__).joinpath("lua", "runs").iterdir()
    if path.name.removesuffix(".lua") not in {"change", *run_scripts._LIBRARIES}
]


def test_what_is_used_comes_with_what_it_uses() -> None:
    assert needed(LIBRARY, b"g()") == (
        b"local A, B = 1, 2\nlocal later\nlocal function f()\n  return A\nend\nlocal function g()\n  later = f()\nend"
    )
    assert needed(LIBRARY, b"return B") == b"local A, B = 1, 2"
    assert b"one = A" in needed(LIBRARY, b"h()")
    assert needed(LIBRARY, b"return 1") == b""


def test_values_that_count_for_more_than_their_names_stay() -> None:
    text = needed(b"local A = arg()\nlocal function f()\n  return A\nend\nlocal B = arg()", b"B", functions_only=True)
    assert text == b"local A = arg()\nlocal B = arg()"


def test_what_is_not_a_row_of_names_is_refused() -> None:
    with pytest.raises((AssertionError, IndexError)):
        needed(b"redis.call('PING')\n", b"")


@pytest.mark.parametrize("name", RUNS)
def test_a_script_has_what_it_needs_and_no_function_that_it_does_not(name: str) -> None:
    text = run_script(name).text.decode()
    assert text.startswith("#!lua")
    for made in re.findall(r"^local function (\w+)", text, re.MULTILINE):
        assert len(re.findall(rf"\b{made}\b", text)) > 1, f"{made} is not used"
