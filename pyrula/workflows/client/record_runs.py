"""Finding the runs of a topic's records, and what is wanted of a dead letter."""

from collections.abc import Sequence
from typing import Any, Protocol

from pyrula.workflows.client.calls import SendingStore
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.refusals import RunNotFoundError

__all__ = ["BoundToTopics", "RunLetter", "record_run_id"]


class BoundToTopics(Protocol):
    """A binding of a workflow to topics (`pyrula.kafka.Binding`)."""

    @property
    def workflow(self) -> WorkflowDefinition[..., Any]: ...

    @property
    def group(self) -> str: ...

    @property
    def topics(self) -> tuple[str, ...]: ...

    def place_of(self, partition: int, topic: str | None) -> tuple[bytes, str]:
        """The source that a partition is in a store, and the address of its runs. `topic` None: its only one."""


class RunLetter(Protocol):
    """A dead letter (`pyrula.kafka.DeadLetter`): whose it is, and what its run is executed from."""

    @property
    def run_id(self) -> str: ...

    @property
    def workflow(self) -> str: ...

    @property
    def params(self) -> bytes: ...

    @property
    def rows(self) -> Sequence[tuple[int, bytes]]: ...


async def record_run_id(
    store: SendingStore, bound: BoundToTopics, partition: int, offset: int, topic: str | None
) -> str:
    """The id of the run of a record. RunNotFoundError if no worker has had its partition yet."""
    for number, what in ((partition, "partition"), (offset, "offset")):
        if type(number) is not int or number < 0:
            raise ValueError(f"a record's {what} is a number from 0 on, not {number!r}")
    source, address = bound.place_of(partition, topic)
    shard = store.shard_of(source)
    incarnation = await store.incarnation(shard, address)
    run_id = str(RecordId(shard, address, offset, incarnation or 1))
    if incarnation is None:
        raise RunNotFoundError(
            run_id,
            f"no worker of group {bound.group!r} has had partition {topic or bound.topics[0]}[{partition}] yet, as far "
            "as this store knows: start one with this binding and this store, or ask again when it runs",
        )
    return run_id
