"""A source whose runs can be reached, and few words for what its holder does."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from pyrula.kafka.record import record_identity, run_id, stream_digest
from pyrula.workflows.store.messages import Message, Unread
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.record_changes import RecordChange, RecordEnd, RecordId
from pyrula.workflows.store.records import RecordState, Registration

SOURCE = record_identity("default", "billing", "orders", 3)
ADDRESS = f"{stream_digest('default', 'billing', 'orders')}-3"
FIRST = Token(1, 1)


@dataclass
class Rig:
    """One source in a store, and the store in the hands of another process."""

    store: Any
    other: Any
    token: Token = FIRST
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    holder: str = "h1"

    @property
    def registration(self) -> Registration:
        return Registration(SOURCE, "k" + ADDRESS, "cart", "1", "w1", b'{"topic":"orders"}', 0)

    async def claim(self, store: Any = None, generation: int = 1, **changes: Any) -> dict[int, int]:
        store = store or self.store
        self.token = (await store.claim_source(SOURCE, generation)).token
        values = {name: getattr(self.registration, name) for name in Registration.__slots__} | changes
        board: dict[int, int] = await store.register_source(self.token, Registration(**values))
        return board

    def id(self, position: int) -> RecordId:
        shard = self.store.shard_of(SOURCE)
        found = RecordId.parse(run_id(shard, "default", "billing", "orders", 3, position, self.token.incarnation))
        assert found is not None
        return found

    async def signal(self, position: int, name: str = "go", **fields: Any) -> Any:
        message = Message("signal", fields.pop("id", f"s{next(self.numbers)}"), name, fields.pop("payload", b"1"))
        return await self.other.deliver(str(self.id(position)), message)

    async def change(self, position: int, number: int, *, token: Token | None = None, **fields: Any) -> Any:
        change = RecordChange(self.id(position), fields.pop("holder", self.holder), number, **fields)
        (answer,) = await self.store.append_rows([Batch(SOURCE, token or self.token, (), position, None, change)])
        return answer

    async def end(self, position: int, number: int, status: Any = "completed", **fields: Any) -> Any:
        end = RecordEnd(
            status,
            fields.pop("value", b"null"),
            fields.pop("error", None),
            fields.pop("seconds", 3600),
            fields.pop("params", b""),
            fields.pop("rows", ()),
        )
        return await self.change(position, number, end=end, **fields)

    async def state(self, position: int, seen: int = 0) -> RecordState:
        found: RecordState | None = await self.store.read_record(self.id(position), seen)
        assert found is not None
        return found

    async def unread(self, position: int) -> list[Unread]:
        return list((await self.state(position)).messages)

    async def rows(self, store: Any = None, generation: int = 9) -> list[tuple[int, int, bytes]]:
        claim = await (store or self.other).claim_source(SOURCE, generation)
        return [tuple(row) for row in claim.rows]
