"""A server as a child process: its folder, its log, and the certainty that it ends when we do.

Each child is a session of its own, so that Ctrl-C reaches us alone and we decide the order in which things end. A
second, tiny child waits on a pipe from us. When that pipe closes, so also after a SIGKILL of this process and whatever
thread started the server, it kills the server and removes its folder.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_WATCHDOG = 'read -r _; kill -9 "$1" 2>/dev/null; rm -rf "$2"'
# in a child's folder: what it printed, over all its runs
LOG = "output.txt"
# how many processes may draw ports side by side
_PROCESSES = 16
# from anywhere on, since another run of the tests may be going on
_draws = itertools.count(random.SystemRandom().randrange(10_000))


class ServiceUnavailable(Exception):
    """The server can't be had here; the text says what is missing and what to install or set."""


class StartFailed(Exception):
    """The server was started and didn't answer in time; the text ends with the tail of its log."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listened on a moment ago.

    Not one that the kernel gives to outgoing connections: such a port may be taken before the server is up or while it
    restarts, even by a client that tries to reach the server and so connects to itself. Processes that run tests side
    by side (pytest-xdist names them gw0, gw1, ...) draw from parts of their own.
    """
    low, high = 20_000, 32_000
    share = (high - low) // _PROCESSES
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
    for number in _draws:
        port = low + process * share + number % share
        with socket.socket() as probe, contextlib.suppress(OSError):
            # as a server binds that may follow another one on its port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the numbers never end")


def temporary_folder(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"pyrula-{prefix}-"))


class Child:
    """One run of one server process. Not restarted: a restart makes another Child."""

    def __init__(self, command: Sequence[str], *, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = folder / LOG
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._process.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._process, self._watchdog)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, answers: Callable[[], bool], *, name: str, timeout: float) -> None:
        """Ask until the server answers; StartFailed with the end of its log if it dies or stays silent."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.running:
                status = self._process.returncode
                raise StartFailed(f"{name} ended with status {status} at its start\n{self.log_tail()}")
            if answers():
                return
            time.sleep(0.05)
        tail = self.log_tail()
        self.kill()
        raise StartFailed(f"{name} did not answer within {timeout:g} s\n{tail}")

    def log_tail(self, lines: int = 40) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float) -> int:
        """The exit status; negative is the signal. subprocess.TimeoutExpired if it goes on."""
        return self._process.wait(timeout)

    def stop(self, timeout: float) -> None:
        """SIGTERM, and SIGKILL if that takes longer than the time given."""
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        self._end()


def _end(process: "subprocess.Popen[bytes]", watchdog: "subprocess.Popen[bytes]") -> None:
    # The watchdog goes first: once the server is reaped its pid may be another process's.
    watchdog.kill()
    watchdog.wait()
    if watchdog.stdin is not None:
        watchdog.stdin.close()
    if process.poll() is None:
        process.kill()
    process.wait()


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
