"""What every store does with the journals of sources."""

import pytest

from pyrula.workflows.errors import LeaseLost, StaleToken
from pyrula.workflows.store.port import MAX_POSITION, Batch, Claim, Row, SourceStore, Token

SOURCE = bytes(range(16))
NEIGHBOUR = bytes(range(1, 17))


async def append(store: SourceStore, token: Token, *rows: tuple[int, int, bytes], source: bytes = SOURCE) -> None:
    high = max((row[0] for row in rows), default=0)
    assert await store.append_rows([Batch(source, token, rows, high)]) == [None]


async def test_a_first_claim_finds_nothing(store: SourceStore) -> None:
    assert await store.claim_source(SOURCE, 7) == Claim(Token(1, 7))


async def test_a_claim_reads_what_the_former_holder_wrote(store: SourceStore, other: SourceStore) -> None:
    first = await store.claim_source(SOURCE, 1)
    rows = [(5, 0, b"a"), (2_000_000, 0, b"far"), (5, 1, bytes(range(256))), (4, 10, b"ten"), (4, 9, b"nine")]
    assert await store.append_rows([Batch(SOURCE, first.token, rows, 2_000_000, b"log")]) == [None]
    await store.release_source(SOURCE, first.token)
    found = await other.claim_source(SOURCE, 2)
    assert found == Claim(
        token=Token(1, 2),
        high=2_000_000,
        witness=b"log",
        rows=[
            Row(4, 9, b"nine"),
            Row(4, 10, b"ten"),
            Row(5, 0, b"a"),
            Row(5, 1, bytes(range(256))),
            Row(2_000_000, 0, b"far"),
        ],
    )


async def test_sources_do_not_mix(store: SourceStore) -> None:
    one, two = await store.claim_source(SOURCE, 1), await store.claim_source(NEIGHBOUR, 1)
    batches = [Batch(SOURCE, one.token, [(1, 0, b"s")], 1), Batch(NEIGHBOUR, two.token, [(1, 0, b"n")], 1)]
    assert await store.append_rows(batches) == [None, None]
    assert (await store.claim_source(SOURCE, 2)).rows == [Row(1, 0, b"s")]
    assert (await store.claim_source(NEIGHBOUR, 2)).rows == [Row(1, 0, b"n")]


