"""A backfill without a worker beside it: run in this process until it is over, and nothing else."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from pyrula.kafka.address_book import AddressBook
from pyrula.kafka.backfill.definition import Backfill
from pyrula.kafka.backfill.household import Household
from pyrula.kafka.backfill.service import BackfillService
from pyrula.kafka.binding import Binding
from pyrula.kafka.events import Observer
from pyrula.kafka.options import KafkaOptions
from pyrula.kafka.outputs import Outputs
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.solitude import Solitude
from pyrula.kafka.stores import WorkerStore
from pyrula.workflows.client.backfill_report import BackfillReport
from pyrula.workflows.clock import Clock
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.loops import give_back, prepare

__all__ = ["run_alone"]


async def run_alone(
    backfill: Backfill,
    bindings: Sequence[Binding],
    *,
    store: WorkerStore,
    clusters: Mapping[str, KafkaOptions],
    clock: Clock,
    observer: Observer | None,
    on_progress: Callable[[BackfillReport], None] | None,
) -> BackfillReport:
    """Joins no group; other workers may share it. Cancelled, it lets go of its partitions as a worker does."""
    loop = asyncio.get_running_loop()
    outputs: dict[str, Outputs] = {}
    commits = GroupCommit(store.append_rows)
    pools: list[Replayers] = []
    book = AddressBook(store, clock)

    def wake() -> None:
        for pool in pools:
            pool.wake()

    solitude = Solitude(lambda: sum(pool.bodies for pool in pools), wake)

    def outputs_of(cluster: str) -> Outputs:
        if cluster not in outputs:
            outputs[cluster] = Outputs(clusters[cluster])
        return outputs[cluster]

    service = BackfillService(
        lambda: bindings,
        store=store,
        commits=commits,
        clusters=clusters,
        outputs_of=outputs_of,
        household=Household(book, solitude, pools),
        clock=clock,
        observer=observer,
        only_given=True,
    )
    prepare(loop)
    looking = None
    listening = False
    try:
        await store.open()
        await book.start()
        listening = True
        await service.start(backfill)
        looking = loop.create_task(service.run(), name="look for backfills")
        return await service.finished(backfill.id, on_progress)
    finally:
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])
        await service.stop()
        if listening:
            await book.stop()
        await commits.close()
        for one in outputs.values():
            await one.stop()
        await store.close()
        give_back(loop)
