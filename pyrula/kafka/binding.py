"""A workflow bound to topics: what a user declares, checked when it is declared.

A binding names its workflow, the group it reads for, and what becomes of records; it knows no worker, broker or store.
What can be wrong about one binding raises here, what takes two in ``check_bindings``.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from pyrula.kafka.record import address_of, record_identity
from pyrula.kafka.serde import Arguments, Serde, compile_arguments
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.naming import is_topic, names_checked
from pyrula.workflows.policies import Retry

Ordering = Literal["key", "partition", "unordered"]
OnFailure = Literal["dead_letter", "park_key", "stop", "skip"]
OffsetReset = Literal["earliest", "latest"]
OnOutOfRange = Literal["earliest", "stop"]
Keep = Literal["none", "failed", "all"]

_LONGEST_ID = 512
_ONCE = Retry(max_attempts=1)


@names_checked
class Binding:
    """A workflow that runs once for each record of its topics.

    >>> from pyrula.workflows import workflow
    >>> @workflow(name="charge_order")
    ... async def charge_order(ctx, order: dict): ...
    >>> Binding(charge_order, topic="orders", group="billing").dead_letter_topic_of("orders")
    'orders.billing.dlq'

    `ordering` "key" runs records of one key one after the other (a null key has no order), "partition" all of a
    partition, "unordered" none. `max_concurrency` counts bodies in one process. `retry` is about whole runs and says
    one attempt unless the workflow says more; `run_timeout` (seconds) likewise. `on_failure` is what becomes of a
    record whose attempts are used up; with "park_key" it is dead-lettered, and its key waits until the run is retried
    or cancelled. `on_out_of_range` is what happens when the committed offset no longer exists.
    `exactly_once` writes what a record produces (dead letters, too) and its offset in one Kafka transaction: readers
    with isolation level read_committed see each output once. `keep` says which ended runs a client can still ask about
    for 7 days: those that failed, "all" or "none". With `release_lane` the lane of a record that waits in the store
    goes on without it.
    """

    __slots__ = (
        "arguments",
        "auto_offset_reset",
        "cluster",
        "dead_letter_topic",
        "exactly_once",
        "group",
        "keep",
        "max_concurrency",
        "on_failure",
        "on_out_of_range",
        "ordering",
        "output",
        "release_lane",
        "retry",
        "run_timeout",
        "topics",
        "value_serde",
        "workflow",
    )

    def __init__(
        self,
        workflow: WorkflowDefinition[..., Any],
        *,
        topic: str | None = None,
        topics: Sequence[str] = (),
        group: str,
        cluster: str = "default",
        max_concurrency: int = 64,
        ordering: Ordering = "key",
        retry: Retry | None = None,
        on_failure: OnFailure = "dead_letter",
        dead_letter_topic: str | None = None,
        value_serde: Serde | None = None,
        output: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        on_out_of_range: OnOutOfRange = "earliest",
        keep: Keep = "failed",
        release_lane: bool = False,
        run_timeout: float | None = None,
        exactly_once: bool = False,
    ) -> None:
        if not isinstance(workflow, WorkflowDefinition):
            raise ConfigurationError(
                f"Binding: {getattr(workflow, '__qualname__', workflow)!r} is no workflow; decorate it with @workflow"
            )
        self.workflow = workflow
        self.topics = _topics(workflow, topic, topics)
        self.group = group
        self.cluster = cluster
        self.max_concurrency = max_concurrency
        self.ordering: Ordering = ordering
        self.retry = retry or workflow.retry or _ONCE
        self.on_failure: OnFailure = on_failure
        self.dead_letter_topic = dead_letter_topic
        self.value_serde = value_serde
        self.output = output
        self.auto_offset_reset: OffsetReset = auto_offset_reset
        self.on_out_of_range: OnOutOfRange = on_out_of_range
        self.keep: Keep = keep
        self.release_lane = release_lane
        self.run_timeout = workflow.timeout if run_timeout is None else run_timeout
        self.exactly_once = exactly_once
        self._check()
        self.arguments: Arguments = compile_arguments(workflow, value_serde)

    @property
    def name(self) -> str:
        """What events, health and statistics call it: group, topics, and the cluster if there are several."""
        cluster = "" if self.cluster == "default" else f"{self.cluster}/"
        return f"{cluster}{self.group}/{','.join(self.topics)}"

    def dead_letter_topic_of(self, topic: str) -> str:
        """Where failed records of `topic` are copied to."""
        return self.dead_letter_topic or f"{topic}.{self.group}.dlq"

    def place_of(self, partition: int, topic: str | None = None) -> tuple[bytes, str]:
        """What a partition is called in a store, and what stands for it in the ids of its runs.

        ValueError for a topic that it doesn't read; with several of them, one has to be named."""
        if topic is None and len(self.topics) > 1:
            raise ValueError(f"binding {self.name} reads {len(self.topics)} topics: say which by topic=")
        topic = self.topics[0] if topic is None else topic
        if topic not in self.topics:
            raise ValueError(f"binding {self.name} doesn't read topic {topic!r}")
        place = self.cluster, self.group, topic, partition
        return record_identity(*place), address_of(*place)

    @property
    def dead_letters(self) -> bool:
        """Whether records that fail are copied to a dead-letter topic."""
        return self.on_failure in ("dead_letter", "park_key")

    def parks_key(self, key: bytes | None) -> bool:
        """Whether the lane of a record with this key waits once its run has failed."""
        return self.on_failure == "park_key" and (self.ordering == "partition" or key is not None)

    def __repr__(self) -> str:
        return f"<Binding {self.workflow.name} to {self.name}>"

    def _check(self) -> None:
        self._check_no_flow_control()
        self._check_id("group", self.group)
        self._check_id("cluster", self.cluster)
        for option, value, allowed in (
            ("ordering", self.ordering, get_args(Ordering)),
            ("on_failure", self.on_failure, get_args(OnFailure)),
            ("auto_offset_reset", self.auto_offset_reset, get_args(OffsetReset)),
            ("on_out_of_range", self.on_out_of_range, get_args(OnOutOfRange)),
            ("keep", self.keep, get_args(Keep)),
        ):
            if value not in allowed:
                raise self._error(f"{option}={value!r} is none of {', '.join(map(repr, allowed))}")
        if type(self.exactly_once) is not bool:
            raise self._error(f"exactly_once={self.exactly_once!r} is neither True nor False")
        if self.on_failure == "park_key":
            self._check_park_key()
        if type(self.max_concurrency) is not int or self.max_concurrency < 1:
            raise self._error(f"max_concurrency={self.max_concurrency!r} is no count of at least 1")
        timeout = self.run_timeout
        if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout < float("inf")):
            raise self._error(f"run_timeout={timeout!r} is no number of seconds above 0")
        if not isinstance(self.retry, Retry):
            raise self._error(f"retry={self.retry!r} is no Retry(...)")
        if self.value_serde is not None and (
            isinstance(self.value_serde, type) or not callable(getattr(self.value_serde, "decode", None))
        ):
            raise self._error(f"value_serde={self.value_serde!r} is no object with a decode(data) method")
        self._check_targets()

    def _check_park_key(self) -> None:
        if self.exactly_once:
            raise self._error(
                "on_failure='park_key' leaves a failed record to the store, which has no part in the transactions of "
                "exactly_once; use on_failure='stop'"
            )
        if self.ordering == "unordered" or self.release_lane:
            loose = "ordering='unordered'" if self.ordering == "unordered" else "release_lane=True"
            raise self._error(f"on_failure='park_key' holds the later records of a key, but {loose} keeps no order")

    def _check_targets(self) -> None:
        if self.output is not None:
            self._check_topic("output", self.output)
            if self.output in self.topics:
                raise self._error(f"output={self.output!r} is a topic it reads, so every record would come back")
        for topic in self.topics:
            target = self.dead_letter_topic_of(topic)
            if self.dead_letter_topic is None and not is_topic(target):
                raise self._error(f"{target!r} can't be the name of a topic; set dead_letter_topic")
            self._check_topic("dead_letter_topic", target)
            if target in self.topics:
                raise self._error(f"dead_letter_topic={target!r} is a topic it reads, so bad records would come back")
            if target == self.output:
                raise self._error(f"dead_letter_topic={target!r} is its output too; failures need a topic of their own")

    def _check_no_flow_control(self) -> None:
        workflow = self.workflow
        for policy in ("concurrency", "rate_limit", "trigger"):
            if getattr(workflow, policy) is not None:
                raise ConfigurationError(
                    f"workflow {workflow.name} has {policy}=, so it can't be bound to {', '.join(self.topics)}: "
                    "records are processed as they are consumed. Throttle the stream with max_concurrency and the "
                    f"partition count, or bind a workflow without {policy}= with a step that starts this one by a "
                    "WorkflowClient"
                )

    def _check_topic(self, option: str, name: object) -> None:
        if not is_topic(name):
            raise self._error(f"{option}={name!r} can't be the name of a topic")

    def _check_id(self, option: str, value: object) -> None:
        if not isinstance(value, str) or not value or len(value) > _LONGEST_ID:
            raise self._error(f"{option}={value!r} is no text of 1 to {_LONGEST_ID} characters")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._error(f"{option}={value!r} can't be written as UTF-8") from None

    def _error(self, said: str) -> ConfigurationError:
        return ConfigurationError(f"binding of {self.workflow.name} to {', '.join(self.topics)}: {said}")