async def test_the_last_row_of_a_place_wins(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await append(store, token, (1, 0, b"a"), (1, 1, b"a"), (1, 2, b"a"), (1, 0, b"b"))
    await append(store, token, (1, 1, b"b"))
    assert (await store.claim_source(SOURCE, 2)).rows == [Row(1, 0, b"b"), Row(1, 1, b"b"), Row(1, 2, b"a")]


async def test_empty_data_deletes_in_the_order_given(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await append(store, token, *[(position, 0, b"a") for position in (1, 2, 3, 5000)])
    await append(store, token, (1, 0, b""), (2, 0, b""), (2, 0, b"again"), (3, 0, b"more"), (3, 0, b""), (9, 9, b""))
    await append(store, token, (5000, 0, b""))
    assert (await store.claim_source(SOURCE, 2)).rows == [Row(2, 0, b"again")]


async def test_batches_of_one_source_take_effect_in_order(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    batches = [Batch(SOURCE, token, [(1, 0, b"%d" % number)], 1) for number in range(50)]
    assert await store.append_rows(batches) == [None] * 50
    assert (await store.claim_source(SOURCE, 2)).rows == [Row(1, 0, b"49")]


async def test_a_batch_of_the_largest_size_and_values_of_a_mebibyte(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    many = [Row(10_000 + number // 3, number % 3, b"v%d" % number) for number in range(2000)]
    large = Row(20_000, 0, b"x" * (1 << 20))
    deletions = [(row.position, row.index, b"") for row in many]
    await append(store, token, *many)
    await append(store, token, large)
    assert (await store.claim_source(SOURCE, 2)).rows == [*many, large]
    await append(store, (await store.claim_source(SOURCE, 3)).token, *deletions)
    assert (await store.claim_source(SOURCE, 4)).rows == [large]


async def test_a_batch_far_over_the_limit_is_still_written(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    wide = [Row(number, 0, b"%d" % number) for number in range(0, 90_000, 3)]
    deep = [Row(100_000, index, b"%d" % index) for index in range(20_000)]
    await append(store, token, *wide, *deep)
    assert (await store.claim_source(SOURCE, 1)).rows == [*wide, *deep]
    await append(store, token, *[(row.position, row.index, b"") for row in deep])
    assert (await store.claim_source(SOURCE, 1)).rows == wide


async def test_high_only_rises_and_the_witness_stays_until_another_comes(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    for high, witness in [(5, b"one"), (9, None), (7, b""), (8, b"two")]:
        assert await store.append_rows([Batch(SOURCE, token, [], high, witness)]) == [None]
        claim = await store.claim_source(SOURCE, 1)
        assert (claim.high, claim.witness) == {5: (5, b"one"), 9: (9, b"one"), 7: (9, b"one"), 8: (9, b"two")}[high]


@pytest.mark.parametrize("high", [-1, MAX_POSITION + 1])
async def test_a_position_the_server_could_not_compare_is_refused_alone(store: SourceStore, high: int) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    batches = [Batch(SOURCE, token, [(0, 0, b"bad")], high), Batch(SOURCE, token, [(1, 0, b"good")], 1)]
    refused, written = await store.append_rows(batches)
    assert isinstance(refused, ValueError)
    assert written is None
    assert (await store.claim_source(SOURCE, 2)).rows == [Row(1, 0, b"good")]


async def test_the_largest_position(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await append(store, token, (MAX_POSITION, 0, b"x"), (MAX_POSITION - 1, 0, b"y"))
    await store.prune_source(SOURCE, token, MAX_POSITION, None)
    claim = await store.claim_source(SOURCE, 2)
    assert (claim.below, claim.high, claim.rows) == (MAX_POSITION, MAX_POSITION, [Row(MAX_POSITION, 0, b"x")])


async def test_no_batches_at_all(store: SourceStore) -> None:
    assert await store.append_rows([]) == []


# Fencing


async def test_a_later_claim_refuses_every_write_of_the_former_holder(store: SourceStore, other: SourceStore) -> None:
    old = (await store.claim_source(SOURCE, 1)).token
    await append(store, old, (1, 0, b"a"), (2, 0, b"a"))
    new = (await other.claim_source(SOURCE, 2)).token
    await append(other, new, (2, 0, b"b"))
    (refused,) = await store.append_rows([Batch(SOURCE, old, [(2, 0, b"late")], 99, b"late")])
    assert isinstance(refused, LeaseLost)
    with pytest.raises(LeaseLost):
        await store.prune_source(SOURCE, old, 2, b"late")
    with pytest.raises(LeaseLost):
        await store.lower_source(SOURCE, old, 0)
    with pytest.raises(LeaseLost):
        await store.lower_source(SOURCE, old, 0, forget=True)
    with pytest.raises(LeaseLost):
        await store.refresh_source(SOURCE, old)
    with pytest.raises(LeaseLost):
        await store.release_source(SOURCE, old)
    claim = await other.claim_source(SOURCE, 3)
    assert claim == Claim(Token(1, 3), high=2, crashes=1, rows=[Row(1, 0, b"a"), Row(2, 0, b"b")])


async def test_a_token_that_was_never_given_is_refused(store: SourceStore) -> None:
    assert [type(a) for a in await store.append_rows([Batch(SOURCE, Token(1, 1), [(1, 0, b"x")], 1)])] == [LeaseLost]
    with pytest.raises(LeaseLost):
        await store.prune_source(SOURCE, Token(1, 1), 5, None)
    assert await store.claim_source(SOURCE, 1) == Claim(Token(1, 1))


async def test_tokens_are_compared_for_equality_not_for_order(store: SourceStore) -> None:
    await store.claim_source(SOURCE, 5)
    for token in (Token(1, 6), Token(2, 5), Token(2, 9)):
        assert [type(answer) for answer in await store.append_rows([Batch(SOURCE, token, [], 1)])] == [LeaseLost]


async def test_a_refused_source_does_not_hold_up_the_others_of_a_flush(store: SourceStore, other: SourceStore) -> None:
    old, kept = (await store.claim_source(SOURCE, 1)).token, (await store.claim_source(NEIGHBOUR, 1)).token
    await other.claim_source(SOURCE, 2)
    answers = await store.append_rows(
        [
            Batch(SOURCE, old, [(1, 0, b"x")], 1),
            Batch(NEIGHBOUR, kept, [(1, 0, b"y")], 1),
            Batch(SOURCE, old, [(2, 0, b"x")], 2),
        ]
    )
    assert [type(answer) for answer in answers] == [LeaseLost, type(None), LeaseLost]
    assert (await store.claim_source(NEIGHBOUR, 1)).rows == [Row(1, 0, b"y")]


async def test_a_lower_generation_is_told_the_stored_token(store: SourceStore, other: SourceStore) -> None:
    await store.claim_source(SOURCE, 5)
    with pytest.raises(StaleToken) as caught:
        await other.claim_source(SOURCE, 4)
    assert caught.value.stored == Token(1, 5)
    await append(store, Token(1, 5), (1, 0, b"still held"))


async def test_a_group_made_again_claims_by_naming_the_token_it_replaces(
    store: SourceStore, other: SourceStore
) -> None:
    old = (await store.claim_source(SOURCE, 50)).token
    await append(store, old, (1, 0, b"a"))
    new = await other.claim_source(SOURCE, 3, replaces=old)
    assert new == Claim(Token(2, 3), high=1, crashes=1, crashed=True, rows=[Row(1, 0, b"a")])
    assert [type(answer) for answer in await store.append_rows([Batch(SOURCE, old, [], 1)])] == [LeaseLost]
    # from here the second incarnation goes its way: generations rise, lower ones are stale
    assert (await store.claim_source(SOURCE, 4)).token == Token(2, 4)
    with pytest.raises(StaleToken):
        await other.claim_source(SOURCE, 3)


async def test_naming_a_token_that_is_not_stored_any_more_does_not_help(store: SourceStore, other: SourceStore) -> None:
    old = (await store.claim_source(SOURCE, 50)).token
    await store.claim_source(SOURCE, 51)
    with pytest.raises(StaleToken) as caught:
        await other.claim_source(SOURCE, 3, replaces=old)
    assert caught.value.stored == Token(1, 51)


async def test_one_generation_is_not_held_by_two_processes(store: SourceStore, other: SourceStore) -> None:
    """A group made again may come by the very number that is stored, and a static member restarts without a new one:
    one token in two hands would fence nobody."""
    held = (await store.claim_source(SOURCE, 5)).token
    with pytest.raises(StaleToken):
        await other.claim_source(SOURCE, 5)
    await store.release_source(SOURCE, held)
    with pytest.raises(StaleToken):
        await other.claim_source(SOURCE, 5)
    assert (await other.claim_source(SOURCE, 5, replaces=held)).token == Token(2, 5)
    assert [type(answer) for answer in await store.append_rows([Batch(SOURCE, held, [], 1)])] == [LeaseLost]


async def test_the_same_process_may_claim_again_in_its_generation(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 5)).token
    await append(store, token, (1, 0, b"a"))
    assert await store.claim_source(SOURCE, 5) == Claim(token, high=1, rows=[Row(1, 0, b"a")])
    await append(store, token, (1, 1, b"b"))


# Pruning


async def test_prune_drops_what_is_under_below(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    rows = [Row(position, index, b"x") for position in range(0, 4000, 100) for index in range(2)]
    await append(store, token, *rows)
    for below in (1, 100, 950, 1024, 2500, 3900):
        await store.prune_source(SOURCE, token, below, None)
        claim = await store.claim_source(SOURCE, 1)
        assert claim.below == below
        assert claim.rows == [row for row in rows if row.position >= below]


async def test_below_never_moves_back_by_pruning(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await append(store, token, (5, 0, b"x"), (15, 0, b"x"))
    await store.prune_source(SOURCE, token, 10, b"new")
    await store.prune_source(SOURCE, token, 3, b"old")
    claim = await store.claim_source(SOURCE, 1)
    assert (claim.below, claim.witness, claim.rows) == (10, b"new", [Row(15, 0, b"x")])


async def test_prune_keeps_the_witness_when_given_none(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await store.prune_source(SOURCE, token, 10, b"log")
    await store.prune_source(SOURCE, token, 20, None)
    assert (await store.claim_source(SOURCE, 1)).witness == b"log"


async def test_a_journal_goes_on_after_everything_was_pruned(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    for start in range(0, 50_000, 5000):
        await append(store, token, *[(start + number, 0, b"x") for number in range(10)])
        await store.prune_source(SOURCE, token, start + 10, None)
    assert await store.claim_source(SOURCE, 1) == Claim(token, below=45_010, high=45_009)


async def test_lower_moves_below_back_and_keeps_the_rows(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await append(store, token, (5, 0, b"x"), (2000, 0, b"y"))
    await store.prune_source(SOURCE, token, 1000, None)
    await store.lower_source(SOURCE, token, 4000)
    assert (await store.claim_source(SOURCE, 1)).below == 1000
    await store.lower_source(SOURCE, token, 3)
    await append(store, token, (3, 0, b"z"))
    claim = await store.claim_source(SOURCE, 1)
    assert (claim.below, claim.rows) == (3, [Row(3, 0, b"z"), Row(2000, 0, b"y")])
    # and forward again, through positions it has passed before
    for below in (4, 10, 300, 1000, 2000):
        await append(store, token, (below - 1, 0, b"again"))
        await store.prune_source(SOURCE, token, below, None)
        assert (await store.claim_source(SOURCE, 1)).rows == [Row(2000, 0, b"y")]


async def test_lower_before_any_prune_changes_nothing(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await store.lower_source(SOURCE, token, 5)
    assert (await store.claim_source(SOURCE, 1)).below is None


async def test_another_log_starts_from_nothing(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    rows = [(position, 0, b"old") for position in (500, 1500, 90_000)]
    assert await store.append_rows([Batch(SOURCE, token, rows, 90_000, b"old log")]) == [None]
    await store.prune_source(SOURCE, token, 1000, None)
    await store.lower_source(SOURCE, token, 7, forget=True)
    assert await store.claim_source(SOURCE, 1) == Claim(token, below=7)
    await append(store, token, (1500, 1, b"new"))
    assert (await store.claim_source(SOURCE, 1)).rows == [Row(1500, 1, b"new")]


async def test_another_log_may_start_further_on(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await store.lower_source(SOURCE, token, 700, forget=True)
    assert (await store.claim_source(SOURCE, 1)).below == 700


# Crashes


async def told(store: SourceStore, generation: int) -> tuple[int, bool]:
    claim = await store.claim_source(SOURCE, generation)
    return claim.crashes, claim.crashed


async def test_a_claim_without_a_release_before_it_counts_a_crash(store: SourceStore, other: SourceStore) -> None:
    assert (await store.claim_source(SOURCE, 1)).crashes == 0
    assert await told(other, 2) == (1, True)
    assert await told(store, 3) == (2, True)
    # a process that claims what it holds has not crashed
    assert await told(store, 4) == (2, False)


async def test_a_release_is_no_crash_and_clears_the_count(store: SourceStore, other: SourceStore) -> None:
    await store.claim_source(SOURCE, 1)
    token = (await other.claim_source(SOURCE, 2)).token
    await other.release_source(SOURCE, token)
    assert await told(store, 3) == (0, False)


async def test_only_a_prune_that_moves_on_clears_the_count(store: SourceStore, other: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await store.prune_source(SOURCE, token, 10, None)
    token = (await other.claim_source(SOURCE, 2)).token
    await other.prune_source(SOURCE, token, 10, None)
    token = (await store.claim_source(SOURCE, 3)).token
    assert (await store.claim_source(SOURCE, 3)).crashes == 2
    await store.prune_source(SOURCE, token, 11, None)
    assert (await store.claim_source(SOURCE, 3)).crashes == 0


# The store itself


async def test_all_handles_tell_one_instance(store: SourceStore, other: SourceStore) -> None:
    assert store.instance_id
    assert store.instance_id == other.instance_id


async def test_all_handles_tell_one_shard(store: SourceStore, other: SourceStore) -> None:
    assert store.shard_of(SOURCE) == other.shard_of(SOURCE) == int.from_bytes(SOURCE) % 16


async def test_opening_twice_and_closing_twice(store: SourceStore) -> None:
    await store.open()
    token = (await store.claim_source(SOURCE, 1)).token
    await store.close()
    await store.close()
    await append(store, token, (1, 0, b"still there"))


async def test_what_is_not_there_can_be_released_and_refreshed_by_its_holder_only(store: SourceStore) -> None:
    token = (await store.claim_source(SOURCE, 1)).token
    await store.refresh_source(SOURCE, token)
    await store.release_source(SOURCE, token)
    with pytest.raises(LeaseLost):
        await store.refresh_source(NEIGHBOUR, token)
