"""Charge orders from a topic, each exactly once, and send a receipt.

Try it without any server, on sample orders of which some are broken:

    pyrula dev examples/orders.py --count 10000

On real servers, with a worker that can be killed at any moment:

    export PYRULA_KAFKA=localhost:9092 PYRULA_VALKEY=valkey://localhost:6379
    pyrula worker examples.orders:worker
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, PositiveInt

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, Retry, ValkeyStore, step, workflow


class Order(BaseModel):
    id: str
    customer: str
    amount_cents: PositiveInt


class Receipt(BaseModel):
    order_id: str
    charge_id: str
    amount_cents: int


class GatewayBusy(Exception):
    """The payment gateway asks to come back later."""


# How often the (pretended) gateway was asked for an order.
_asked: Counter[str] = Counter()


@step(retry=Retry(max_attempts=5, initial=0.05), timeout=10)
async def charge(order: Order) -> str:
    """The effect that must not happen twice. Its result is journaled: a redelivered record never charges again."""
    _asked[order.id] += 1
    if order.id.endswith(("07", "57")) and _asked[order.id] <= 2:
        raise GatewayBusy(f"order {order.id}, attempt {_asked[order.id]}")
    await asyncio.sleep(0)
    return f"charge-of-{order.id}"


@workflow(name="charge_order")
async def charge_order(ctx: Context, order: Order) -> Receipt:
    charge_id = await ctx.step(charge, order)
    receipt = Receipt(order_id=order.id, charge_id=charge_id, amount_cents=order.amount_cents)
    await ctx.send("receipts", receipt, key=order.id)
    return receipt


bindings = [Binding(charge_order, topic="orders", group="billing", max_concurrency=64, ordering="key")]


def sample_records(count: int) -> Iterator[dict[str, Any]]:
    """Orders for `pyrula dev`: in every 500 one isn't JSON, one has the wrong shape and one has no value."""
    for number in range(count):
        customer = f"customer-{number % 997}"
        order: Any = {"id": f"order-{number:05}", "customer": customer, "amount_cents": 100 + number * 37 % 9900}
        if number % 500 == 3:
            order = b"order 4711, please"
        elif number % 500 == 203:
            order = {"id": f"order-{number:05}", "customer": customer, "amount_cents": -1}
        elif number % 500 == 403:
            order = None
        yield {"key": customer, "value": order, "headers": {"source": "sample"}}


def worker() -> KafkaWorker:
    """For `pyrula worker`."""
    return KafkaWorker(
        bindings=bindings,
        store=ValkeyStore(os.environ.get("PYRULA_VALKEY", "valkey://localhost:6379")),
        kafka=KafkaOptions(bootstrap_servers=os.environ.get("PYRULA_KAFKA", "localhost:9092")),
    )
