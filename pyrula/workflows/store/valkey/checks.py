"""What the server must be, judged from what it says of itself. Pure: texts in, an error or warnings out."""

import re
from collections.abc import Mapping

from pyrula.workflows.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.store.lanes import Persistence

MINIMUM = (7, 2)
SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
"""What durability="fsync" needs: under appendfsync everysec WAITAOF answers before the disk has it."""


def parse_info(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, separator, value in lines if separator and not name.startswith("#")}


def check_server(where: str, info: Mapping[str, str], policy: str | None) -> list[str]:
    """Raises ConfigurationError for a server that can't be used, StoreUnavailable for one that is a replica at
    present; gives back what a person should be warned of. ``policy`` is the eviction policy, None if unknown."""
    warnings = []
    version = info.get("redis_version")
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers is None:
        warnings.append(f"{where} doesn't tell its version; Pyrula needs Valkey or Redis 7.2 or later")
    elif (int(numbers[1]), int(numbers[2])) < MINIMUM:
        raise ConfigurationError(
            f"{where} is version {version}; Pyrula needs Valkey or Redis 7.2 or later (script flags, WAITAOF)"
        )
    if info.get("role", "master") != "master":
        raise StoreUnavailable(f"{where} is a replica; connect to its primary")
    if policy is None:
        warnings.append(f"{where} doesn't tell its maxmemory-policy; with any but noeviction it may drop journals")
    elif policy != "noeviction":
        raise ConfigurationError(
            f"{where} has maxmemory-policy {policy}, so it may drop journals when memory is short; set it to noeviction"
        )
    if info.get("aof_enabled") == "0":
        warnings.append(
            f"{where} keeps no append-only file: journals written since its last snapshot, if it makes any, are lost "
            "when it ends; steps of unfinished records then run again. Set appendonly to yes"
        )
    return warnings


def persistence_of(info: Mapping[str, str], settings: Mapping[str, str]) -> Persistence:
    """How the server keeps its append-only file. One that doesn't tell all of it is taken to promise nothing."""
    mode = settings.get("appendfsync", "")
    kept = (
        info.get("aof_enabled") == "1"
        and info.get("aof_last_write_status") == "ok"
        and info.get("cluster_enabled", "0") == "0"
        and "aof_pending_bio_fsync" in info
        and settings.get("appendonly") == "yes"
        and settings.get("no-appendfsync-on-rewrite", "no") == "no"
        and mode in ("always", "everysec")
    )
    return Persistence(info.get("run_id", ""), mode if kept else "", info.get("aof_pending_bio_fsync") != "0")  # type: ignore[arg-type]


def check_settling(where: str, found: Persistence) -> None:
    """Raises ConfigurationError for a server of which it can't be told when its disk has what it answered."""
    if not found.mode:
        raise ConfigurationError(
            f'{where}: durability="everysec" needs one server (no cluster) with appendonly yes, appendfsync everysec '
            'and no-appendfsync-on-rewrite no, that tells so by INFO and CONFIG GET; or use durability="memory"'
        )


def check_synced(where: str, settings: Mapping[str, str] | None) -> None:
    """Raises ConfigurationError unless the server has every write on disk before it answers. None: it doesn't tell."""
    if settings is None:
        raise ConfigurationError(
            f"{where} doesn't tell its settings, so durability=\"fsync\" can't be held to: let the user run "
            'CONFIG GET, or use durability="memory"'
        )
    for name, wanted in SYNCED.items():
        # a server without a setting hasn't what it would weaken
        if settings.get(name, wanted if name.startswith("no-") else "") != wanted:
            raise ConfigurationError(
                f'{where} has {name} {settings.get(name, "unset")}; durability="fsync" needs {name} {wanted}'
            )
