"""What is stored of the Kafka side is a public format: these texts and bytes are those of docs/formats.md."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyrula.kafka.commit_map import CommitMap, decode, encode
from pyrula.kafka.dead_letter import decode_journal, letter
from pyrula.kafka.record import Witness, fingerprint, parse_run_id, record_identity, run_id

TEXT = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")

PRINT = "18bcfe56800.0862575d.6b643b84"
RAW: Any = SimpleNamespace(timestamp=1_700_000_000_000, key=b"k", value=b"v")


def test_the_fingerprint_is_the_documented_one() -> None:
    assert fingerprint(RAW) == PRINT
    assert f"`{PRINT}`" in TEXT
    assert fingerprint(SimpleNamespace(timestamp=-1, key=None, value=b"")) == "-1.~.00000000"
    assert fingerprint(SimpleNamespace(timestamp=None, key=b"", value=None)) == "-1.00000000.~"


@pytest.mark.parametrize(
    ("witness", "data"),
    [
        (Witness(7, PRINT), "0000000000000007 00 0000018bcfe56800 0862575d 6b643b84"),
        (Witness(1 << 40, "-1.~.00000000"), "0000010000000000 01 ffffffffffffffff 00000000 00000000"),
        (Witness(0, "0.00000001.~"), "0000000000000000 02 0000000000000000 00000001 00000000"),
    ],
)
def test_a_witness_has_the_documented_bytes(witness: Witness, data: str) -> None:
    assert bytes(witness) == bytes.fromhex(data)
    assert Witness.from_bytes(bytes.fromhex(data)) == witness


def test_run_ids_are_the_documented_ones() -> None:
    assert run_id(3, "default", "g", "orders", 1, 7) == "03-kzlos5o63er-1-7"
    assert run_id(3, "default", "g", "orders", 1, 7, incarnation=2) == "03-kzlos5o63er-1-7.2"
    for text in ("03-kzlos5o63er-1-7", "03-kzlos5o63er-1-7.2"):
        assert f"`{text}`" in TEXT
        assert parse_run_id(text).digest == "zlos5o63er"
    assert run_id(255, "", "", "", 0, 0) == "ff-kuj7s57glcb-0-0"


def test_a_partition_is_the_documented_source() -> None:
    assert record_identity("default", "g", "orders", 1).hex() == "bf6a487068f44fc6e9db87070043d0a5"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (CommitMap(0, (), None, b""), "pyrula1:GOGBwAAAL3iLTk6X4Dk"),
        (
            CommitMap(300, ((302, 310), (1000, 1001)), Witness(1000, PRINT), b""),
            "pyrula1:4dinegWsAi94i05Ol-A56AeAoKv--WIIYldda2Q7hAIIsgUB",
        ),
        (
            CommitMap(300, tuple((o, o + 1) for o in range(301, 331, 2)), Witness(400, "-1.~.~"), b""),
            "pyrula1:UIayKR6sAi94i05Ol-A5kAMBAaqqqqg",
        ),
        (
            CommitMap(300, ((302, 310),), Witness(1000, PRINT), b"", Witness(299, "0.~.00000001")),
            "pyrula1:c6ZAgWWsAi94i05Ol-A56AeAoKv--WIIYldda2Q7hKsCAAAAAAECCA",
        ),
    ],
)
def test_commit_metadata_of_this_version_is_written_and_read_for_ever(found: CommitMap, text: str) -> None:
    assert encode(found.committed, found.ranges, found.witness, "an instance", anchor=found.anchor) == text
    read = decode(text, found.committed, 1 << 62)
    assert isinstance(read, CommitMap)
    assert replace(read, store=b"") == found
    assert read.written_with("an instance")
    assert "pyrula1:<base64>" in TEXT


def test_a_dead_letter_has_the_documented_headers() -> None:
    own = (("trace-id", b"7"), ("pyrula-dlq-reason", b"of an earlier round"))
    raw: Any = SimpleNamespace(offset=7, timestamp=1_700_000_000_000, key=b"k", value=b"v", headers=own)
    rows = [(0, b"[1]")]
    copy = letter(
        "orders.g.dlq", raw, ("orders", 1), group="g", workflow="w", run_id="r", reason="failed", message="m",
        attempts=2, trace="t", rows=rows,
    )  # fmt: skip
    assert copy.headers[0] == ("trace-id", b"7")
    told = dict(copy.headers[1:])
    assert set(told) == set(re.findall(r"^\| `(pyrula-dlq-[a-z-]+)` \|", TEXT, re.MULTILINE))
    assert told["pyrula-dlq-reason"] == b"failed"
    assert told["pyrula-dlq-journal"].startswith(b"1:")
    assert decode_journal(told["pyrula-dlq-journal"]) == rows
