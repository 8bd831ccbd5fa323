"""`pyrula serve` as a process: it serves until a signal, with a worker or without, and says why when it can't."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.services.child import free_port
from tests.services.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


class Served:
    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log

    def url(self) -> str:
        def listening() -> str | None:
            assert self.process.poll() is None, self.log.read_text()
            found = re.search(r"listens on (http://\S+)", self.log.read_text())
            return None if found is None else found[1]

        url = wait_until(listening, description="the API to listen", timeout=60)
        assert url is not None
        return url

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=40) == 0, self.log.read_text()
        return self.log.read_text()


@contextmanager
def serving(folder: Path, tmp_path: Path, *arguments: str) -> Iterator[Served]:
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "pyrula.cli", "serve", "--port", "0", *arguments],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Served(process, log)
    finally:
        process.kill()
        process.wait()


def test_the_example_with_its_worker(tmp_path: Path) -> None:
    with (
        serving(EXAMPLES, tmp_path, "http_orders:worker") as served,
        httpx.Client(base_url=served.url(), timeout=120) as http,
    ):
        order = {"order": {"id": "o-7", "amount_cents": 500}}
        run_id = http.post("/order/runs", json={"params": order}).json()["run_id"]
        assert http.post(f"/order/runs/{run_id}/signal", json={"signal": "packed", "payload": "shelf 3"}).is_success
        assert http.get(f"/order/runs/{run_id}/result").json() == {
            "value": {"order_id": "o-7", "charge_id": "charge-of-o-7", "packed_at": "shelf 3"}
        }
        for path in ("/healthz", "/readyz"):
            assert http.get(path).status_code == 200
        schema = http.get("/openapi.json").json()
        assert "/order/runs" in schema["paths"]
        assert schema["components"]["schemas"]["order.Order"]["required"] == ["id", "amount_cents"]
        said = served.end()
    assert "draining" in said
    assert "Traceback" not in said


def test_a_store_alone_with_tokens(valkey: str, namespace: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    made = subprocess.run(
        [sys.executable, "-m", "pyrula.cli", "token", "--owner", "acme", "--file", str(tokens)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    token = made.stdout.strip()
    store = (valkey, "--namespace", namespace, "--import", "http_orders")
    # a foreign address is served with tokens; this machine reaches it by its own
    with serving(EXAMPLES, tmp_path, *store, "--host", "0.0.0.0", "--tokens", str(tokens)) as served:
        url = served.url().replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=url, timeout=120) as http:
            assert http.post("/order/runs", json={}).status_code == 401
            http.headers["Authorization"] = f"Bearer {token}"
            answer = http.post("/order/runs", json={"params": {}})
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "params.order")
            made_run = http.post("/order/runs", json={"params": {"order": {"id": "o", "amount_cents": 1}}})
            assert made_run.json()["note"] is None
            assert http.get("/runs").json()["runs"][0]["owner"] == "acme"
        said = served.end()
    assert token not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["http_orders:worker", "--host", "0.0.0.0"], r"won't listen on '0\.0\.0\.0'.*--tokens.*--allow-anonymous"),
        (["http_orders:nosuch"], "has no 'nosuch'"),
        (["http_orders:worker", "--tokens", "nosuch.toml"], r"nosuch\.toml: it can't be read"),
        (["valkey://localhost:1", "--import", "nosuchmodule"], "no module 'nosuchmodule'"),
        (["http_orders:worker", "--port", "65536"], "'65536' is no port: a whole number from 0 to 65535"),
        (["http_orders:worker", "--tls-cert", "nosuch.pem"], r"--tls-cert nosuch\.pem: No such file"),
        (["http_orders:worker", "--tls-key", "http_orders.py"], "give it by --tls-cert"),
        (["http://localhost:1"], r"^pyrula: http://localhost:1: the store's URL .* can't be used"),
    ],
)
def test_why_it_cannot_serve(tmp_path: Path, arguments: list[str], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyrula.cli", "serve", *arguments],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert re.search(told, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_ends_the_worker_too(tmp_path: Path) -> None:
    with serving(EXAMPLES, tmp_path, "http_orders:worker") as first:
        port = first.url().rpartition(":")[2]
        (tmp_path / "second").mkdir()
        with serving(EXAMPLES, tmp_path / "second", "http_orders:worker", "--port", port) as second:
            assert second.process.wait(timeout=60) == 1
            said = second.log.read_text()
    assert f"can't listen on 127.0.0.1:{port}" in said
    assert "Traceback" not in said


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    with serving(EXAMPLES, tmp_path, "http_orders:worker", "--tls-cert", "http_orders.py") as served:
        assert served.process.wait(timeout=60) == 1
    said = (tmp_path / "log").read_text()
    assert "the API can't be served: " in said
    assert "Traceback" not in said


def test_a_store_that_is_not_as_it_must_be_ends_the_start(valkey: str, namespace: str, tmp_path: Path) -> None:
    with serving(EXAMPLES, tmp_path, valkey, "--namespace", namespace, "--shards", "2") as served:
        served.url()
    (tmp_path / "second").mkdir()
    with serving(EXAMPLES, tmp_path / "second", valkey, "--namespace", namespace, "--shards", "4") as served:
        assert served.process.wait(timeout=60) == 1
    said = (tmp_path / "second" / "log").read_text()
    assert "has 2 shards" in said
    assert "Traceback" not in said


def test_a_store_that_does_not_answer_is_told_of_and_waited_for(tmp_path: Path) -> None:
    with serving(EXAMPLES, tmp_path, f"valkey://127.0.0.1:{free_port()}") as served:
        with httpx.Client(base_url=served.url(), timeout=120) as http:
            assert http.get("/healthz").status_code == 200
            ready = http.get("/readyz")
            assert (ready.status_code, ready.json()["parts"]) == (503, {"store": "unreachable"})
        said = served.end()
    assert "doesn't answer yet: until it does, what needs it is answered with 503" in said
    assert "Traceback" not in said
