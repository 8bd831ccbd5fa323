import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows.errors import ConfigurationError, NonDeterminismError, RunCancelled, SerializationError, StepError
from pyrula.workflows.policies import Collect, Debounce, Limit, Policy, Rate, Retry, resolve_key


class CardDeclined(Exception):
    pass


class StolenCard(CardDeclined):
    pass


class Busy(Exception):
    def __init__(self, retry_after: Any) -> None:
        self.retry_after = retry_after


def test_arguments_as_in_the_specification() -> None:
    assert Limit("tenant_id", 2) == Limit(key="tenant_id", max=2)
    assert Rate("tenant_id", 5, 10) == Rate(key="tenant_id", per_second=5, burst=10)
    assert Collect("user_id", 50, 60) == Collect(key="user_id", max_events=50, window_seconds=60)
    assert Debounce("user_id", 1.5) == Debounce(key="user_id", window_seconds=1.5)
    assert Debounce("user_id", 1.5).max_wait_seconds is None
    assert Debounce("user_id", 1.5, 60) == Debounce(key="user_id", window_seconds=1.5, max_wait_seconds=60)


@pytest.mark.parametrize(("per_second", "burst"), [(5, 5), (0.2, 1), (2.5, 3), (3.0, 3)])
def test_burst_defaults_to_the_rate_rounded_up(per_second: float, burst: int) -> None:
    assert Rate("k", per_second).burst == burst


@pytest.mark.parametrize(
    "make",
    [
        lambda: Limit("", 1),
        lambda: Limit(None, 1),
        lambda: Limit("k", 0),
        lambda: Limit("k", True),
        lambda: Limit("k", 1.5),
        lambda: Rate("k", 0),
        lambda: Rate("k", -1),
        lambda: Rate("k", math.nan),
        lambda: Rate("k", math.inf),
        lambda: Rate("k", 10**400),
        lambda: Rate("k", "5"),
        lambda: Rate("k", 1, 0),
        lambda: Rate("k", 1, 2.5),
        lambda: Collect("k", 0, 1),
        lambda: Collect("k", 1, 0),
        lambda: Debounce("k", 0),
        lambda: Debounce(5, 1),
        lambda: Debounce("k", 5, 4.9),
        lambda: Debounce("k", 5, 0),
        lambda: Debounce("k", 5, math.nan),
        lambda: Debounce("k", 5, max_wait_seconds="60"),
        lambda: Debounce("k", 5, max_wait=60),
        lambda: Retry(max_attempts=0),
        lambda: Retry(max_attempts=None),
        lambda: Retry(initial=-1),
        lambda: Retry(factor=0.5),
        lambda: Retry(max_delay=math.inf),
        lambda: Retry(jitter=1.5),
        lambda: Retry(jitter=-0.1),
        lambda: Retry(non_retryable=("ValueError",)),
        lambda: Retry(non_retryable=ValueError("x")),
    ],
)
def test_impossible_values_are_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_an_async_key_function_is_refused() -> None:
    async def key(params: dict[str, Any]) -> str:
        return "k"

    with pytest.raises(ConfigurationError, match="async"):
        Limit(key=key, max=1)


@pytest.mark.parametrize("policy", [Limit("k", 1), Rate("k", 1), Collect("k", 1, 1), Debounce("k", 1), Retry()])
def test_policies_are_frozen_values(policy: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, dataclasses.fields(policy)[0].name, 5)
    assert hash(policy) == hash(dataclasses.replace(policy))


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("t1", "t1"),
        (1, "1"),
        ("1", "1"),
        (None, ""),
        ("", ""),
        (True, "True"),
        (1.5, "1.5"),
        ([1, "a"], '[1,"a"]'),
        ({"b": 1, "a": None}, '{"a":null,"b":1}'),
    ],
)
@pytest.mark.parametrize("policy", [Limit("k", 1), Limit(lambda params: params["k"], 1), Debounce("k", 1)])
def test_a_key_resolves_to_a_text(policy: Policy, value: Any, key: str) -> None:
    assert resolve_key(policy, {"k": value, "other": 1}, "sync") == key


