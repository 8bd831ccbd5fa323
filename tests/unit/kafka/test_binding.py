"""What a binding takes, what follows from it, and every one that can't work."""

from typing import Any

import pytest

from pyrula.kafka import Binding, BytesSerde, KafkaOptions, KafkaWorker, Record
from pyrula.kafka.binding import check_bindings
from pyrula.workflows import MemoryStore, RunNotFoundError, WorkflowClient
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.policies import Collect, Debounce, Limit, Rate, Retry


async def _charge(ctx: Any, order: dict[str, Any]) -> None: ...


charge = WorkflowDefinition(_charge, name="charge_order")


def bind(**options: Any) -> Binding:
    return Binding(charge, **{"topic": "orders", "group": "billing", **options})


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        bind(**options)
    return str(caught.value)


async def test_a_record_run_before_any_worker_says_which_partition_no_worker_has_had() -> None:
    client = WorkflowClient(MemoryStore())
    for binding, topic in ((bind(), None), (bind(topic=None, topics=["returns", "orders"]), "orders")):
        with pytest.raises(RunNotFoundError, match=r"no worker of group 'billing' has had partition orders\[3\] yet"):
            await client.record_run(binding, 3, 0, topic=topic)


def test_what_a_binding_says_when_nothing_is_said() -> None:
    binding = bind()
    assert binding.workflow is charge
    assert binding.topics == ("orders",)
    assert (binding.group, binding.cluster, binding.name) == ("billing", "default", "billing/orders")
    assert binding.max_concurrency == 64
    assert binding.ordering == "key"
    assert binding.retry == Retry(max_attempts=1)
    assert binding.on_failure == "dead_letter"
    assert binding.dead_letter_topic_of("orders") == "orders.billing.dlq"
    assert (binding.value_serde, binding.output, binding.run_timeout) == (None, None, None)
    assert (binding.auto_offset_reset, binding.on_out_of_range, binding.keep) == ("earliest", "earliest", "failed")
    assert repr(binding) == "<Binding charge_order to billing/orders>"


def test_several_topics_have_a_dead_letter_topic_each() -> None:
    binding = bind(topic=None, topics=["a", "b"], cluster="west")
    assert binding.topics == ("a", "b")
    assert binding.name == "west/billing/a,b"
    assert [binding.dead_letter_topic_of(topic) for topic in binding.topics] == ["a.billing.dlq", "b.billing.dlq"]
    assert bind(dead_letter_topic="failed").dead_letter_topic_of("orders") == "failed"


def test_the_workflow_says_what_the_binding_leaves_open() -> None:
    definition = WorkflowDefinition(_charge, retry=Retry(max_attempts=4), timeout=90)
    binding = Binding(definition, topic="orders", group="billing")
    assert binding.retry == Retry(max_attempts=4)
    assert binding.run_timeout == 90
    binding = Binding(definition, topic="orders", group="billing", retry=Retry(max_attempts=2), run_timeout=5)
    assert binding.retry == Retry(max_attempts=2)
    assert binding.run_timeout == 5


def test_the_arguments_are_compiled_with_the_bindings_own_serde() -> None:
    class Raw:
        value = b"{}"

    raw: Any = Raw()
    assert bind().arguments(raw, ("orders", 0)) == (({},), None)

    async def body(ctx: Any, text: bytes) -> None: ...

    binding = Binding(WorkflowDefinition(body), topic="orders", group="billing", value_serde=BytesSerde())
    assert binding.arguments(raw, ("orders", 0)) == ((b"{}",), None)


