"""A Valkey whose append-only file can be cut back to what was surely on disk when it was killed.

A SIGKILL alone proves nothing about a disk: what was written stays in the page cache. So a small library (fdatasync.c,
made by the C compiler that is there) notes the file's size at every fdatasync, and the file is cut to the last.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from tests.services.child import ServiceUnavailable, remove_folder, temporary_folder
from tests.services.valkey import ValkeyServer

_SOURCE = Path(__file__).parent / "fdatasync.c"


class SyncedValkey(ValkeyServer):
    """``with SyncedValkey() as valkey: ... valkey.kill(); valkey.cut_back(); valkey.start()``"""

    def __init__(self, *, port: int | None = None, appendfsync: Literal["always", "everysec"] = "always") -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise ServiceUnavailable("there is no C compiler (cc) to make the library that notes fdatasync calls")
        self._notes = temporary_folder("synced")
        library = self._notes / "noted.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        note = self._notes / "synced"
        super().__init__(
            appendonly=True,
            appendfsync=appendfsync,
            port=port,
            env={"LD_PRELOAD": str(library), "PYRULA_SYNCED": str(note)},
        )
        self._note = note

    @property
    def noted(self) -> bool:
        """Whether anything is surely on disk."""
        return self._note.exists()

    def cut_back(self) -> int:
        """Cuts the dead server's file to the last fdatasync. How many bytes went."""
        assert not self.running, "the server still writes"
        path, size = self._note.read_text().split()
        before = Path(path).stat().st_size
        os.truncate(path, int(size))
        return before - int(size)

    def stop(self) -> None:
        super().stop()
        remove_folder(self._notes)
