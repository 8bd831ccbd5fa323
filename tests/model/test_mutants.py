"""The search notices every rule that is left out, by the promise that it keeps, and tells the shortest way there."""

import pytest

from pyrula.workflows.store.memory_lanes import MemoryLanes
from tests.model.mutants import OWNER, QUEUE, STORE, Mutant, Patch, left_out
from tests.model.search import Search, Violation
from tests.model.setups import LARGE, SMALL
from tests.model.world import World


@pytest.mark.parametrize("mutant", [*OWNER, *STORE, *QUEUE], ids=str)
def test_a_rule_left_out_is_noticed(mutant: Mutant) -> None:
    with left_out(mutant.patch), pytest.raises(Violation) as caught:
        Search(World(mutant.setup)).run()
    print(caught.value)
    assert caught.value.what.startswith(mutant.breaks)


def test_without_the_mutation_their_configurations_hold() -> None:
    searched = {*SMALL.values(), *LARGE.values()}
    for setup in {mutant.setup.whole() for mutant in (*OWNER, *STORE, *QUEUE)} - searched:
        assert Search(World(setup)).run().ends


def test_a_violation_is_told_in_words() -> None:
    mutant = next(mutant for mutant in OWNER if mutant.name == "the lane goes along")
    with pytest.raises(Violation) as caught:
        Search(World(mutant.setup)).run()
    assert str(caught.value).splitlines() == [
        "order: a1 completes before a0, in 10 steps:",
        "  1. the group gives the partition to W1",
        "  2. W1's claim: claimed 1.1",
        "  3. W1 reads the committed offset and confirms it",
        "  4. W1's register: registered ()",
        "  5. W1 reads the lanes: none",
        "  6. W1 starts a0",
        "  7. W1 parks a0: its hand-over is sent",
        "  8. W1's hand-over of a0: taken",
        "  9. W1 starts a1",
        " 10. W1 completes a1",
    ]


def test_a_mutant_whose_rule_has_moved_says_so() -> None:
    with pytest.raises(LookupError, match="The rule has moved"), left_out(Patch(MemoryLanes, "lanes", "no such", "")):
        pass


def test_mutants_leave_the_store_as_it_was() -> None:
    for mutant in (*STORE, *QUEUE):
        with left_out(mutant.patch):
            pass
    assert Search(World(SMALL["two records, the first parks; nothing goes wrong"])).run().ends
