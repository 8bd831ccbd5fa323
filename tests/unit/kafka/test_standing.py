"""Until when a member may start something without asking."""

import asyncio

from pyrula.kafka.standing import Standing


def test_an_answer_counts_from_when_its_question_was_sent() -> None:
    standing = Standing(8.0)
    assert standing.until == float("inf")
    standing.proved(100.0)
    assert standing.until == 108.0
    standing.proved(103.0)
    assert standing.until == 111.0


def test_callbacks_are_called_once_and_may_wait_again() -> None:
    standing = Standing(8.0)
    calls: list[str] = []

    def again() -> None:
        calls.append("again")
        standing.on_change(lambda: calls.append("later"))

    standing.on_change(again)
    standing.wake()
    assert calls == ["again"]
    standing.proved(1.0)
    assert calls == ["again", "later"]
    standing.wake()
    assert calls == ["again", "later"]


async def test_whoever_waits_is_woken_also_if_another_was_cancelled() -> None:
    standing = Standing(8.0)
    first, second = (asyncio.ensure_future(standing.changed()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    standing.proved(1.0)
    await second
