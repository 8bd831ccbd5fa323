"""Definitions whose annotations are texts, and name what comes later or exists for type checkers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pyrula.workflows.definition import StepDefinition, WorkflowDefinition, step, workflow

if TYPE_CHECKING:
    from decimal import Context as Typing


@workflow(name="later")
async def later(ctx: Any, order: Order, note: str | None = None) -> Receipt:
    return Receipt(id=order.id)


@step
async def receipt(order: Order) -> Receipt:
    return Receipt(id=order.id)


def plain_receipt(order: Typing) -> Receipt:
    """A parameter that can't be resolved doesn't matter to a step."""
    raise NotImplementedError


@workflow(name="never_resolved")
async def never_resolved(ctx: Any, order: Typing) -> None:
    pass


def never_returned() -> Typing:
    raise NotImplementedError


class Order(BaseModel):
    id: str


class Receipt(BaseModel):
    id: str


class Till:
    async def charge(self, order: Order) -> Receipt:
        return Receipt(id=order.id)


def local_definitions() -> tuple[WorkflowDefinition[Any, Any], StepDefinition[Any, Any]]:
    class Local(BaseModel):
        id: str

    @workflow(name="local_types")
    async def body(ctx: Any, item: Local) -> list[Local]:
        return [item]

    @step(timeout=1)
    async def work() -> Local:
        return Local(id="a")

    return body, work
