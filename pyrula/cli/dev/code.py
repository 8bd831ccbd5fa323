"""The user's file, and the modules next to it: imported, watched, imported anew when one of them has changed.

Rules: a new import replaces all of the user's modules or none, so that old and new code never meet; when it fails, the
former modules stay in place. Files are looked at, not listened to: that works everywhere, and they are few.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from pyrula.cli.load import find_bindings, import_file, is_user_code
from pyrula.cli.problem import Problem
from pyrula.kafka import Binding

__all__ = ["UserCode"]

# Of a file: when it was written, its size, and which file it is (editors put a new one in its place).
_Stamp: TypeAlias = tuple[int, int, int]


class UserCode:
    """A file with bindings. Raises Problem for one that can't be imported or has none."""

    def __init__(self, path: str) -> None:
        # Python takes bytecode for current that was written within the same second from text of the same length.
        sys.dont_write_bytecode = True
        self.path = path
        self._file = Path(path).resolve()
        self._own: dict[str, bool] = {}
        self._failed = False
        self._seen: dict[Path, _Stamp] = {}
        self._before: dict[Path, _Stamp] | None = None
        self.module, self.bindings = self._load()
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Whether a file has changed since the last import, and has stayed as it is since the last time this was asked:
        a file that is still being written is no good."""
        now = self._stamps()
        if now == self._seen:
            self._before = None
            return False
        settled, self._before = now == self._before, now
        return settled

    def reload(self) -> None:
        """Import everything anew. Raises Problem if that can't be done; then the former code stays."""
        self._seen, self._before = self._stamps(), None
        former = {name: sys.modules[name] for name in self._modules()}
        for name in former:
            del sys.modules[name]
        importlib.invalidate_caches()
        try:
            module, bindings = self._load()
            if _reading(bindings) != _reading(self.bindings):
                raise Problem(
                    f"the bindings read {_told(bindings)} now, instead of {_told(self.bindings)}: start pyrula dev anew"
                )
        except BaseException:
            self._failed = True
            for name in list(self._modules()):
                del sys.modules[name]
            sys.modules.update(former)
            raise
        self.module, self.bindings = module, bindings
        self._failed = False
        # Modules that weren't there before are watched from now on; those that were have their stamps from before.
        self._seen = self._stamps() | self._seen

    def _load(self) -> tuple[ModuleType, list[Binding]]:
        module = import_file(self.path)
        return module, find_bindings(module, self.path)

    def _modules(self) -> Iterator[str]:
        """The names of the modules that were imported from the file's folder."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is None or name == "__main__":
                continue
            if file not in self._own:
                own = Path(file).resolve().is_relative_to(self._file.parent)
                self._own[file] = own and is_user_code(file)
            if self._own[file]:
                yield name

    def _stamps(self) -> dict[Path, _Stamp]:
        files = {self._file, *(Path(str(sys.modules[name].__file__)).resolve() for name in self._modules())}
        if self._failed:
            # What is at fault may be a module that could not be imported.
            files.update(self._file.parent.glob("*.py"))
        stamps = {}
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                # being replaced, or gone for good: then the next import says so
                if file in self._seen:
                    stamps[file] = self._seen[file]
                continue
            stamps[file] = stat.st_mtime_ns, stat.st_size, stat.st_ino
        return stamps


def _reading(bindings: list[Binding]) -> list[tuple[str, str]]:
    return sorted((topic, binding.group) for binding in bindings for topic in binding.topics)


def _told(bindings: list[Binding]) -> str:
    return ", ".join(f"{topic} in group {group}" for topic, group in _reading(bindings))
