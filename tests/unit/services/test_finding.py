"""Where a test run gets its servers from, and what it says when it can't."""

import importlib.util
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import containers, find, kafka_jars, valkey
from tests.services.child import ServiceUnavailable


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A Docker engine that answers one ping with what the list holds."""
    answer = [b"HTTP/1.0 200 OK\r\n\r\nOK"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(200).startswith(b"GET /_ping ")
                connection.sendall(answer[0])

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        yield answer
        thread.join(5)


def test_an_engine_that_answers_a_ping_is_used(engine: list[bytes]) -> None:
    assert containers.engine_answers()


def test_an_engine_in_trouble_is_not(engine: list[bytes]) -> None:
    engine[0] = b"HTTP/1.0 500 Internal Server Error\r\n\r\n"
    assert not containers.engine_answers()


def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert not containers.engine_answers()


def test_the_address_in_the_environment_wins_and_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_ANSWER_TIMEOUT", 0.0)
    monkeypatch.setenv("PYRULA_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("PYRULA_VALKEY", "valkey://127.0.0.1:1")
    with pytest.raises(ServiceUnavailable, match=r"no Kafka broker answers at 127\.0\.0\.1:1 .*PYRULA_KAFKA"):
        find.open_kafka().__enter__()
    with pytest.raises(ServiceUnavailable, match=r"no Valkey answers at 127\.0\.0\.1:1 .*PYRULA_VALKEY"):
        find.open_valkey().__enter__()


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ServiceUnavailable, match=r"needs Java 17 .*no java on the PATH.*PYRULA_KAFKA"):
        kafka_jars.find_java()


@pytest.mark.parametrize(("says", "fits"), [('java version "1.8.0_402"', False), ('openjdk version "21" 2023', True)])
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, fits: bool
) -> None:
    _program(tmp_path / "java", f"echo '{says}' >&2")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if fits:
        assert kafka_jars.find_java() == str(tmp_path / "java")
    else:
        with pytest.raises(ServiceUnavailable, match="java is version 8"):
            kafka_jars.find_java()


def test_jars_are_fetched_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(
        tmp_path / "mvn",
        f'for a; do case $a in -DoutputDirectory=*) mkdir "${{a#*=}}"; esac; done; echo >> {tmp_path}/runs',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("PYRULA_CACHE", str(tmp_path / "cache"))
    folder = kafka_jars.find_jars("9.9.9")
    assert folder.is_dir()
    assert folder == kafka_jars.find_jars("9.9.9")
    assert (tmp_path / "runs").read_text() == "\n"


def test_a_fetch_that_fails_leaves_no_cache_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "mvn", "echo no such artifact; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("PYRULA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ServiceUnavailable, match=r"could not fetch Kafka 9\.9\.9:\nno such artifact"):
        kafka_jars.find_jars("9.9.9")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_valkey_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "valkey-server", "echo Valkey server v=7.0.15 sha=0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ServiceUnavailable, match=r"valkey-server is version \(7, 0\)"):
        valkey.find_valkey()


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
