"""A Python program as a child process that a test may stop, freeze, wake and kill, and whose output it waits for."""

import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.services.child import LOG, Child, remove_folder, temporary_folder
from tests.services.waiting import wait_until

_ROOT = Path(__file__).resolve().parent.parent.parent


class WorkerProcess:
    """``with WorkerProcess(SCRIPT, kafka, group) as worker: worker.wait_for_line("ready")``

    The program is a path or the source itself; it imports pyrula and tests as this checkout has them. Standard output
    and error are one stream, unbuffered. `start()` after its end runs it again, its lines added to those before.
    """

    def __init__(self, program: Path | str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._folder = temporary_folder("process")
        if isinstance(program, str):
            script = self._folder / "program.py"
            script.write_text(program)
        else:
            script = program.resolve()
        self._command = [sys.executable, "-u", str(script), *arguments]
        self._env = {"PYTHONPATH": str(_ROOT), **(env or {})}
        self._log = self._folder / LOG
        self._child: Child | None = None

    def start(self) -> Self:
        assert self._child is None or not self._child.running, "the program is still running"
        self._child = Child(self._command, folder=self._folder, env=self._env)
        return self

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def lines(self) -> list[str]:
        """All complete lines so far."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    @property
    def rss_bytes(self) -> int:
        """Resident memory now."""
        size: int = psutil.Process(self.pid).memory_info().rss
        return size

    def wait_for_line(self, pattern: str, *, timeout: float = 120.0, after: int = 0) -> re.Match[str]:
        """The first line, from number `after` on, in which the pattern is found; fails at once if the program ends."""
        expression = re.compile(pattern)

        def look() -> re.Match[str] | None:
            ended = not self.running
            for line in self.lines[after:]:
                if found := expression.search(line):
                    return found
            if ended:
                raise AssertionError(f"the program ended with status {self.wait()} without {pattern!r}\n{self.tail()}")
            return None

        found = wait_until(look, description=f"a line with {pattern!r}", timeout=timeout)
        assert found is not None
        return found

    def wait(self, *, timeout: float = 120.0) -> int:
        """Its exit status (negative: the signal that ended it)."""
        return self._started().wait(timeout)

    def terminate(self) -> None:
        self._started().signal(signal.SIGTERM)

    def interrupt(self) -> None:
        self._started().signal(signal.SIGINT)

    def freeze(self) -> None:
        """SIGSTOP: it stays a member of everything and does nothing."""
        self._started().signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._started().signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._started().kill()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.lines[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            error.add_note(f"the program's last lines:\n{self.tail()}")
        remove_folder(self._folder)

    def _started(self) -> Child:
        assert self._child is not None, "the program was not started"
        return self._child
