"""Each fire time starts one run, however many workers there are."""

from pyrula.workflows import Context, Every, workflow
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
    await wait_until_async(lambda: len(fired) >= 2, description="two fires", timeout=20)
    await client.schedules.pause("tick")
    assert len(set(fired)) == len(fired)
    (info,) = await client.schedules.list()
    assert info.paused
    assert info.last_run is not None
    await client.schedules.delete("tick")
