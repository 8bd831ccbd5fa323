"""What the servers of the tests have in common: `with`, a folder that outlives restarts, and ways to end."""

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.child import Child, remove_folder, temporary_folder


class Service(ABC):
    """Something to be started and stopped; as a context manager it is stopped also when its start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End it and remove its data."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class LocalServer(Service):
    """One server process at a time, started anew on the same port and folder. `patience`: seconds for a clean end."""

    def __init__(self, name: str, *, patience: float) -> None:
        self._name = name
        self._patience = patience
        self._folder: Path | None = None
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def folder(self) -> Path:
        """Where its files are."""
        if self._folder is None:
            self._folder = temporary_folder(self._name)
        return self._folder

    def stop(self) -> None:
        self.kill()
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None

    def shut_down(self) -> None:
        """A clean end as an operator would: SIGTERM. The data stays for `start()`."""
        if self._child is not None:
            self._child.stop(timeout=self._patience)
            self._child = None

    def kill(self) -> None:
        """SIGKILL. The data stays for `start()`."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        """Shut down and start on the same port and data; after `kill()`, only start."""
        self.shut_down()
        self.start()

    def log_tail(self) -> str:
        return self._child.log_tail() if self._child is not None else ""

    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError(f"this {type(self).__name__} is not running")
        return self._child
