"""What a run is stamped with: keys as the spec resolves them, and the place that follows from what is declared."""

from typing import Any

import pytest

from pyrula.workflows import Limit, Rate, workflow
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.params import Params
from pyrula.workflows.stamps import LimitStamp, RateStamp, Stamp, stamp_of


def defined(**policies: Any) -> WorkflowDefinition[..., Any]:
    @workflow(name="stamped", **policies)
    async def stamped(ctx: Any, /, tenant: Any = None, region: str = "", **others: Any) -> None: ...

    return stamped


def stamped(policies: dict[str, Any], params: dict[str, Any]) -> Stamp:
    definition = defined(**policies)
    found = stamp_of(definition, Params.of(definition).encode(params))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("acme", "acme"),
        (1, "1"),
        ("1", "1"),
        (1.5, "1.5"),
        (True, "True"),
        (None, ""),
        ([1, "b"], '[1,"b"]'),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
    ],
)
def test_a_key_by_name(value: Any, key: str) -> None:
    assert stamped({"concurrency": Limit("tenant", max=2)}, {"tenant": value}).limit == LimitStamp("tenant", key, 2)


def test_a_missing_parameter_is_one_bucket() -> None:
    assert stamped({"rate_limit": Rate("tenant", per_second=2.5)}, {}).rate == RateStamp("tenant", "", 2.5, 3)


def test_a_key_by_function_sees_the_params_as_the_run_gets_them() -> None:
    limit = Limit(key=lambda p: f"{p['tenant']}:{p['region']}", max=1)
    assert stamped({"concurrency": limit}, {"tenant": 4, "region": "eu"}).limit == LimitStamp("key", "4:eu", 1)


def test_a_key_that_fails_names_workflow_and_policy() -> None:
    with pytest.raises(ValueError, match=r"workflow 'stamped': the key of Limit failed.*KeyError: 'org'"):
        stamped({"concurrency": Limit(key=lambda p: p["org"], max=1)}, {})


def test_a_text_that_utf8_cannot_hold() -> None:
    stamp = stamped({"concurrency": Limit(key=lambda p: "\ud800", max=1)}, {})
    assert Stamp.decode(stamp.encode()) == stamp


def test_no_policy_no_stamp() -> None:
    assert stamp_of(defined(), b"{}") is None


PARAMS = {"tenant": "acme", "region": "eu"}


@pytest.mark.parametrize(
    ("policies", "place"),
    [
        ({"concurrency": Limit("tenant", max=1)}, ("acme",)),
        ({"rate_limit": Rate(lambda p: p["region"], per_second=1)}, ("eu",)),
        ({"concurrency": Limit("tenant", max=1), "rate_limit": Rate("tenant", per_second=1)}, ("acme",)),
        ({"concurrency": Limit("tenant", max=1), "rate_limit": Rate("region", per_second=1)}, ()),
        # the same for these params, but for others it wouldn't be
        ({"concurrency": Limit("tenant", max=1), "rate_limit": Rate(lambda p: p["tenant"], per_second=1)}, ()),
    ],
)
def test_where_a_gated_run_lies(policies: dict[str, Any], place: tuple[str, ...]) -> None:
    assert stamped(policies, PARAMS).place == place


def test_a_stamp_survives_its_json() -> None:
    stamp = stamped({"concurrency": Limit("tenant", max=1), "rate_limit": Rate("region", per_second=0.1)}, PARAMS)
    assert Stamp.decode(stamp.encode()) == stamp
