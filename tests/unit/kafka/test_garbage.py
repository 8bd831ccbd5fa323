import gc
from collections.abc import Iterator

import pytest

from pyrula.kafka.garbage import YOUNG, Rarely


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    former = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*former)


def test_the_first_raises_the_threshold_and_the_last_puts_it_back() -> None:
    rarely = Rarely()
    one, other = rarely.want(), rarely.want()
    assert gc.get_threshold() == (YOUNG, 10, 10)
    one()
    assert gc.get_threshold() == (YOUNG, 10, 10)
    other()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("young", [0, YOUNG + 1])
def test_who_looks_even_more_rarely_or_never_is_left_alone(young: int) -> None:
    gc.set_threshold(young, 10, 10)
    give_up = Rarely().want()
    assert gc.get_threshold() == (young, 10, 10)
    give_up()
    assert gc.get_threshold() == (young, 10, 10)


def test_what_somebody_else_set_meanwhile_stays() -> None:
    give_up = Rarely().want()
    gc.set_threshold(5_000, 10, 10)
    give_up()
    assert gc.get_threshold() == (5_000, 10, 10)
