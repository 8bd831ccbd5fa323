"""Every interleaving of small configurations keeps the promises; with PYRULA_SOAK=1 the large ones are searched too."""

import os

import pytest

from tests.model.search import Search
from tests.model.setups import LARGE, SMALL
from tests.model.world import Setup, World

SETUPS = SMALL | LARGE if os.environ.get("PYRULA_SOAK") == "1" else SMALL


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_every_interleaving_keeps_the_promises(setup: Setup) -> None:
    found = Search(World(setup)).run()
    print(found)
    assert found.ends > 0
