"""The examples in docstrings run."""

import doctest
from types import ModuleType

import pytest

from pyrula.kafka import binding, offsets, options, record, serde


@pytest.mark.parametrize("module", [binding, offsets, options, record, serde], ids=lambda module: module.__name__)
def test_the_examples_of_a_module_run(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
