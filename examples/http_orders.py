"""Orders over HTTP: a workflow that charges, and waits for somebody to say that the parcel is packed.

    cd examples && pyrula serve http_orders:worker

Then, in another terminal, with the run's id from the first answer:

    curl localhost:8321/order/runs -H 'Content-Type: application/json' \\
         -d '{"params": {"order": {"id": "o-7", "amount_cents": 500}}}'
    curl -N localhost:8321/order/stream/RUN_ID
    curl localhost:8321/order/runs/RUN_ID/signal -H 'Content-Type: application/json' \\
         -d '{"signal": "packed", "payload": "shelf 3"}'
    curl localhost:8321/order/runs/RUN_ID/result

The store is in memory, so that this needs no server: with ValkeyStore, runs survive a restart.
"""

from pydantic import BaseModel

from pyrula.workflows import Context, MemoryStore, WorkflowWorker, step, workflow


class Order(BaseModel):
    id: str
    amount_cents: int


class Receipt(BaseModel):
    order_id: str
    charge_id: str
    packed_at: str


@step
async def charge(order: Order) -> str:
    return f"charge-of-{order.id}"  # here you would call your payment provider


@workflow(name="order")
async def order(ctx: Context, order: Order) -> Receipt:
    charge_id = await ctx.step(charge, order)
    place = await ctx.wait_for_signal("packed")
    return Receipt(order_id=order.id, charge_id=charge_id, packed_at=str(place))


worker = WorkflowWorker(workflows=[order], store=MemoryStore())
