"""Each fire time starts one run, however many workers there are."""

from typing import Any

import pytest

from pyrula.workflows import ConfigurationError, Context, Cron, Every, MemoryStore, WorkflowWorker, workflow
from tests.conformance.worker.conftest import Workers
from tests.services.waiting import wait_until_async

fired: list[str] = []


@workflow(name="worker_tick")
async def tick(ctx: Context) -> None:
    fired.append(ctx.run.metadata["fire_time"])


async def test_a_fire_time_starts_one_run_with_several_workers(workers: Workers) -> None:
    fired.clear()
    for _ in range(3):
        workers.start(tick, claim_poll_interval=0.02)
    client = workers.client()
    await client.schedules.create("tick", tick, trigger=Every(1))
    await wait_until_async(lambda: len(fired) >= 2, description="two fires")
    await client.schedules.pause("tick")
    assert len(set(fired)) == len(fired)
    (info,) = await client.schedules.list()
    assert info.paused
    assert info.last_run is not None
    await client.schedules.delete("tick")


async def test_a_workflow_that_declares_its_schedule_is_started_by_it(workers: Workers) -> None:
    def declared(schedule: Any) -> Any:
        @workflow(name="worker_declared", schedule=schedule)
        async def body(ctx: Context) -> None:
            fired.append(ctx.run.metadata["fire_time"])

        return body

    fired.clear()
    client = workers.client()
    first = workers.start(declared(Every(1)), claim_poll_interval=0.02)
    await wait_until_async(lambda: fired, description="a fire")
    await workers.stop(first)
    second = workers.start(declared(Cron("0 0 1 1 *")), claim_poll_interval=0.02)

    async def trigger() -> Any:
        return [info.trigger for info in await client.schedules.list()]

    async def changed() -> bool:
        return bool(await trigger() == [Cron("0 0 1 1 *")])

    await wait_until_async(changed, description="the other trigger")
    await workers.stop(second)
    workers.start(declared(None), claim_poll_interval=0.02)

    async def gone() -> bool:
        return not await trigger()

    await wait_until_async(gone, description="the schedule to be dropped")


async def test_a_declared_schedule_needs_no_params() -> None:
    @workflow(name="worker_needy", schedule=Every(1))
    async def needy(ctx: Context, cents: int) -> None:
        return None

    # when it is made, and not when its time has come
    with pytest.raises(ConfigurationError, match=r"worker_needy.*cents.*without params"):
        WorkflowWorker([needy], store=MemoryStore())
