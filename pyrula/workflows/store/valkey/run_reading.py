"""Reading journals of submitted runs, in pages that hold up neither the server nor the loop."""

from pyrula.workflows.store.valkey.run_link import RunLink

Rows = tuple[tuple[int, bytes], ...]


async def read_rows(runs: RunLink, journal: bytes) -> Rows:
    """By index. Nobody writes meanwhile, or what is read is from before and after."""
    rows: dict[int, bytes] = {}
    cursor = b"0"
    while True:
        cursor, flat = await runs.funnel.ask(b"HSCAN", journal, cursor, b"COUNT", b"1000")
        rows.update(zip(map(int, flat[::2]), flat[1::2], strict=True))
        if cursor == b"0":
            return tuple(sorted(rows.items()))
