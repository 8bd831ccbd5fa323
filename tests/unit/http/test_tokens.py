import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyrula.http.tokens import Principal, Role, Token, Tokens, hash_of, new_token
from pyrula.workflows import ConfigurationError

GOOD = "sha256:" + "0" * 64


def tokens_of(path: Path, text: str) -> Tokens:
    file = path / "tokens.toml"
    file.write_text(text, encoding="utf-8")
    return Tokens.load(file)


def test_tokens_are_long_and_never_the_same() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(len(token) == len("pyrula_") + 43 for token in made)


def test_a_token_is_found_by_all_of_it_and_nothing_else() -> None:
    token, other = new_token(), new_token()
    tokens = Tokens(Token(hash=hash_of(each), owner="a", role=Role.READ, name=each[:12]) for each in (token, other))
    assert tokens.find(token) == Principal("a", Role.READ, token[:12])
    for wrong in ("", token[:-1], token + "x", token.upper(), hash_of(token), "\udc80", "é"):
        assert tokens.find(wrong) is None


def test_every_hash_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noting(one: bytes, two: bytes) -> bool:
        compared.append((one, two))
        return compare(one, two)

    made = [new_token() for _ in range(5)]
    tokens = Tokens(Token(hash=hash_of(token), owner="a", role=Role.READ) for token in made)
    monkeypatch.setattr("hmac.compare_digest", noting)
    for presented in (made[0], made[4], "nonsense"):
        compared.clear()
        tokens.find(presented)
        assert [one for one, _ in compared] == [hash_of(token).encode() for token in made]


def test_a_token_expires() -> None:
    token = new_token()
    for expires, found in ((timedelta(minutes=1), True), (-timedelta(minutes=1), False)):
        tokens = Tokens([Token(hash=hash_of(token), owner="a", role=Role.READ, expires=datetime.now(UTC) + expires)])
        assert (tokens.find(token) is not None) is found


def test_a_file_of_tokens(tmp_path: Path) -> None:
    one, two = new_token(), new_token()
    tokens = tokens_of(
        tmp_path,
        f"""
        [[tokens]]
        hash = "{hash_of(one)}"
        owner = "acme"
        role = "operate"
        expires = 2999-01-01T00:00:00Z
        [[tokens]]
        name = "ops"
        hash = "{hash_of(two)}"
        all_owners = true
        role = "admin"
        """,
    )
    assert tokens.find(one) == Principal("acme", Role.OPERATE, "token 1")
    assert tokens.find(two) == Principal(None, Role.ADMIN, "ops")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no token in it"),
        ("tokens = 1", "must be tables"),
        ("tokens = [1]", "token 1 is no table"),
        ("nonsense", "can't be read"),
        (f'[[tokens]]\nhash = "{GOOD}"\nrole = "read"', "needs either owner"),
        (f'[[tokens]]\nhash = "{GOOD}"\nrole = "read"\nowner = "a"\nall_owners = true', "needs either owner"),
        (f'[[tokens]]\nhash = "{GOOD}"\nrole = "read"\nowner = ""', "isn't empty"),
        (f'[[tokens]]\nhash = "{GOOD}"\nrole = "root"\nowner = "a"', "role 'root' is none of read, operate, admin"),
        ('[[tokens]]\nhash = "hunter2"\nrole = "read"\nowner = "a"', "64 hex digits"),
        (f'[[tokens]]\nhash = "{GOOD}"\nrole = "read"\nowner = "a"\nexpires = 2999-01-01', "time with a time zone"),
        (f'[[tokens]]\nhash = "{GOOD}"\nrole = "read"\nowner = "a"\nowners = "b"', "no such field as 'owners'"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        tokens_of(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read"):
        Tokens.load(tmp_path / "nosuch.toml")


def test_roles_include_those_before_them() -> None:
    assert Role.READ < Role.OPERATE < Role.ADMIN
    with pytest.raises(ConfigurationError):
        Principal("a", "admin")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        Principal("", Role.READ)


def test_a_token_is_taken_back_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyrula.http.tokens.LOOK_SECONDS", 0.0)
    caplog.set_level("INFO", logger="pyrula.http")
    one, two = new_token(), new_token()
    tables = [f'[[tokens]]\nhash = "{hash_of(each)}"\nowner = "a"\nrole = "read"\n' for each in (one, two)]
    tokens = tokens_of(tmp_path, "\n".join(tables))
    file = tmp_path / "tokens.toml"

    def known() -> list[bool]:
        return [tokens.find(each) is not None for each in (one, two)]

    assert known() == [True, True]
    file.write_text(tables[1])
    assert known() == [False, True]
    # half written, or gone for a moment: nobody is let in or locked out by that
    file.write_text("[[tok")
    assert known() == [False, True]
    file.unlink()
    assert known() == [False, True]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "ERROR"]
    # another file in its place
    other = tmp_path / "other.toml"
    other.write_text(tables[0])
    other.rename(file)
    assert known() == [True, False]
    file.write_text("")
    assert known() == [False, False]


def test_a_file_is_looked_at_once_in_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.http.tokens.LOOK_SECONDS", 3600.0)
    token = new_token()
    tokens = tokens_of(tmp_path, f'[[tokens]]\nhash = "{hash_of(token)}"\nowner = "a"\nrole = "read"\n')
    assert tokens.find(token) is not None
    (tmp_path / "tokens.toml").write_text("")
    assert tokens.find(token) is not None