def test_a_missing_parameter_is_the_empty_key() -> None:
    assert resolve_key(Limit("tenant_id", 2), {}, "sync") == ""


def test_a_computed_key() -> None:
    policy = Limit(key=lambda p: f"{p['org']}:{p['region']}", max=2)
    assert resolve_key(policy, {"org": "o", "region": "eu"}, "sync") == "o:eu"


@pytest.mark.parametrize("value", [[math.nan], {"a": object()}])
def test_a_key_that_fails_is_a_value_error_with_the_workflow(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^workflow 'sync': the key of Rate failed for these params: KeyError: 'org'"):
        resolve_key(Rate(lambda p: p["org"], 1), {}, "sync")
    with pytest.raises(ValueError, match=r"^workflow 'sync': the key of Limit failed"):
        resolve_key(Limit("k", 1), {"k": value}, "sync")


def test_a_key_function_cannot_change_the_params() -> None:
    params = {"k": 1}
    assert resolve_key(Limit(lambda p: p.pop("k"), 1), params, "sync") == "1"
    assert params == {"k": 1}


def test_delays_grow_to_their_maximum() -> None:
    retry = Retry(max_attempts=9, initial=0.5, factor=2, max_delay=5)
    assert [retry.delay(attempt, 0.0) for attempt in (1, 2, 3, 4, 5, 9)] == [0.5, 1, 2, 4, 5, 5]
    assert Retry(initial=timedelta(seconds=2), max_delay=timedelta(minutes=1)).delay(2, 0.0) == 4
    assert Retry().delay(100_000, 0.0) == 60
    assert Retry(initial=0).delay(100_000, 0.0) in (0, 60)


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.floats(1, 10))
def test_jitter_only_shortens(attempt: int, rnd: float, jitter: float, factor: float) -> None:
    retry = Retry(jitter=jitter, factor=factor)
    full = retry.delay(attempt, 0.0)
    assert full * (1 - jitter) <= retry.delay(attempt, rnd) <= full <= 60


@pytest.mark.parametrize(("retry_after", "delay"), [(7, 7.0), (0, 0.0), (timedelta(minutes=5), 300.0)])
def test_an_error_may_carry_its_own_delay(retry_after: Any, delay: float) -> None:
    assert Retry().delay_for(Busy(retry_after), 1, 0.5) == delay


@pytest.mark.parametrize("retry_after", [None, "120", -1, math.nan, True])
def test_a_delay_that_is_none_is_ignored(retry_after: Any) -> None:
    assert Retry().delay_for(Busy(retry_after), 1, 0.0) == 0.5


def test_which_errors_are_retried() -> None:
    retry = Retry(non_retryable=(CardDeclined,))
    assert retry.retryable(ValueError())
    assert retry.retryable(TimeoutError())
    assert not retry.retryable(CardDeclined())
    assert not retry.retryable(StolenCard())
    for never in (
        ConfigurationError(),
        SerializationError(),
        NonDeterminismError(),
        RunCancelled(),
        KeyboardInterrupt(),
    ):
        assert not Retry().retryable(never)


@pytest.mark.parametrize("name", ["CardDeclined", f"{__name__}.CardDeclined"])
def test_a_step_error_counts_as_the_error_in_it(name: str) -> None:
    error = StepError("charge", 3, name, "no funds")
    assert Retry().retryable(error)
    assert not Retry(non_retryable=(CardDeclined,)).retryable(error)
    assert Retry(non_retryable=(ValueError,)).retryable(error)
    assert not Retry(non_retryable=(StepError,)).retryable(error)


def test_exception_classes_may_be_given_singly_or_as_a_list() -> None:
    one: Any = ValueError
    several: Any = [ValueError, KeyError]
    assert Retry(non_retryable=one).non_retryable == (ValueError,)
    assert Retry(non_retryable=several).non_retryable == (ValueError, KeyError)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Retry(max_attemps=3), "Retry takes no max_attemps=; did you mean max_attempts?"),  # type: ignore[call-arg]
        (lambda: Limit("key", maximum=3), "Limit takes no maximum="),  # type: ignore[call-arg]
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_was_meant(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert str(caught.value).startswith(said)
