"""Histories in files: what is written, and that it comes back."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.workflows import Context, NonDeterminismError, SerializationError, workflow
from pyrula.workflows.codec import dumps
from pyrula.workflows.replay.journal import Entry, encode_row
from pyrula.workflows.store.history import History
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.testing import WorkflowTestEnv, replay

PINNED = """\
{
"format": ["pyrula.history",1],
"run_id": "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC~2",
"name": "pinned",
"version": "1",
"status": "sleeping",
"attempt": 2,
"owner": "ada",
"metadata": {"from":"web"},
"params": {"cents":5},
"journal": [
  [0,[1,"value","1","step","charge",1,null,"ch_5",null]],
  [2,[1,"deadline","2","sleep","",null,null,1735689600.5,null]]
]
}
"""

KEPT = History(
    run_id="00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC~2",
    name="pinned",
    version="1",
    status=RunStatus.SLEEPING,
    params=b'{"cents":5}',
    rows=(
        (0, b'[1,"value","1","step","charge",1,null,"ch_5",null]'),
        (2, b'[1,"deadline","2","sleep","",null,null,1735689600.5,null]'),
    ),
    attempt=2,
    owner="ada",
    metadata=b'{"from":"web"}',
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n\"\\é€", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def test_the_file_is_this() -> None:
    assert KEPT.to_json() == PINNED
    assert History.from_json(PINNED) == KEPT


@given(params=st.dictionaries(st.text("ab", min_size=1), JSON), values=st.lists(JSON, max_size=4), metadata=JSON)
def test_what_is_written_comes_back_byte_for_byte(params: dict[str, Any], values: list[Any], metadata: Any) -> None:
    rows = [Entry("value", str(n), "step", "s", n, None, dumps(value)) for n, value in enumerate(values, start=1)]
    history = KEPT._replace(
        params=dumps(params),
        metadata=dumps(metadata),
        rows=tuple((index * 2, encode_row(row, None)) for index, row in enumerate(rows)),
        version=None,
    )
    assert History.from_json(history.to_json()) == history


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "x.json is no JSON"),
        ("[]", "x.json is no history of a run; `pyrula history` and History.dump write one"),
        ('{"format": ["other", 1]}', "is no history of a run"),
        (PINNED.replace('history",1]', 'history",2]'), r"has version 2 of its format, this release .* version 1"),
        (PINNED.replace('"attempt": 2,\n', ""), "is damaged: KeyError: 'attempt'"),
        (PINNED.replace('"sleeping"', '"asleep"'), "is damaged: ValueError: 'asleep'"),
        (PINNED.replace("[0,[1,", "[0,[9,"), "a journal row has format 9"),
        (PINNED.replace('[0,[1,"value","1",', "[0,[1,"), "a journal row is damaged"),
    ],
)
def test_what_is_no_history_is_refused(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text(text)
    with pytest.raises(SerializationError, match=said):
        History.load("x.json")


@dataclass
class Price:
    amount: Decimal
    at: datetime


async def quote(sku: str) -> Price:
    return Price(Decimal("1.10"), datetime(2025, 1, 1, 12).astimezone())


async def test_a_run_is_replayed_from_its_file(tmp_path: Path) -> None:
    @workflow(name="history_orders")
    async def orders(ctx: Context, sku: str) -> str:
        price = await ctx.step(quote, sku)
        await ctx.wait_for_signal("paid", timeout=60)
        return f"{price.amount} {await ctx.now():%Y}"

    env = WorkflowTestEnv()
    run = await env.start(orders, {"sku": "é\n"})
    await run.signal("paid", {"by": "ada"})
    assert await run.result() == "1.10 2025"
    path = tmp_path / "orders.json"
    (await run.history()).dump(path)
    history = History.load(path)
    assert history == await run.history()
    await replay(orders, history)

    @workflow(name="history_orders")
    async def changed(ctx: Context, sku: str) -> str:
        await ctx.wait_for_signal("paid", timeout=60)
        return str((await ctx.step(quote, sku)).amount)

    with pytest.raises(NonDeterminismError, match=r"recorded:  step `quote`"):
        await replay(changed, history)
