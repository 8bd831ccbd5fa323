"""A wait says what it waited for."""

import pytest

from tests.services.waiting import wait_until, wait_until_async


def test_the_first_true_value_is_given() -> None:
    values = iter([0, "", None, 7])
    assert wait_until(lambda: next(values), description="a value", interval=0) == 7


def test_a_time_out_names_the_condition_and_the_last_value() -> None:
    with pytest.raises(AssertionError, match="waited 0 s for the moon; last value: 0"):
        wait_until(lambda: 0, description="the moon", timeout=0, interval=0)


async def test_async_predicates_and_plain_ones() -> None:
    async def seven() -> int:
        return 7

    assert await wait_until_async(seven, description="seven") == 7
    assert await wait_until_async(lambda: 8, description="eight") == 8
    with pytest.raises(AssertionError, match="waited 0 s for nothing"):
        await wait_until_async(lambda: False, description="nothing", timeout=0)
