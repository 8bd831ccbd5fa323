"""What these tests submit. The bodies never run: the holder plays them."""

from pydantic import BaseModel

from pyrula.workflows import workflow


class Receipt(BaseModel):
    id: str
    cents: int


@workflow(name="client_cart")
async def cart(ctx: object, size: int = 3) -> list[str]:
    return []


@workflow(name="client_pay")
async def pay(ctx: object, cents: int) -> Receipt:
    return Receipt(id="", cents=cents)