@pytest.mark.parametrize(
    "policies",
    [
        {"concurrency": Limit("order", max=2)},
        {"rate_limit": Rate("order", per_second=1)},
        {"trigger": Collect("order", max_events=5, window_seconds=1)},
        {"trigger": Debounce("order", window_seconds=1)},
    ],
)
def test_a_workflow_with_flow_control_can_not_be_bound(policies: dict[str, Any]) -> None:
    definition = WorkflowDefinition(_charge, name="throttled", **policies)
    with pytest.raises(ConfigurationError) as caught:
        Binding(definition, topic="orders", group="billing")
    said = str(caught.value)
    assert said.startswith(f"workflow throttled has {next(iter(policies))}=, so it can't be bound to orders")
    assert "max_concurrency and the partition count" in said
    assert "ctx." not in said  # a body has nothing yet to start another workflow with
    assert "starts this one by a WorkflowClient" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": ""}, "group='' is no text"),
        ({"group": None}, "group=None is no text"),
        ({"group": "g" * 513}, "is no text of 1 to 512 characters"),
        ({"group": "\ud800"}, "can't be written as UTF-8"),
        ({"cluster": ""}, "cluster='' is no text"),
        ({"topic": ""}, "'' can't be the name of a topic"),
        ({"topic": ".."}, "'..' can't be the name of a topic"),
        ({"topic": "a b"}, "'a b' can't be the name of a topic"),
        ({"topic": "a" * 250}, "can't be the name of a topic"),
        ({"topic": "orders\n"}, "can't be the name of a topic"),
        ({"topic": "pořadí"}, "can't be the name of a topic"),
        ({"topic": 7}, "7 can't be the name of a topic"),
        ({"topic": None}, "give either topic= or topics="),
        ({"topics": ["a"]}, "give either topic= or topics="),
        ({"topic": None, "topics": "orders"}, "topics='orders' is one text"),
        ({"topic": None, "topics": ["a", "b", "a"]}, "a topic is named twice"),
        ({"topic": None, "topics": ["a", ""]}, "'' can't be the name of a topic"),
        ({"max_concurrency": 0}, "max_concurrency=0 is no count of at least 1"),
        ({"max_concurrency": -1}, "max_concurrency=-1"),
        ({"max_concurrency": 1.5}, "max_concurrency=1.5"),
        ({"max_concurrency": True}, "max_concurrency=True"),
        ({"ordering": "keys"}, "ordering='keys' is none of 'key', 'partition', 'unordered'"),
        ({"ordering": None}, "ordering=None is none of"),
        ({"on_failure": "retry"}, "on_failure='retry' is none of 'dead_letter', 'park_key', 'stop', 'skip'"),
        ({"on_failure": "park_key", "exactly_once": True}, "no part in the transactions of exactly_once"),
        ({"on_failure": "park_key", "ordering": "unordered"}, "but ordering='unordered' keeps no order"),
        ({"on_failure": "park_key", "release_lane": True}, "but release_lane=True keeps no order"),
        ({"auto_offset_reset": "none"}, "auto_offset_reset='none' is none of 'earliest', 'latest'"),
        ({"on_out_of_range": "latest"}, "on_out_of_range='latest' is none of 'earliest', 'stop'"),
        ({"keep": True}, "keep=True is none of 'none', 'failed', 'all'"),
        ({"retry": 3}, "retry=3 is no Retry(...)"),
        ({"run_timeout": 0}, "run_timeout=0 is no number of seconds above 0"),
        ({"run_timeout": float("nan")}, "run_timeout=nan"),
        ({"run_timeout": float("inf")}, "run_timeout=inf"),
        ({"run_timeout": "5"}, "run_timeout='5'"),
        ({"value_serde": BytesSerde}, "is no object with a decode(data) method"),
        ({"value_serde": "json"}, "value_serde='json' is no object with a decode(data) method"),
        ({"output": "orders"}, "output='orders' is a topic it reads"),
        ({"output": "a/b"}, "output='a/b' can't be the name of a topic"),
        ({"output": ""}, "output='' can't be the name of a topic"),
        ({"dead_letter_topic": "orders"}, "dead_letter_topic='orders' is a topic it reads"),
        ({"dead_letter_topic": "bad topic"}, "dead_letter_topic='bad topic' can't be the name of a topic"),
        ({"dead_letter_topic": "x", "output": "x"}, "dead_letter_topic='x' is its output too"),
        ({"output": "orders.billing.dlq"}, "dead_letter_topic='orders.billing.dlq' is its output too"),
        ({"topic": None, "topics": ["a", "a.billing.dlq"]}, "dead_letter_topic='a.billing.dlq' is a topic it reads"),
        ({"group": "my group"}, "'orders.my group.dlq' can't be the name of a topic; set dead_letter_topic"),
        ({"topic": "t" * 240}, "set dead_letter_topic"),
    ],
)
def test_what_can_not_work_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    told = refusal(**options)
    assert said in told
    assert "charge_order" in told


def test_a_group_may_have_any_name_where_the_dead_letter_topic_is_given() -> None:
    assert bind(group="můj tým", dead_letter_topic="failed").group == "můj tým"


def test_only_a_workflow_can_be_bound() -> None:
    for function in (_charge, "charge_order", None):
        anything: Any = function
        with pytest.raises(ConfigurationError, match="is no workflow; decorate it with @workflow"):
            Binding(anything, topic="orders", group="billing")


def test_what_the_body_asks_for_is_checked_when_it_is_bound() -> None:
    async def body(ctx: Any, order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    async def two(ctx: Any, record: Record[bytes], more: int) -> None: ...

    for function in (body, two):
        with pytest.raises(ConfigurationError):
            Binding(WorkflowDefinition(function), topic="orders", group="billing")


def test_a_group_has_one_reader_of_a_topic() -> None:
    first, second = bind(), bind(topic=None, topics=["other", "orders"])
    with pytest.raises(ConfigurationError) as caught:
        check_bindings([first, second])
    assert "group billing reads topic orders for charge_order and for charge_order" in str(caught.value)
    assert "give the second binding its own group" in str(caught.value)
    check_bindings([first, bind(group="audit"), bind(topic="refunds"), bind(cluster="west")])


def test_the_same_binding_given_twice_is_refused() -> None:
    binding = bind()
    with pytest.raises(ConfigurationError, match="billing/orders is given twice"):
        check_bindings([binding, binding])


def test_a_name_means_one_workflow() -> None:
    async def other(ctx: Any, order: dict[str, Any]) -> None: ...

    twin = WorkflowDefinition(other, name="charge_order")
    with pytest.raises(ConfigurationError, match="two workflows are called charge_order"):
        check_bindings([bind(), Binding(twin, topic="refunds", group="billing")])


def test_what_a_worker_is_not_given_by_mistake() -> None:
    given: Any = {"store": MemoryStore(), "kafka": KafkaOptions()}
    for mistake, told in (
        ({"bindings": [charge]}, r"bindings= holds Bindings: Binding\(workflow, topic=\.\.\., group=\.\.\.\)"),
        ({"store": "valkey://localhost"}, r"store= takes a store, such as ValkeyStore\(url\)"),
        ({"kafka": "broker:9092"}, r"kafka= takes options: KafkaOptions\(bootstrap_servers='broker:9092'\)"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            KafkaWorker(**{"bindings": [bind()], **given, **mistake})


def test_a_worker_needs_a_binding() -> None:
    with pytest.raises(ConfigurationError, match="at least one Binding"):
        check_bindings([])


def test_an_unknown_option_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"^Binding takes no max_concurency=; did you mean max_concurrency?"):
        Binding(charge, topic="orders", group="billing", max_concurency=3)  # type: ignore[call-arg]
