from collections.abc import Sequence

from aiokafka import TopicPartition

from pyrula.kafka.binding import Binding
from pyrula.kafka.buffer import Bounds
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.partition import Partition
from pyrula.kafka.standing import Standing
from pyrula.workflows import Context, MemoryStore, workflow
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.store.port import MAX_POSITION, Batch, Row, Token


@workflow(name="partition_rows")
async def body(ctx: Context) -> None: ...


async def test_a_partition_that_only_replayed_can_be_let_go() -> None:
    """Its journal came from the store and nothing was added to it: waiting for its rows ends, and writes none."""
    written: list[Batch] = []

    async def write(batches: Sequence[Batch]) -> list[Exception | None]:
        written.extend(batches)
        return [None] * len(batches)

    commits = GroupCommit(write)
    partition = Partition(
        TopicPartition("orders", 0),
        Binding(body, topic="orders", group="billing"),
        shard=0,
        token=Token(1, 1),
        source=bytes(16),
        tracker=OffsetTracker(5),
        rows=[Row(7, 0, b"[]")],
        known=None,
        commits=commits,
        bounds=Bounds(10, 10_000, 10, 10_000),
        fetch=lambda on: None,
        fenced=lambda fenced: None,
        standing=Standing(),
        triggers=MemoryStore(),
    )
    await partition.flushed()
    assert [list(batch.rows) for batch in written] == [[]]
    assert all(0 <= batch.high <= MAX_POSITION for batch in written)
    partition.close()
    await commits.close()