def check_bindings(bindings: Sequence[Binding]) -> None:
    """What takes two bindings to be wrong. Raises ConfigurationError."""
    if not bindings:
        raise ConfigurationError("a KafkaWorker needs at least one Binding: [Binding(workflow, topic=..., group=...)]")
    readers: dict[tuple[str, str, str], Binding] = {}
    definitions: dict[str, Binding] = {}
    for at, binding in enumerate(bindings):
        if not isinstance(binding, Binding):
            raise ConfigurationError(
                f"bindings= holds Bindings: Binding(workflow, topic=..., group=...), not {binding!r:.100}"
            )
        if binding in bindings[:at]:
            raise ConfigurationError(f"binding {binding.name} is given twice")
        for topic in binding.topics:
            other = readers.setdefault((binding.cluster, binding.group, topic), binding)
            if other is not binding:
                raise ConfigurationError(
                    f"group {binding.group} reads topic {topic} for {other.workflow.name} and for "
                    f"{binding.workflow.name}, but a group gets each record once; give the second binding its own group"
                )
        other = definitions.setdefault(binding.workflow.name, binding)
        if other.workflow is not binding.workflow:
            raise ConfigurationError(
                f"two workflows are called {binding.workflow.name}: {_place(other)} and {_place(binding)}; rename one"
            )


def _place(binding: Binding) -> str:
    fn = binding.workflow.fn
    return f"{fn.__module__}.{fn.__qualname__}"


def _topics(workflow: WorkflowDefinition[..., Any], topic: str | None, topics: Sequence[str]) -> tuple[str, ...]:
    what = f"binding of {workflow.name}"
    if isinstance(topics, str):
        raise ConfigurationError(f"{what}: topics={topics!r} is one text; say topic={topics!r} or topics=[...]")
    if (topic is None) == (not topics):
        raise ConfigurationError(f"{what}: give either topic= or topics=")
    names = tuple(topics) if topic is None else (topic,)
    for name in names:
        if not is_topic(name):
            raise ConfigurationError(
                f"{what}: {name!r} can't be the name of a topic (1 to 249 of letters, digits, '.', '_' and '-')"
            )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{what}: a topic is named twice in {', '.join(names)}")
    return names
