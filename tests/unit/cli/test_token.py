from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyrula.cli import main
from pyrula.http import Principal, Role, Tokens


def test_a_token_is_printed_once_and_its_table_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["token", "--owner", 'ac"me\\ é\x7f', "--name", "ci"]) == 0
    token, _, table = capsys.readouterr().out.partition("\n\n")
    assert token.startswith("pyrula_")
    assert token not in table
    (tmp_path / "tokens.toml").write_text(table, encoding="utf-8")
    assert Tokens.load(tmp_path / "tokens.toml").find(token) == Principal('ac"me\\ é\x7f', Role.OPERATE, "ci")


def test_a_file_gets_one_table_after_another_and_only_hashes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "tokens.toml"
    assert main(["token", "--all-owners", "--role", "admin", "--expires", "1h", "--file", str(path)]) == 0
    assert main(["token", "--owner", "acme", "--role", "read", "--file", str(path)]) == 0
    admin, reader = capsys.readouterr().out.split()
    text = path.read_text()
    assert admin not in text
    assert reader not in text
    assert path.stat().st_mode & 0o777 == 0o600
    tokens = Tokens.load(path)
    assert [principal and principal[:2] for principal in map(_pair, (tokens.find(admin), tokens.find(reader)))] == [
        (None, Role.ADMIN),
        ("acme", Role.READ),
    ]
    (first, second) = tokens
    assert first.expires is not None
    assert timedelta(minutes=59) < first.expires - datetime.now(UTC) <= timedelta(hours=1)
    assert second.expires is None


def _pair(principal: Principal | None) -> tuple[str | None, Role] | None:
    return None if principal is None else (principal.owner, principal.role)


@pytest.mark.parametrize("argv", [[], ["--owner", "a", "--all-owners"], ["--owner", "a", "--role", "root"]])
def test_a_token_needs_one_owner_or_all(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["token", *argv])
    assert "usage: pyrula token" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["token", "--owner", "a", "--file", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "no token was made" in told.err
    # nobody shall hand out a token that is in no file
    assert told.out == ""


def test_a_file_that_is_no_toml_is_left_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text("garbage [")
    assert main(["token", "--owner", "a", "--file", str(file)]) == 2
    told = capsys.readouterr()
    assert ("is no TOML" in told.err, told.out, file.read_text()) == (True, "", "garbage [")
